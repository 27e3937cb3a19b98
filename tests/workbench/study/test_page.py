"""The page of studies lists all flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.flags import FlagParser
from workbench.study import compare_command, take_flags

PAGE = Path(__file__).parents[3] / "docs" / "study.md"


@pytest.mark.parametrize(
    "parser", [take_flags.make_parser(), compare_command.make_parser()], ids=["take", "compare"]
)
def test_page_lists_all_flags(parser: FlagParser) -> None:
    text = PAGE.read_text("utf-8")
    flags = [form for form in parser.actions() if form.startswith("--")]
    missing = [form for form in flags if f"| `{form}" not in text]
    assert missing == ["--help"]
