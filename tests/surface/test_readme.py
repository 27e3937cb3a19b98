"""README.md: what a stranger reads first is there, its links lead somewhere, and its snippet runs."""

from __future__ import annotations

import re

from tests.running_server import ROOT

PAGE = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"(?m)^\$ (.+?)(?: {2,}#|$)", PAGE)
FIRST_SCREEN = PAGE[: PAGE.index("I want to")]
LINKS = {link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", PAGE)}


def test_the_first_screen_says_what_it_is_for_whom_and_how_to_start() -> None:
    assert {"mock", "simulator", "vLLM"} <= {*re.findall(r"\w+", FIRST_SCREEN.splitlines()[2])}
    for text in ("For whom", "Not for whom", "git clone", "make run", "pip install .", "docker build"):
        assert text in FIRST_SCREEN
    assert len(FIRST_SCREEN.splitlines()) < 45


def test_its_first_two_commands_serve_and_test() -> None:
    assert COMMANDS[:2] == ["make run", "make test-all"]


def test_it_leads_to_every_page_and_to_nothing_that_is_not_there() -> None:
    assert [link for link in LINKS if not (ROOT / link).exists()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= LINKS


def test_five_jobs_have_a_command_and_a_page() -> None:
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE)
    assert [cells[0] for cells in rows[:1]] == ["I want to ..."]
    assert len(rows) == 1 + 5 and all("`" in does and "](docs/" in reads for _, does, reads in rows[1:])
