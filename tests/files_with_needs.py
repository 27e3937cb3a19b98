"""Test files whose tests may start processes or need a program, found without importing them.

A run of these tests alone (`make test-wire`) imports a third of all test files.
"""

import re
from functools import cache
from pathlib import Path

from tests.needs import GROUPS, NEEDS

WIRE = "wire"
"""Name of the folders, and of the marker, of tests that may start a process:

a server, a command.
"""
FOLDERS = frozenset((WIRE, "servers"))
"""`servers` is a matrix of other servers and proxies, with a target of its own:

make test-servers.
"""
TESTS = Path(__file__).parent
MARKERS = tuple(need.marker for need in NEEDS)
SELECTIONS = frozenset((WIRE, *GROUPS, *MARKERS))
"""Expressions of `-m` that select only tests of such files."""
MARK = re.compile(rf"\bmark\.(?:{'|'.join(MARKERS)})\b")
SKIPPED_WITHOUT = re.compile(r'\bskipped_without\("(\w+)"\)')


def may_have_needs(file: Path) -> bool:
    """Returns whether a test file lies in one of `FOLDERS`, or may have tests with a need."""
    if not FOLDERS.isdisjoint(file.parts):
        return True
    return MARK.search(file.read_text()) is not None or _gives_needs(file.parent)


@cache
def _gives_needs(folder: Path) -> bool:
    """Returns whether a `conftest.py` may give a need to any file of `folder`.

    Either by the parameters of a fixture, or because files that cannot be imported are skipped.
    """
    if folder == TESTS or TESTS not in folder.parents:
        return False
    settings = folder / "conftest.py"
    if settings.exists():
        text = settings.read_text()
        missing = {need.marker for need in NEEDS if not need.is_here}
        if MARK.search(text) or not missing.isdisjoint(SKIPPED_WITHOUT.findall(text)):
            return True
    return _gives_needs(folder.parent)
