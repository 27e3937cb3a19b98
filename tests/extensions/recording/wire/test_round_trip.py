"""An agent's loop, recorded through the real proxy and replayed by another server."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from app.core.cli import main
from app.extensions.recording import drift
from app.extensions.recording.exchange import Exchange, bytes_of
from benchmarks import agents
from config.files import MAX_FILE_VARIABLE
from tests.evil_server import KINDS, TIMEOUTS_S, evil_server
from tests.extensions.recording.recordings import (
    CHAT,
    chat,
    exchange,
    exchanges_of,
    recording_proxy,
    written,
)
from tests.hostile.raw_client import Wire, post
from tests.needs import CLIENTS_PYTHON
from tests.running_server import ROOT, RunningServer, running_server

FLAGS = ("--force-dummy-tokenizer", "--model", "m")
KEY = "sk-very-secret-1"


def test_replayed_responses_require_the_api_key(
    tmp_path: Path,
) -> None:
    recorded = written(tmp_path / "r", [exchange(chat("Hi"), (0, b"{}"))])
    flags = ("--replay", recorded, "--api-key", KEY, "--log-http", "--enable-request-id-headers")
    with running_server(*FLAGS, *flags) as server:
        assert requests.post(server.url + CHAT, json=chat("Hi"), timeout=20).status_code == 401
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine"}
        answer = requests.post(server.url + CHAT, json=chat("Hi"), headers=headers, timeout=20)
        assert (answer.status_code, answer.text, answer.headers["X-Request-Id"]) == (
            200,
            "{}",
            "mine",
        )
        metrics = requests.get(server.url + "/metrics", timeout=20).text
        assert f'http_requests_total{{handler="{CHAT}",method="POST",status="2xx"}} 1.0' in metrics
        assert KEY not in server.log()


def test_client_disconnect_during_a_replay_releases_all_resources(tmp_path: Path) -> None:
    slow = [
        exchange(chat("stream"), (0, b"data: 1\n\n"), (3600, b"data: 2\n\n")),
        exchange(chat("whole"), (3600, b"{}")),
    ]
    path = written(tmp_path / "r", slow)
    with running_server(*FLAGS, "--replay", path, "--graceful-timeout", "30s") as server:
        for text in ("stream", "whole"):
            with Wire(server.port) as wire:
                wire.post(chat(text), CHAT)
                if text == "stream":
                    assert wire.begin().read1() == b"data: 1\n\n"
                wire.reset()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15, "the server waited for who had left"


def test_replayed_response_recorded_in_pieces_keeps_its_content_length(tmp_path: Path) -> None:
    headers = [("content-type", "text/plain"), ("content-length", "6")]
    path = written(
        tmp_path / "r", [exchange(chat("Hi"), (0, b"one"), (0.05, b"two"), headers=headers)]
    )
    with running_server(*FLAGS, "--replay", path) as server, Wire(server.port) as wire:
        for _ in range(2):  # on one connection
            answer = wire.post(chat("Hi"), CHAT).answer()
            assert (answer.body, answer.headers["content-length"]) == (b"onetwo", "6")
            assert "transfer-encoding" not in answer.headers


def test_recorder_that_cannot_start_prints_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, line in (
        (
            ("nowhere", "--out", "r"),
            "error: target nowhere: must be a URL such as http://host:8000",
        ),
        (("http://x", "--out", "/"), "error: / already exists"),
        (("http://x", "--out", "none/r"), "error: none/r cannot be written"),
    ):
        assert main(["record", "--proxy", "--target", *words]) == 1
        errors = capsys.readouterr().err
        assert errors.startswith(line) and errors.count("\n") == 1


def test_occupied_port_leaves_no_recording_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = (
            "record",
            "--proxy",
            "--target",
            "http://x",
            "--out",
            str(tmp_path / "r"),
            "--port",
            port,
        )
        done = subprocess.run(
            [sys.executable, "-m", "app", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
        )
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert done.stderr.startswith(f"error: port {port}: Address already in use")


def test_killed_recorder_keeps_completed_exchanges(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with running_server(*FLAGS) as live:
        try:
            with recording_proxy(live, path) as proxy:
                assert post(proxy.port, chat("Hi", max_tokens=1), CHAT).status == 200
                deadline = time.monotonic() + 20
                while not exchanges_of(path) and time.monotonic() < deadline:
                    time.sleep(0.02)
                proxy.process.send_signal(signal.SIGKILL)
                proxy.process.wait()
        except AssertionError:
            assert proxy.process.returncode == -signal.SIGKILL
    assert len(exchanges_of(path)) == 1


def test_drift_command_reports_different_responses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tmp_path / "r"
    with running_server(*FLAGS, "--api-key", KEY, "--served-model-name", "m", "n") as server:
        key = ("--api-key", KEY)
        with recording_proxy(server, recorded) as proxy:
            for stream in (False, True):
                headers = {"Authorization": f"Bearer {KEY}"}
                body = chat("Hi", stream=stream, max_tokens=3)
                assert requests.post(proxy.url + CHAT, json=body, headers=headers, timeout=20).ok
        for words, code, line in (
            ((), 1, "status 200 in the recorded answer, status 401 in the live"),
            ((*key, "--model", "other"), 1, "recorded answer, status 404 in the live answer"),
            ((*key, "--model", "n"), 0, "2 of 2 exchanges agree\n"),
        ):
            assert main(["drift", str(recorded), "--target", server.url, *words]) == code
            assert line in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_drift_reports_a_response_without_an_end_in_one_line(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    monkeypatch.setattr(drift, "READ_TIMEOUT_S", TIMEOUTS_S[kind])
    path = written(tmp_path / "r", [exchange(chat("Hi"), (0, b"{}"))])
    with evil_server(kind) as url:
        assert main(["drift", path, "--target", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {url}: ")


def test_line_of_deep_json_is_skipped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    deep_line = b'{"at_s": 1, "unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    path = written(tmp_path / "r", [], deep_line)
    assert main(["drift", path, "--target", "http://127.0.0.1:9"]) == 0
    assert "0 of 0 exchanges agree" in capsys.readouterr().out
    assert "line 2 is not an exchange" in caplog.text


def test_recorded_multi_megabyte_response_is_replayed_unchanged(tmp_path: Path) -> None:
    content = b'"\n' * (3 << 20)
    huge = exchange(chat("Hi"), (0, content), headers=[("content-type", "text/plain")])
    path = written(
        tmp_path / "r", [huge, exchange(chat("parts"), *[(0.0, content[: 1 << 20])] * 4)]
    )
    with running_server("--force-dummy-tokenizer", "--replay", path) as server:
        assert post(server.port, chat("Hi"), CHAT).body == content
        assert post(server.port, chat("parts"), CHAT).body == content[: 4 << 20]


@pytest.mark.parametrize("pieces", [[(0.0, b"x" * (6 << 20))], [(0.0, b"x" * (3 << 20))] * 2])
def test_client_that_does_not_read_a_replay_is_disconnected(
    tmp_path: Path, pieces: list[tuple[float, bytes]]
) -> None:
    path = written(tmp_path / "r", [exchange(chat("Hi"), *pieces)])
    flags = ("--force-dummy-tokenizer", "--client-timeout", "0.3s", "--graceful-timeout", "40s")
    with (
        running_server(*flags, "--replay", path) as server,
        Wire(server.port, receive_buffer=4096) as wire,
    ):
        wire.post(chat("Hi"), CHAT)
        wire.begin().close()
        assert server.stop(timeout_s=20) == 0, "it waited for who takes nothing"


SCRIPT = ROOT / "examples" / "scripts" / "weather.yaml"
TOWNS = ("Rome",)


def client_output(python: str, client: str, server: RunningServer) -> list[str]:
    """What `client` hears, whole and streamed, in each town."""
    done = subprocess.run(
        [python, agents.__file__, client, server.url, "tiny", *TOWNS],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    heard: list[str] = json.loads(done.stdout)
    return heard


def answer_content(exchange: Exchange) -> tuple[object, ...]:
    """An answer without its moments, and without what the server says of this very moment."""
    answer = exchange.answer
    headers = sorted((name.lower(), value) for name, value in answer.headers)
    return (
        answer.status,
        [header for header in headers if header[0] not in ("date", "server")],
        b"".join(bytes_of(chunk.data) for chunk in answer.chunks),
        answer.is_broken,
    )


@pytest.mark.parametrize(
    ("client", "python"),
    [
        ("openai", sys.executable),
        pytest.param("pydantic-ai", str(CLIENTS_PYTHON), marks=pytest.mark.clients),
    ],
)
@pytest.mark.timeout(180)
def test_agent_loop_is_replayed_byte_for_byte(tmp_path: Path, client: str, python: str) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    with (
        running_server("--model=tiny", "--script", str(SCRIPT)) as live,
        recording_proxy(live, first) as proxy,
    ):
        heard = client_output(python, client, proxy)
    assert heard == [f"The weather: sun in {town}." for town in TOWNS for _ in range(2)]
    flags = ("--model=other", "--replay", str(first), "--replay-miss", "not-found")
    with running_server(*flags) as other, recording_proxy(other, second) as proxy:
        assert client_output(python, client, proxy) == heard
    recorded = exchanges_of(first)
    replayed = exchanges_of(second)
    assert len(recorded) == 4 * len(TOWNS), "each loop asks twice"
    assert [exchange.request.body for exchange in replayed] == [
        exchange.request.body for exchange in recorded
    ]
    assert [*map(answer_content, replayed)] == [*map(answer_content, recorded)]
