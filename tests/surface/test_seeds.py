"""What docs/seeds.md promises is there."""

from __future__ import annotations

import re

from app.cli import COMMANDS
from config.settings import BY_NAME
from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "seeds.md").read_text("utf-8")
ROWS = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]


def test_every_row_says_what_is_here_and_has_three_cells() -> None:
    assert len(ROWS) > 20 and {len(row) for row in ROWS} == {3}
    assert all(here for _, here, _ in ROWS)


def test_the_settings_commands_and_files_it_names_are_there() -> None:
    here = " ".join(cell for _, cell, _ in ROWS)
    flags = set(re.findall(r"--([a-z][a-z-]+)", here))
    assert flags <= set(BY_NAME) and len(flags) > 10
    commands = set(re.findall(r"python -m app ([a-z]+)", here))
    assert commands <= set(COMMANDS)
    for path in re.findall(r"\]\(([\w.-]+)\)", PAGE):
        assert (ROOT / "docs" / path).exists()
    assert all((ROOT / path).exists() for path in re.findall(r"`(deploy/\w+)`", here))
