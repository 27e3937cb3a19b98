"""What a release of vLLM needs: `Build`. The table of the releases is in `builds.py`."""

from dataclasses import dataclass
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
        packages: Requirements besides those in its metadata.
        edits: What is replaced in its files.
    """

    version: str
    torch: str = ""
    over: str = ""
    packages: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
