"""`--upgrade-to` on the recording of a client."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workbench.check.conftest import Check
from vllm_facts.version import FIRST, NEWEST
from workbench.check.client_upgrade import MAX_EXCHANGES
from workbench.check.command import run

HEADER = {"format": "understudy-recording", "version": 1, "target": "http://127.0.0.1:8000"}
JSON_HEADERS = [["content-type", "application/json"]]
CHAT = {"model": "a/b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
RESPONSE = {"model": "a/b", "input": "Hi", "max_output_tokens": 4}


def exchange(
    target: str,
    body: Mapping[str, Any] | str,
    answer: Mapping[str, Any] | None = None,
    headers: Sequence[Sequence[str]] = (),
) -> str:
    """Returns a line of a recording; the answer is empty by default."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = {"method": "POST", "target": target, "headers": [*JSON_HEADERS, *headers]}
    chunks = [[0.01, json.dumps(answer or {})]]
    recorded = {"status": 200, "headers": JSON_HEADERS, "head_s": 0.01, "chunks": chunks}
    return json.dumps(
        {"at_s": 0.5, "request": {**request, "body": text}, "answer": {**recorded, "end_s": 0.02}}
    )


def write(path: Path, *lines: str) -> None:
    path.write_text("\n".join([json.dumps(HEADER, separators=(",", ":")), *lines, ""]))


def test_differences_of_the_versions_are_findings_of_their_lines(
    check: Check, tmp_path: Path
) -> None:
    chat = exchange("/v1/chat/completions", CHAT)
    lines = (chat, exchange("/v1/responses", RESPONSE), chat, exchange("/tokenize", {"prompt": 1}))
    write(tmp_path / "client.jsonl", *lines)
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 client.jsonl")
    messages = {(each["code"], each["line"]): each["message"] for each in findings}
    assert sorted(messages) == [("U604", 2), ("U604", 3), ("U605", 1)]
    assert messages["U605", 1].startswith(
        "1 of 4 recorded requests get an answer of the same shape"
    )
    assert "POST /v1/chat/completions (and 1 more requests)" in messages["U604", 2]
    assert "$.choices[].weight_versions: null: only in the 0.33 answer" in messages["U604", 2]
    assert "incomplete" in messages["U604", 3]


def test_recorded_answers_are_the_old_ones_of_a_version_that_is_not_simulated(
    check: Check, tmp_path: Path
) -> None:
    write(tmp_path / "client.jsonl", exchange("/tokenize", {"model": "a/b", "prompt": "Hi"}))
    findings = check("--select U6 --upgrade-to 0.33 client.jsonl")
    assert [each["code"] for each in findings] == ["U605", "U604"]
    assert "only in the 0.33 answer" in findings[1]["message"]


def test_one_report_has_command_lines_and_recordings(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", CHAT))
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-8B --enable-lora\n")
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 --select U6 run.sh client.jsonl")
    assert {(each["file"], each["code"]) for each in findings} == {
        ("run.sh", "U601"),
        ("run.sh", "U603"),
        ("client.jsonl", "U604"),
        ("client.jsonl", "U605"),
    }


def test_tools_are_answered_by_both_versions(check: Check, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", {**CHAT, "tools": tools}))
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 --select U604 client.jsonl")
    assert "weight_versions" in findings[0]["message"]


def test_unknown_version_is_a_note(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", CHAT))
    (finding,) = check("--upgrade-to 0.9 client.jsonl")
    assert finding["code"] == "F501"
    assert f"known are {FIRST} to {NEWEST}" in finding["message"]


def test_request_that_waits_does_not_stop_the_comparison(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.check.client_upgrade.ANSWER_SECONDS", 0.3)
    slow = exchange("/admin/config", {"time-to-first-token": "600s"})
    write(tmp_path / "client.jsonl", slow, exchange("/v1/chat/completions", CHAT))
    (finding,) = check("--vllm-version 0.32 --upgrade-to 0.33 client.jsonl")
    assert finding["code"] == "U605"
    assert "2 of 2" in finding["message"]


def test_comparison_of_slow_answers_ends(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.check.client_upgrade.COMPARISON_SECONDS", 0)
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", CHAT))
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 client.jsonl")
    messages = {each["code"]: each["message"] for each in findings}
    assert messages["F501"] == "only 0 requests are compared, which took 0 s"
    assert messages["U605"].startswith("0 of 0")


def test_connection_that_breaks_off_does_not_stop_the_comparison(
    check: Check, tmp_path: Path
) -> None:
    broken = exchange("/v1/chat/completions", CHAT, headers=[["x-fault", "disconnect"]])
    write(tmp_path / "client.jsonl", broken, exchange("/v1/chat/completions", CHAT))
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 client.jsonl")
    assert [(each["code"], each["line"]) for each in findings] == [("U605", 1), ("U604", 3)]


def test_too_large_recording_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workbench.check.client_upgrade.MAX_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", "x" * (1 << 20)))
    assert run(["--upgrade-to", "0.33", "client.jsonl"]) == 2
    assert capsys.readouterr().err == "error: client.jsonl is larger than 1 MiB\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["{"],
        ['{"at_s": 1}'],
        [exchange("/v1/chat/completions", "not JSON")],
        [exchange("/v1/chat/completions", {"model": "--port", "messages": 5})],
        [exchange("/v1/chat/completions", {"model": "a,b\n\0", "messages": []})],
        [exchange("/v1/chat/completions", {"model": ["x"], "messages": []})],
        [exchange("/v1/chat/completions", '{"model": ' + "[" * 50_000)],
        [exchange("http://[", CHAT)],
        [exchange("", CHAT)],
        [exchange("/v1/\r\nX: y", CHAT)],
        [exchange("/v1/chat/completions?" + "a" * 100_000, CHAT)],
        [json.dumps({"at_s": 0, "request": {"method": "\n", "target": "/"}, "answer": {}})],
    ],
)
def test_hostile_recordings_have_no_traceback(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "client.jsonl", *lines)
    assert run(["--vllm-version", "0.32", "--upgrade-to", "0.33", "client.jsonl"]) in (0, 2)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"[1]\n", b'{"format":"understudy-rec'])
def test_other_files_with_the_name_are_no_recordings(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(content)
    assert run(["--upgrade-to", "0.33", "x.jsonl"]) == 2


def test_recording_without_an_upgrade_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "client.jsonl", exchange("/v1/chat/completions", CHAT))
    assert run(["client.jsonl"]) == 2
    assert "compare it with --upgrade-to" in capsys.readouterr().err


def test_folder_is_no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir(tmp_path / "x.jsonl")
    assert run(["--upgrade-to", "0.33", "x.jsonl"]) == 2


def test_long_recordings_are_compared_in_part(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_EXCHANGES == 1_000
    monkeypatch.setattr("workbench.check.client_upgrade.MAX_EXCHANGES", 2)
    write(tmp_path / "client.jsonl", *[exchange("/version", "")] * 3)
    findings = check("--vllm-version 0.32 --upgrade-to 0.33 client.jsonl")
    assert "only the first 2 requests are compared" in [each["message"] for each in findings]
