"""The command judge with the journal of a running server."""

import json
import time
from pathlib import Path

import pytest
import requests

from app.core.cli import main
from config.files import MAX_FILE_VARIABLE
from tests.evil_server import KINDS, TIMEOUTS_S, evil_server
from tests.running_server import free_port, running_server
from workbench.judge import served

KEY = "key-of-the-test"


def test_judge_command_fetches_the_journal_from_a_running_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "run.jsonl"
    flags = ("--journal", "50", "--time-to-first-token", "20ms", "--admin-key", KEY)
    with running_server(*flags, "--force-dummy-tokenizer") as server:
        lines = []
        with requests.Session() as session:
            for number in range(6):
                name = f"run-{number}"
                start_s = time.time()
                session.post(
                    f"{server.url}/v1/completions",
                    json={"prompt": "Hello", "max_tokens": 3},
                    headers={"X-Request-Id": name},
                    timeout=30,
                )
                took_ms = 1000 * (time.time() - start_s)
                line = {"start_time": start_s, "response_time": took_ms, "request_id": name}
                lines.append(json.dumps(line))
        export.write_text("\n".join(lines))
        arguments = ["judge", str(export), "--journal", server.url, "--json", "-"]
        assert main(arguments) == 1
        [line_of_error] = capsys.readouterr().err.splitlines()
        assert "returned status 401 for the journal" in line_of_error
        assert main([*arguments, "--admin-key", KEY]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["matched"] == verdict["requests"] == 6
    assert verdict["is_same_clock"] is True
    assert verdict["latencies"]["E2E"]["server"]["p50"] >= 19.9
    assert verdict["network_ms"] > 0
    assert verdict["overhead_ms"] == pytest.approx(
        max(0, verdict["latencies"]["E2E"]["added"]["p50"] - verdict["network_ms"]), abs=0.002
    )


def test_unreachable_server_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "run.jsonl"
    export.write_text('{"start_time": 1, "response_time": 2}')
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["judge", str(export), "--journal", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {url} cannot be reached: ")


@pytest.mark.parametrize("kind", KINDS)
def test_journal_without_an_end_is_reported_in_one_line(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    monkeypatch.setattr(served, "TIMEOUT_S", TIMEOUTS_S[kind])
    export = tmp_path / "run.jsonl"
    export.write_text('{"start_time": 1, "response_time": 2}')
    with evil_server(kind) as url:
        assert main(["judge", str(export), "--journal", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: the journal of {url} cannot be read: ")
