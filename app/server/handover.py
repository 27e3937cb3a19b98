"""The settings in force, from the arbiter to its workers, in one environment variable.

The arbiter reads the sources (environment, YAML file) at the start and at a reload, and nobody else does. So
a worker that is started again gets what its siblings have, whatever has become of the YAML file since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping

import msgspec

from config import Settings

SETTINGS = "UNDERSTUDY_SETTINGS"


def hand_over(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Write down, as JSON, the settings that differ from their defaults."""
    environ[SETTINGS] = json.dumps(msgspec.to_builtins(settings))


def handed_over(environ: Mapping[str, str]) -> Settings | None:
    """The settings that `hand_over` wrote, or None where nobody did."""
    text = environ.get(SETTINGS)
    return None if text is None else msgspec.convert(json.loads(text), Settings)
