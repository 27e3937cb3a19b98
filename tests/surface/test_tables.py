"""Tables of the documents are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)
RULER = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_has_a_head_and_a_ruler(page: Path) -> None:
    """A blank line within a table would end it, and show its other rows as text."""
    for table in TABLE.findall(CODE.sub("", page.read_text("utf-8"))):
        assert RULER.fullmatch(table.splitlines()[1:2][0] if "\n" in table.strip() else ""), table[:200]
