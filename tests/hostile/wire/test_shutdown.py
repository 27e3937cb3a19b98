"""The end comes in time: nothing new is admitted, what runs ends, exit hooks run."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.raw_client import Wire, ask, get, http_post, is_error, post, wait_until
from tests.hostile.waits import wait_for_running_at_least, wait_until_not_ready
from tests.running_server import ROOT, RunningServer, running_gunicorn, running_server

WITH_EXIT_HOOK = """
import pathlib, runpy
globals().update(runpy.run_path({configuration!r}))

def worker_exit(server, worker):
    pathlib.Path({witness!r}).write_text("left")
"""


@contextmanager
def server_with_exit_hook(tmp_path: Path, **settings: str) -> Iterator[tuple[RunningServer, Path]]:
    """Our own configuration with a `worker_exit` hook, and the file that the hook writes."""
    witness = tmp_path / "witness"
    config = tmp_path / "conf.py"
    config.write_text(
        WITH_EXIT_HOOK.format(configuration=str(ROOT / "gunicorn.conf.py"), witness=str(witness))
    )
    env = {f"SIM_{name.upper()}": value for name, value in settings.items()}
    with running_gunicorn("-c", str(config), env=env) as server:
        yield server, witness


def ended_well(server: RunningServer, witness: Path, limit_s: float) -> None:
    """The process ends within `limit_s`, with status 0 and its hooks run."""
    assert server.process.wait(limit_s) == 0
    assert witness.read_text() == "left"
    assert "Traceback" not in server.log()


def test_idle_server_exits_immediately_despite_open_connections(
    tmp_path: Path,
) -> None:
    with (
        server_with_exit_hook(tmp_path, graceful_timeout="20s") as (server, witness),
        Wire(server.port) as used,
        Wire(server.port) as fresh,
        Wire(server.port) as halfway,
    ):
        assert used.post(ask()).answer().status == 200
        halfway.send(b"POST /v1/completions HTTP/1.1\r\nHost:")
        server.process.send_signal(signal.SIGTERM)
        ended_well(server, witness, limit_s=10)
        assert used.sock.recv(1) == b""
        assert fresh.seconds_until_closed() < 1


def test_running_stream_completes_while_new_requests_are_rejected(tmp_path: Path) -> None:
    settings = {"graceful_timeout": "20s", "drain_duration": "0s", "inter_token_latency": "20ms"}
    with (
        server_with_exit_hook(tmp_path, **settings) as (server, witness),
        Wire(server.port) as streaming,
        Wire(server.port) as whole,
        Wire(server.port) as idle,
        Wire(server.port) as staying,
    ):
        # Without it, the server might be gone before it has been asked.
        staying.post(ask(max_tokens=4000))
        events = streaming.post(ask(max_tokens=100, stream=True)).events()
        whole.post(ask(max_tokens=60))
        assert idle.post(ask()).answer().status == 200
        next(events)
        wait_for_running_at_least(server.port, 2)
        server.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(server.port)
        assert get(server.port, "/ready").status == 503
        assert get(server.port, "/health").status == 200
        is_error(post(server.port, ask()), 503, "Service Unavailable")
        is_error(post(server.port, ask(stream=True)), 503, "Service Unavailable")
        # A connection that was idle is either told so, too, or closed; never left hanging.
        assert refused_or_closed(idle)
        staying.sock.close()
        assert whole.answer().json()["usage"]["completion_tokens"] == 60
        assert len(list(events)) == 99
        ended_well(server, witness, limit_s=10)


def refused_or_closed(wire: Wire) -> bool:
    try:
        return wire.post(ask()).answer().status == 503
    except (OSError, HTTPException):
        return True


def test_exit_hooks_run_after_a_stream_exceeds_the_graceful_timeout(
    tmp_path: Path,
) -> None:
    with server_with_exit_hook(
        tmp_path, graceful_timeout="2s", inter_token_latency="50ms"
    ) as server_and_hook:
        server, witness = server_and_hook
        with Wire(server.port) as streaming:
            events = streaming.post(ask(max_tokens=4000, stream=True)).events()
            next(events)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            ended_well(server, witness, limit_s=10)
            assert time.monotonic() - start > 1.0
            with pytest.raises((HTTPException, OSError)):
                list(events)


def test_waiting_requests_are_served_before_shutdown(tmp_path: Path) -> None:
    settings = {"graceful_timeout": "20s", "max_num_seqs": "1", "inter_token_latency": "10ms"}
    with server_with_exit_hook(tmp_path, **settings) as (server, witness):
        answers: list[Any] = []

        def ask_for_thirty() -> None:
            answers.append(post(server.port, ask(max_tokens=30)))

        clients = [threading.Thread(target=ask_for_thirty) for _ in range(3)]
        with Wire(server.port) as first:
            next(first.post(ask(max_tokens=4000, stream=True)).events())
            for client in clients:
                client.start()
            wait_until(
                lambda: get(server.port, "/metrics").body.count(b'reason="capacity"} 3') == 1
            )
            server.process.send_signal(signal.SIGTERM)
            wait_until_not_ready(server.port)
        for client in clients:
            client.join()
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [30] * 3
        ended_well(server, witness, limit_s=10)


def test_interrupt_ends_the_server_immediately(tmp_path: Path) -> None:
    with server_with_exit_hook(
        tmp_path, graceful_timeout="20s", inter_token_latency="50ms"
    ) as server_and_hook:
        server, _ = server_and_hook
        with Wire(server.port) as streaming:
            next(streaming.post(ask(max_tokens=4000, stream=True)).events())
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(5) == 0


JSON = "Content-Type: application/json"


def test_indexer_rejects_new_score_requests_during_shutdown() -> None:
    flags = ("--role", "indexer", "--model", "base", "--kv-index-bind", "tcp://127.0.0.1:0")
    ends = ("--graceful-timeout", "15s", "--drain-duration", "0s")
    body = b'{"model": "base", "prompt": "Hello"}'
    with running_server(*flags, *ends) as server, Wire(server.port) as late:
        assert late.send(http_post("/score_completions", body, JSON)).answer().status == 200
        late.send(http_post("/score_completions", body, JSON)[:-1])  # under way, and not yet here
        for _ in range(2):
            get(server.port, "/health")  # what came before this has been looked at
        server.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(server.port)
        with Wire(server.port) as new:
            assert new.send(http_post("/score_completions", body, JSON)).answer().status == 503
        late.send(body[-1:])
        assert late.answer().status == 200
        assert server.process.wait(5) == 0
