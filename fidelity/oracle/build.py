"""What a release of vLLM needs: `Build`. The table of the releases is in `builds.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Edit(NamedTuple):
    """Text of a file of vLLM that is replaced, because the release does not run with it here."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Build:
    """What a release of vLLM needs.

    Attributes:
        version: The release.
        torch: Version of torch of its compiled parts; empty for the one in its metadata.
        over: Release whose environment has torch and all other packages; empty for none.
        compiled: CPU build with the compiled parts; empty for the newest one up to the release.
        newer_symbols: Versions of symbols that the compiled parts require of a libstdc++ that is
            newer than that of Debian 12, and never use.
        packages: Requirements besides those in its metadata.
        edits: What is replaced in its files.
        variables: Environment variables of its servers that other releases do not need.
    """

    version: str
    torch: str = ""
    over: str = ""
    compiled: str = ""
    newer_symbols: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
