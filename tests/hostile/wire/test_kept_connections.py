"""No request on a kept connection is lost when a server reloads, is replaced, or ends."""

import os
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from app.core.server.gunicorn.certificates import make_pair
from tests.hostile.kept_clients import CLIENTS, LATENCY, asking, asking_over
from tests.hostile.raw_client import (
    PATIENCE_S,
    Wire,
    ask,
    get,
    http_post,
    is_error,
    post,
    wait_for_value,
    wait_until,
)
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import (
    wait_for_log,
    wait_for_new_workers,
    wait_until_not_ready,
)
from tests.running_server import RunningServer, free_port, running_command, running_gunicorn

JSON = "Content-Type: application/json"
COMPLETION = http_post(
    "/v1/completions", b'{"prompt": "a", "max_tokens": 1, "ignore_eos": true}', JSON
)
LONG_DRAIN = {"SIM_DRAIN_DURATION": "20s", "SIM_GRACEFUL_TIMEOUT": "30s"}
"""Longer than a busy machine delays a request. A drain ends early when no client is connected."""


class Socket(Wire):
    """A client on a socket that is connected already."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE_S)


def reload(server: RunningServer) -> None:
    """Sends SIGHUP; returns when the workers of before have ended."""
    workers_before = set(workers_of(server))
    server.process.send_signal(signal.SIGHUP)
    wait_for_new_workers(server, workers_before)


def arbiters_of(server: RunningServer) -> set[int]:
    return set(map(int, re.findall(r"Listening at: \S+ \((\d+)\)", server.log())))


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@contextmanager
def successor_of(server: RunningServer) -> Iterator[int]:
    """Process id of a server that SIGUSR2 has started, and that has a worker.

    Ended after the block.
    """
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: len(arbiters_of(server)) == 2)
    [pid] = arbiters_of(server) - {server.process.pid}
    try:
        wait_until(lambda: bool(children_of(pid)))
        yield pid
    finally:
        end_successor(server, pid)


def end_successor(server: RunningServer, pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended already
        os.kill(pid, signal.SIGTERM)
    wait_for_log(server, f"[{pid}] [-] server: Shutting down")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does not run during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # A signal that arrives before the process has stopped would be handled first.
        wait_until(lambda: status_of(pid, "State").startswith("T"))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def end_while_stopped(server: RunningServer) -> None:
    """Sends SIGTERM to a server whose worker is stopped; returns when the worker has been signaled."""
    server.process.send_signal(signal.SIGTERM)
    [worker] = workers_of(server)
    is_sent = 1 << (signal.SIGTERM - 1)
    wait_until(lambda: bool(int(status_of(worker, "ShdPnd"), 16) & is_sent))


def status_of(pid: int, name: str) -> str:
    """A field of /proc/PID/status."""
    [value] = re.findall(rf"^{name}:\s*(.+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return str(value)


def status_of_completion(port: int) -> int:
    return post(port, ask()).status


def assert_last(wire: Wire) -> None:
    """The next answer is a whole one that announces the end of the connection, and then the end
    comes.
    """
    answer = wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close"), answer
    assert wire.sock.recv(1) == b""


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_reloads_lose_no_request(fast_path: str) -> None:
    with running_gunicorn(env={**LATENCY, "SIM_FAST_PATH": fast_path}) as server:
        with asking(server.port) as clients:
            for _ in range(3):
                reload(server)
        assert clients.closed >= 3
        assert "Traceback" not in server.log()


def test_reloads_with_tls_lose_no_request(tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    key = tmp_path / "tls.key"
    for path, content in zip((certificate, key), make_pair(["localhost"]), strict=True):
        path.write_bytes(content)
    context = ssl.create_default_context(cafile=str(certificate))
    env = {**LATENCY, "SIM_SSL_CERTFILE": str(certificate), "SIM_SSL_KEYFILE": str(key)}
    with running_gunicorn(env=env) as server:

        def connect() -> Wire:
            sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
            return Socket(context.wrap_socket(sock, server_hostname="localhost"))

        with asking_over(connect) as clients:
            for _ in range(2):
                reload(server)
        assert clients.closed >= 2
        assert "Traceback" not in server.log()


def test_reloads_on_a_unix_socket_lose_no_request(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    # The TCP port is only for the start, which waits for it.
    with running_on_both(path) as server:

        def connect() -> Wire:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(path)
            return Socket(sock)

        with asking_over(connect) as clients:
            for _ in range(2):
                reload(server)
        assert clients.closed >= 2
        assert "Traceback" not in server.log()


@contextmanager
def running_on_both(path: str) -> Iterator[RunningServer]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "-b",
        f"127.0.0.1:{port}",
        "-b",
        f"unix:{path}",
        "wsgi:app",
    ]
    with running_command(command, port, LATENCY) as server:
        yield server


def test_replacing_a_server_loses_no_request() -> None:
    """SIGUSR2, then SIGTERM to the first server while its successor still loads the application."""
    with running_gunicorn(env=LATENCY) as server:
        # The clients end before their server does.
        with successor_of(server), asking(server.port) as clients:
            assert server.stop() == 0
            clients.wait_for_more(10 * CLIENTS)
        assert clients.closed >= 1
        assert "Traceback" not in server.log()


def test_reverting_a_server_replacement_loses_no_request() -> None:
    """SIGUSR2, then SIGTERM to the second server: the first one goes on."""
    with (
        running_gunicorn(env=LATENCY) as server,
        asking(server.port) as clients,
        successor_of(server) as successor,
    ):
        clients.wait_for_more(20 * CLIENTS)
        end_successor(server, successor)
        clients.wait_for_more(10 * CLIENTS)


def test_replaced_server_stays_ready_until_it_exits() -> None:
    with running_gunicorn() as server, Wire(server.port) as idle, successor_of(server):
        idle.send(b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        assert idle.answer().status == 200
        server.process.send_signal(signal.SIGTERM)
        is_last = False
        while not is_last:
            answer = idle.send(b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n").answer()
            assert answer.status == 200
            is_last = answer.headers.get("connection") == "close"
        assert server.process.wait(PATIENCE_S) == 0


def test_requests_sent_just_before_shutdown_are_answered() -> None:
    """On kept connections, on new ones, and on those that wait in the backlog."""
    with running_gunicorn(env=LONG_DRAIN) as server, ExitStack() as stack:
        idle = [stack.enter_context(Wire(server.port)) for _ in range(4)]
        silent = [stack.enter_context(Wire(server.port)) for _ in range(4)]
        for wire in idle:
            assert wire.post(ask()).answer().status == 200
        [worker] = workers_of(server)
        with stopped(worker):
            queued = [stack.enter_context(Wire(server.port)) for _ in range(50)]
            for wire in (*idle, *silent, *queued):
                wire.send(COMPLETION)
            end_while_stopped(server)
        for wire in (*idle, *silent, *queued):
            assert_last(wire)
        assert server.process.wait(PATIENCE_S) == 0


def test_draining_server_still_serves_kept_alive_connections_once() -> None:
    with (
        running_gunicorn(env=LONG_DRAIN) as server,
        Wire(server.port) as idle,
        Wire(server.port) as other,
    ):
        for wire in (idle, other):
            assert wire.post(ask()).answer().status == 200
        server.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(server.port)
        assert get(server.port, "/health").status == 200
        assert_last(idle.post(ask()))
        with Wire(server.port) as new:
            assert_last(new.post(ask()))
        assert_last(other.post(ask()))
        assert server.process.wait(PATIENCE_S) == 0


def test_requests_half_received_at_shutdown_are_answered() -> None:
    plain = COMPLETION
    late = http_post("/v1/completions", b'{"prompt": ["a"], "max_tokens": 1}', JSON)
    cuts = [(plain, 9), (plain, plain.index(b"{") - 3), (plain, -1), (late, -1)]
    with running_gunicorn(env=LONG_DRAIN) as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in cuts]
        for wire, (request, cut) in zip(wires, cuts, strict=True):
            wire.send(request[:cut])
        get(server.port, "/health")
        server.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(server.port)
        for wire, (request, cut) in zip(wires, cuts, strict=True):
            assert_last(wire.send(request[cut:]))
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_pipelined_requests_are_all_answered_at_shutdown(fast_path: str) -> None:
    with (
        running_gunicorn(env={**LONG_DRAIN, "SIM_FAST_PATH": fast_path}) as server,
        ExitStack() as stack,
    ):
        wires = [stack.enter_context(Wire(server.port)) for _ in range(2)]
        assert wires[0].post(ask()).answer().status == 200
        [worker] = workers_of(server)
        with stopped(worker):
            for wire in wires:
                wire.send(3 * COMPLETION)
            end_while_stopped(server)
        for wire in wires:
            with wire.sock.makefile("rb") as stream:
                received = stream.read()
            assert re.findall(rb"HTTP/1.1 (\d+) |Connection: (\S+)\r\n", received) == [
                (b"200", b""),
                (b"200", b""),
                (b"200", b""),
                (b"", b"close"),
            ]
        assert server.process.wait(PATIENCE_S) == 0


def test_connection_is_served_once_more_after_a_stream_during_a_drain() -> None:
    """The head of a stream has left before the signal; its client sends again when the stream ends."""
    env = {**LONG_DRAIN, "SIM_INTER_TOKEN_LATENCY": "20ms"}
    for fast_path in ("true", "false"):
        with (
            running_gunicorn(env={**env, "SIM_FAST_PATH": fast_path}) as server,
            Wire(server.port) as wire,
        ):
            with closing(wire.post(ask(max_tokens=50, stream=True)).begin()) as stream:
                assert stream.getheader("Connection") is None
                server.process.send_signal(signal.SIGTERM)
                wait_until_not_ready(server.port)
                assert stream.read().endswith(b"data: [DONE]\n\n")
            assert_last(wire.post(ask()))
            assert server.process.wait(PATIENCE_S) == 0


def test_new_requests_get_503_after_the_drain_duration() -> None:
    env = {
        "SIM_GRACEFUL_TIMEOUT": "20s",
        "SIM_DRAIN_DURATION": "100ms",
        "SIM_INTER_TOKEN_LATENCY": "20ms",
    }
    with running_gunicorn(env=env) as server, Wire(server.port) as streaming:
        events: Any = streaming.post(ask(max_tokens=4000, stream=True)).events()
        next(events)
        server.process.send_signal(signal.SIGTERM)
        wait_for_value(status_of_completion, server.port, equals=503)
        is_error(post(server.port, ask()), 503, "Service Unavailable")
        next(events)
        events.close()
        streaming.sock.close()
        assert server.process.wait(PATIENCE_S) == 0


def test_long_idle_connections_do_not_delay_shutdown() -> None:
    env = {**LONG_DRAIN, "SIM_DRAIN_DURATION": "500ms"}
    with (
        running_gunicorn(env=env) as server,
        Wire(server.port) as idle,
        Wire(server.port) as silent,
    ):
        assert idle.post(ask()).answer().status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert (idle.sock.recv(1), silent.sock.recv(1)) == (b"", b"")


def test_second_signal_ends_a_draining_server_immediately() -> None:
    with running_gunicorn(env=LONG_DRAIN) as server, Wire(server.port) as idle:
        assert idle.post(ask()).answer().status == 200
        server.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(server.port)
        started_s = time.monotonic()
        server.process.send_signal(signal.SIGQUIT)
        assert server.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - started_s < 15


def test_terminating_a_single_worker_loses_no_request() -> None:
    """The arbiter starts another worker, which accepts at the same listener."""
    with running_gunicorn(env=LATENCY) as server, asking(server.port) as clients:
        [worker] = workers_of(server)
        os.kill(worker, signal.SIGTERM)
        wait_until(lambda: worker not in workers_of(server))
        clients.wait_for_more(10 * CLIENTS)


def test_signaling_all_processes_drains_the_server_once() -> None:
    """A service manager signals the arbiter and the worker at once."""
    with running_gunicorn(env=LONG_DRAIN) as server, Wire(server.port) as idle:
        assert idle.post(ask()).answer().status == 200
        os.killpg(server.process.pid, signal.SIGTERM)
        wait_until_not_ready(server.port)
        assert_last(idle.post(ask()))
        assert server.process.wait(PATIENCE_S) == 0


SERVICE_MANAGER = """
import os
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
for _ in range(2):
    server = os.fork()
    if server == 0:
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
        os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "wsgi:app"])
    os.waitpid(server, 0)
"""
"""Owns a socket as systemd does, and gives it to one server after another."""


def test_server_restarted_on_a_systemd_socket_accepts_connections() -> None:
    port = free_port()
    command = [sys.executable, "-c", SERVICE_MANAGER, str(port)]
    with running_command(command, port, {}) as manager:
        first = int(children_of(manager.process.pid))
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: children_of(manager.process.pid).strip() not in ("", str(first)))
        assert post(port, ask()).status == 200
        os.kill(int(children_of(manager.process.pid)), signal.SIGTERM)
        assert manager.process.wait(PATIENCE_S) == 0
