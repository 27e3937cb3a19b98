"""A replay to two live servers, which judge finds again, and which a study measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.running_server import running_server
from tests.workbench.study.test_compare import write_truth
from workbench.judge.command import run as judge
from workbench.study.command import run

FLAGS = ["--journal", "1000", "--enable-prompt-tokens-details", "--force-dummy-tokenizer"]


def short_study(folder: Path) -> None:
    """Writes a study of six minutes with 600 requests."""
    write_truth(folder)


def test_replay_sends_the_drawn_requests_to_all_servers_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short_study(tmp_path / "s")
    out = tmp_path / "run.jsonl"
    with running_server(*FLAGS) as first, running_server(*FLAGS) as second:
        words = ["replay", str(tmp_path / "s"), "--url", first.url, second.url]
        assert run([*words, "--speed", "60", "--out", str(out), "--seed", "5"]) == 0
        printed = capsys.readouterr().out
        entries: list[list[dict[str, Any]]] = [
            requests.get(f"{server.url}/admin/journal", timeout=10).json()["entries"]
            for server in (first, second)
        ]
        assert judge([str(out), "--journal", first.url]) == 0
    assert "sent: 600 requests" in printed
    assert "600 whole answers, 0 failures" in printed
    ids = [[entry["id"] for entry in each] for each in entries]
    assert [sum(name.startswith("replay-5-") for name in each) for each in ids] == [300, 300]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 600
    lengths = [line["metrics"]["input_sequence_length"]["value"] for line in lines]
    assert sum(lengths) / 600 == pytest.approx(480, rel=0.05)
    assert "300 of 600 requests found in the journal, by id" in capsys.readouterr().out


def test_failed_requests_are_counted_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short_study(tmp_path / "s")
    out = tmp_path / "run.jsonl"
    with running_server(*FLAGS, "--max-model-len", "4000") as server:
        words = ["replay", str(tmp_path / "s"), "--url", server.url, "http://127.0.0.1:9"]
        assert run([*words, "--speed", "100", "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "300 whole answers, 300 failures" in printed
    assert "failed 300 times: cannot connect: Connection refused" in printed
    errors = [json.loads(line)["error"] for line in out.read_text().splitlines()]
    assert sum(error is not None for error in errors) == 300
