"""Versions of vLLM that the server simulates.

docs/versions.md is generated from this module and from `Feature`, which has the differences
between the versions.

To support a new release, add its differences to `Feature` and extend `VersionName`, the choices of
the setting vllm-version. To remove the oldest release, delete its name and every feature that all
remaining versions have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from app.core.protocol.features import Feature, VllmVersion
from config.sections.api import VersionName

if TYPE_CHECKING:
    from config.settings import ApiSettings

RELEASES = {name: f"{name}.0" for name in get_args(VersionName)}
"""Supported versions, the oldest first: name -> number that vLLM reports."""


def _supported_versions() -> dict[str, VllmVersion]:
    versions = {}
    names: list[str] = []
    for name, release in RELEASES.items():
        names.append(name)
        features = frozenset(feature for feature in Feature if feature.since in names)
        ignored_fields: set[str] = set()
        for feature in set(Feature) - features:
            ignored_fields.update(feature.request_fields)
        nullable_fields: set[str] = set()
        for feature in features:
            nullable_fields.update(feature.nullable_fields)
        versions[name] = VllmVersion(
            name=name,
            release=release,
            features=features,
            ignored_fields=frozenset(ignored_fields),
            nullable_fields=frozenset(nullable_fields),
        )
    return versions


VERSIONS = _supported_versions()
"""Supported versions by name, the oldest first."""


def simulated_version(api: ApiSettings) -> VllmVersion:
    """Returns the version that a server with these settings simulates."""
    return VERSIONS[api.vllm_version]
