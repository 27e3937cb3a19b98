"""What a release of vLLM needs: `Build`. The table of the releases is in `builds.py`."""

<<<<<<< HEAD
from collections.abc import Mapping
from dataclasses import dataclass, field
=======
from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """Text of a file of vLLM that is replaced, because the release does not run with it here."""

    path: str
    before: str
    after: str
>>>>>>> main


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
<<<<<<< HEAD
        variables: Environment variables of its servers that other releases do not need.
=======
        edits: What is replaced in its files.
>>>>>>> main
    """

    version: str
    torch: str = ""
    over: str = ""
    compiled: str = ""
    newer_symbols: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
<<<<<<< HEAD
    variables: Mapping[str, str] = field(default_factory=dict)
=======
    edits: tuple[Edit, ...] = ()
>>>>>>> main
