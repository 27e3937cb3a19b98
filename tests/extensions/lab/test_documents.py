"""The pages and pictures that the commands of the lab print for the documents."""

import re
import shlex
from pathlib import Path

import pytest

from app.core.cli import main
from scripts.example_pages import PAGES as EXAMPLES
from scripts.example_pages import renewed
from tests.running_server import ROOT

PLANNING = (ROOT / "docs" / "planning.md").read_text("utf-8")
PLANS = re.findall(
    r"```console\n\$ python -m app (simulate (?:.*\\\n)*.*)\n((?:.*\n)*?)```", PLANNING
)


@pytest.mark.parametrize("page", EXAMPLES, ids=str)
def test_example_pages_are_those_of_the_present_console(page: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert renewed(text) == text, "python -m scripts.example_pages"


@pytest.mark.parametrize(("command", "printed"), PLANS)
def test_planning_shows_what_its_commands_print_and_draw(
    command: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of each load, longer than a cold start, has the heading and the columns of the whole."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", ""))
    if "--plot" in words:
        place = words.index("--plot")
        picture = ROOT / words[place + 1]
        assert picture.stat().st_size < 60_000 and f"]({picture.name})" in PLANNING
        del words[place : place + 2]
    seconds = "60" if "--autoscale" in words else "2"
    assert main([*words, "--seconds", seconds, "--processes", "1"]) == 0
    lines, wanted = capsys.readouterr().out.splitlines(), printed.splitlines()
    assert lines[0] == wanted[0]
    assert lines[1].replace(" ", "") == wanted[1].replace(" ", "")
