"""Versions of vLLM that can be played: reads, compares and lists them.

A version is written as on an image or a package: 0.27, 0.27.1, v0.27.1rc1, 0.27.1+cpu. Without a
patch number, it stands for the last patch release of its minor version. `nightly`, `latest` and
`main` stand for the newest version. `vllm_facts.names` compares the releases of the history, which
also has 0.6.6.post1 and 0.10.1.1.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PATCHES = {
    "0.10": "0.10.2",
    "0.11": "0.11.2",
    "0.12": "0.12.0",
    "0.13": "0.13.0",
    "0.14": "0.14.1",
    "0.15": "0.15.1",
    "0.16": "0.16.0",
    "0.17": "0.17.1",
    "0.18": "0.18.1",
    "0.19": "0.19.1",
    "0.20": "0.20.2",
    "0.21": "0.21.0",
    "0.22": "0.22.1",
    "0.23": "0.23.0",
    "0.24": "0.24.0",
    "0.25": "0.25.1",
    "0.26": "0.26.0",
    "0.27": "0.27.1",
    "0.28": "0.28.0",
    "0.29": "0.29.0",
    "0.30": "0.30.0",
    "0.31": "0.31.0",
    "0.32": "0.32.0",
    "0.33": "0.33.0",
}
"""Minor versions that can be played, the oldest first, each with its last patch release."""
CHANGED_PATCHES = ("0.20.2",)
"""Patch releases that changed behavior, beside the first release of each minor version."""
FIRST = next(iter(PATCHES))
NEWEST = next(reversed(PATCHES))
DEFAULT = "0.32"
"""Version that a server plays unless another one is set."""
DESCRIBED = ("0.32", "0.33")
"""Versions whose options are described with types and limits; of others, the names are known."""
PROVEN = ("0.19", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
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


def level_of(version: Version) -> str:
    """Returns what holds for a version: its names alone, or its behavior, too."""
    if version.name in PROVEN:
        return "names and proven behavior"
    later = [name for name in PROVEN if parse_version(name) > version]
    nearest = later[0] if later else PROVEN[-1]
    return f"names of {version.name}, behavior as proven for {nearest}"


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


def changing_versions() -> list[str]:
    """Returns the names of all minor versions and changed patches, the oldest first."""
    return sorted((*PATCHES, *CHANGED_PATCHES), key=_first_release)


def later_versions(version: Version) -> tuple[str, ...]:
    """Returns the names of the later minor versions and changed patches, the newest first."""
    names = [name for name in changing_versions() if _first_release(name) > version]
    return tuple(reversed(names))


def _first_release(name: str) -> Version:
    """Returns the first release that a name stands for."""
    version = parse_version(name)
    return version if name in CHANGED_PATCHES else version._replace(patch=0)
