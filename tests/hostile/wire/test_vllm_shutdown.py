"""SIGTERM under `serve`, as clients of vLLM see it: what runs fails or ends, what is new gets 500."""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.raw_client import (
    Wire,
    ask,
    get,
    is_error,
    post,
    refuses,
)
from tests.hostile.waits import wait_for_running_at_least, wait_for_status
from tests.running_server import running_image

pytestmark = pytest.mark.wire
SERVE = ("serve", "tiny", "--inter-token-latency", "20ms")
ENGINE_ENDED = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


def begun_stream(wire: Wire, tokens: int) -> Iterator[Any]:
    events = wire.post(ask(max_tokens=tokens, stream=True)).events()
    next(events)
    return events


def test_shutdown_without_a_timeout_fails_running_requests() -> None:
    with (
        running_image(*SERVE) as server,
        Wire(server.port) as streaming,
        Wire(server.port) as whole,
        Wire(server.port) as idle,
    ):
        stream = streaming.post(ask(max_tokens=4000, stream=True)).begin()
        whole.post(ask(max_tokens=4000))
        assert idle.post(ask(max_tokens=1)).answer().status == 200
        wait_for_running_at_least(server.port, 2)
        server.process.send_signal(signal.SIGTERM)
        lines = stream.read().decode().split("\n\n")
        assert json.loads(lines[-3].removeprefix("data: ")) == ENGINE_ENDED
        assert lines[-2:] == ["data: [DONE]", ""]
        answer = whole.answer()
        assert (answer.status, answer.json()) == (500, ENGINE_ENDED)
        assert refuses(server.port)
        assert idle.sock.recv(1) == b""
        assert server.process.wait(5) == 0
        assert "Traceback" not in server.log()


def test_shutdown_timeout_lets_running_requests_finish() -> None:
    with (
        running_image(*SERVE, "--shutdown-timeout", "20") as server,
        Wire(server.port) as streaming,
        Wire(server.port) as whole,
    ):
        events = begun_stream(streaming, 100)
        whole.post(ask(max_tokens=60))
        wait_for_running_at_least(server.port, 2)
        server.process.send_signal(signal.SIGTERM)
        wait_for_status(server.port, 503, path="/ready")
        assert get(server.port, "/health").status == 200
        for stream in (False, True):
            refused = post(server.port, ask(stream=stream))
            is_error(refused, 500, "InternalServerError")
            assert (
                refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
            )
        assert whole.answer().json()["usage"]["completion_tokens"] == 60
        assert len(list(events)) == 99
        assert server.process.wait(5) == 0


def test_running_requests_fail_after_the_shutdown_timeout() -> None:
    with (
        running_image(*SERVE, "--shutdown-timeout", "1") as server,
        Wire(server.port) as streaming,
    ):
        stream = streaming.post(ask(max_tokens=4000, stream=True)).begin()
        wait_for_running_at_least(server.port, 1)
        start_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        lines = stream.read().decode().split("\n\n")
        assert time.monotonic() - start_s > 0.9
        assert json.loads(lines[-3].removeprefix("data: ")) == ENGINE_ENDED
        assert server.process.wait(5) == 0


@pytest.mark.parametrize("command", [("--shutdown-mode", "drain", "--graceful-timeout", "20s")])
def test_serve_command_with_shutdown_mode_drain_lets_streams_finish(
    command: tuple[str, ...],
) -> None:
    with running_image(*SERVE, *command) as server, Wire(server.port) as streaming:
        events = begun_stream(streaming, 100)
        server.process.send_signal(signal.SIGTERM)
        wait_for_status(server.port, 503, path="/ready")
        is_error(post(server.port, ask()), 503, "Service Unavailable")
        assert len(list(events)) == 99
        assert server.process.wait(5) == 0
