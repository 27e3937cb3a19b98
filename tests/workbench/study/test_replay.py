"""Replays of a study: what is sent, and the export for `judge`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workbench.study.test_compare import write_truth
from workbench.judge.exports import read_export
from workbench.runs.recording_client import FailedRequest, RecordedRequest
from workbench.study.command import run
from workbench.study.replay import _export_lines

START_S = 1_800_000_000.0
ANSWERED = RecordedRequest(
    number=1,
    arrival_s=0.5,
    send_s=0.501,
    first_s=0.551,
    last_s=0.751,
    input_tokens=300,
    output_tokens=21,
    text_s=0.551,
    cached_tokens=0,
    pod="",
)
FAILED = FailedRequest(
    number=0, arrival_s=0.1, send_s=0.1, end_s=0.2, error="cannot connect: </b> \u202e refused"
)


def test_export_is_read_by_judge(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = _export_lines([ANSWERED], [FAILED], start_s=START_S, run_id="replay-7")
    path.write_bytes(b"".join(lines))
    export = read_export(str(path))
    failed, answered = export.requests
    assert failed.ids == ("replay-7-0",)
    assert failed.error == FAILED.error
    assert answered.ids == ("replay-7-1",)
    assert answered.planned_s == pytest.approx(START_S + 0.5, abs=1e-3)
    assert answered.first_s is not None
    assert answered.first_s - answered.send_s == pytest.approx(0.05, abs=1e-6)
    assert answered.output_tokens == 21


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--url"),
        (["--url", "https://h"], "must be a URL without TLS"),
        (["--url", "nonsense"], "must be a URL"),
        (["--url", "http://127.0.0.1:9", "--speed", "nan"], "--speed"),
        (["--url", "http://127.0.0.1:9", "--speed", "0"], "--speed"),
        (["--url", "http://127.0.0.1:9", "--seed", "-1"], "--seed"),
        (["--url", "http://127.0.0.1:9", "--out", "/nowhere/a"], "folder not found"),
        (["--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["--url", *["http://127.0.0.1:9"] * 1001], "at most 1000 servers"),
    ],
)
def test_wrong_command_line_is_one_line(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_truth(tmp_path / "s")
    assert run(["replay", str(tmp_path / "s"), *words]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_folder_that_is_no_study_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(tmp_path / "s"), "--url", "http://127.0.0.1:9"]) == 1
    assert "not a folder" in capsys.readouterr().err
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "fleet.yaml").write_text(json.dumps({"model": "m", "groups": []}))
    assert run(["replay", str(tmp_path / "s"), "--url", "http://127.0.0.1:9"]) == 1
    assert "measured.json" in capsys.readouterr().err
