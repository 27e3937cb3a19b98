"""Runs `check` in a folder, and returns its findings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.check.command import run

Check = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """Returns a function that takes flags and files as a shell does."""
    monkeypatch.chdir(tmp_path)

    def findings_of(words: str) -> list[dict[str, Any]]:
        status = run(["--format", "json", *shlex.split(words)])
        out = capsys.readouterr().out
        findings: list[dict[str, Any]] = json.loads(out)["findings"]
        assert status == int(any(each["severity"] == "error" for each in findings))
        return findings

    return findings_of
