"""Versions of vLLM that can be played: reads, compares and lists them.

A version is written as on an image or a package: 0.27, 0.27.1, v0.27.1rc1, 0.27.1+cpu. Without a
patch number, it stands for the last patch release of its minor version. `nightly`, `latest` and
`main` stand for the newest version. `vllm_facts.names` compares the releases of the history, which
also has 0.6.6.post1 and 0.10.1.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from config.default_version import DEFAULT_VERSION

if TYPE_CHECKING:
    from config.sections.api import ApiSettings

from vllm_facts.names import read_releases, release_numbers

FIRST = "0.10"
PATCHES = {
    name: releases[-1]
    for name, releases in read_releases().items()
    if release_numbers(name) >= release_numbers(FIRST)
}
"""Minor versions that can be played, the oldest first, each with its last patch release."""
CHANGED_PATCHES = ("0.10.1", "0.11.1", "0.20.2")
"""Patch releases that changed behavior, beside the first release of each minor version."""
NEWEST = next(reversed(PATCHES))
DEFAULT = DEFAULT_VERSION
"""Version that a server plays unless another one is set."""
DESCRIBED = ("0.32", "0.33")
"""Versions whose options are described with types and limits; of others, the names are known."""
OF_CODE = "0.33"
"""The version that the code plays: what a later release adds is taken from the history."""
CLEARED = "0.33"
"""Last version whose removed fields, routes and metrics are not in the code. Names that a later
release removed stay in the code, because earlier versions need them."""
PROVEN = (
    "0.10",
    "0.11",
    "0.15",
    "0.19",
    "0.20",
    "0.21",
    "0.22",
    "0.23",
    "0.24",
    "0.25",
    "0.26",
    "0.27",
    "0.28",
    "0.29",
    "0.30",
    "0.31",
    "0.32",
    "0.33",
)
"""Versions whose behavior was compared with answers of real servers, the oldest first."""
NEWEST_WORDS = frozenset(("nightly", "latest", "main"))
RULE = f"must be a version of vLLM from {FIRST} to {NEWEST}, such as {PATCHES['0.27']}"
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.+-]?[a-z][\w.+-]*)?", re.ASCII)


class Version(NamedTuple):
    """A version of vLLM. Versions compare in the order of their releases."""

    major: int
    minor: int
    patch: int

    @property
    def name(self) -> str:
        """The minor version, such as 0.27, as releases are listed."""
        return f"{self.major}.{self.minor}"

    @property
    def release(self) -> str:
        """The number that vLLM reports, such as 0.27.1."""
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def is_new(self) -> bool:
        """True of a version after the one that the code plays."""
        return first_release(self.name) > first_release(OF_CODE)


def parse_version(text: str) -> Version:
    """Reads a version, also one that cannot be played.

    Raises:
        ValueError: The text is not a version of vLLM.
    """
    word = text.strip().lower()
    if word in NEWEST_WORDS:
        word = NEWEST
    match = _VERSION.fullmatch(word)
    if match is None:
        raise ValueError(f"{text!r} is not a version of vLLM, such as {PATCHES['0.27']}")
    major, minor, patch = match.groups()
    if patch is not None:
        return Version(int(major), int(minor), int(patch))
    last_release = PATCHES.get(f"{int(major)}.{int(minor)}", "0.0.0")
    return Version(int(major), int(minor), int(last_release.rpartition(".")[2]))


def is_proven(version: Version) -> bool:
    """Returns whether the behavior of a release was compared with answers of a real server.

    Only the last patch release of a proven minor version was compared.
    """
    return version.name in PROVEN and version.release == PATCHES[version.name]


def level_of(version: Version) -> str:
    """Returns what holds for a version: its names alone, or its behavior, too."""
    if is_proven(version):
        return "names and proven behavior"
    if version.name in PROVEN:
        names, compared = version.release, PATCHES[version.name]
    else:
        later = [name for name in PROVEN if parse_version(name) > version]
        names, compared = version.name, (later or PROVEN[-1:])[0]
    return f"names of {names}, behavior as proven for {compared}"


def playable_version(text: str) -> Version:
    """Reads a version that can be played.

    Raises:
        ValueError: The text is not such a version; the message is the rule.
    """
    try:
        version = parse_version(text)
    except ValueError:
        raise ValueError(RULE) from None
    if version.name not in PATCHES:
        raise ValueError(RULE)
    return version


def versions_up_to(version: Version) -> tuple[str, ...]:
    """Returns the names of the minor versions that can be played, up to that of `version`."""
    names = tuple(PATCHES)
    return names[: names.index(version.name) + 1]


def played_versions(api: ApiSettings) -> tuple[str, ...]:
    """Returns the names of the minor versions that can be played, up to that of a server."""
    return versions_up_to(playable_version(api.vllm_version))


def changing_versions() -> list[str]:
    """Returns the names of all minor versions and changed patches, the oldest first."""
    return sorted((*PATCHES, *CHANGED_PATCHES), key=first_release)


def later_versions(version: Version) -> tuple[str, ...]:
    """Returns the names of the later minor versions and changed patches, the newest first."""
    names = [name for name in changing_versions() if first_release(name) > version]
    return tuple(reversed(names))


def first_release(name: str) -> Version:
    """Returns the first release that a name stands for."""
    version = parse_version(name)
    return version if name in CHANGED_PATCHES else version._replace(patch=0)
