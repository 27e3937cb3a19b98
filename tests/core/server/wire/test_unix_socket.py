"""A server at a Unix socket (`uds`) opens no TCP port, and survives reloads and stale files."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from app.core.server.gunicorn.healthcheck import main as healthcheck
from tests.forked_server import run_forked
from tests.running_server import (
    ROOT,
    SEED,
    START_LIMIT_S,
    STOP_LIMIT_S,
    RunningServer,
    free_port,
    started,
)

LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: pytest's own may be too long for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="uds-") as path:
        yield Path(path)


def ask(path: Path, method: str, target: str, body: object = None) -> tuple[int, bytes]:
    """Returns status and body of one request. OSError when nobody listens."""
    with closing(http.client.HTTPConnection("localhost", timeout=10)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
        connection.sock.connect(str(path))
        connection.request(
            method,
            target,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        return response.status, response.read()


def wait_for_lines(server: RunningServer, text: str, count: int = 1) -> None:
    """Waits until the server has logged a text so many times."""
    deadline = time.monotonic() + START_LIMIT_S
    while server.log().count(text) < count:
        assert server.process.poll() is None, server.log()
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


@contextmanager
def socket_server(
    path: Path, *command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[RunningServer]:
    """Runs a command that serves at `path`; the server answers inside the block."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIM_")}
    environment = {**inherited, "SIM_SEED": SEED, **(env or {})}
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = started(command, environment, log, cwd=cwd)
        server = RunningServer(0, process, Path(log.name))
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while True:
                with suppress(OSError):
                    if ask(path, "GET", "/health")[0] == 200:
                        break
                assert process.poll() is None, server.log()
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.02)
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_LIMIT_S)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def serve_words(path: Path) -> list[str]:
    return ["serve", "Qwen/Qwen3-0.6B", "--served-model-name", "model", "--uds", str(path)]


def serve_command(path: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "app", *serve_words(path), *flags]


def listening_tcp_inodes() -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def sockets_of(pid: int) -> set[str]:
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    return sockets


def test_requests_are_served_only_on_the_unix_socket(folder: Path) -> None:
    path = folder / "vllm.sock"
    port = free_port()
    with socket_server(path, *serve_command(path, "--port", str(port), "--console")) as server:
        wait_for_lines(server, f"Listening at: unix:{path}")
        wait_for_lines(server, f" at unix:{path}; console: /console")
        assert not sockets_of(server.process.pid) & listening_tcp_inodes()
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
        body = {"model": "model", "prompt": "Hello", "max_tokens": 3}
        status, answer = ask(path, "POST", "/v1/completions", body)
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 3)
        server.process.send_signal(signal.SIGHUP)
        wait_for_lines(server, "model: model;", count=2)
        assert ask(path, "POST", "/v1/completions", body)[0] == 200
        assert server.stop() == 0
    assert not path.exists()


def test_relative_socket_path_is_resolved_in_the_working_folder(folder: Path) -> None:
    command = serve_command(Path("vllm.sock"))
    with socket_server(folder / "vllm.sock", *command, cwd=folder) as server:
        wait_for_lines(server, "Listening at: unix:vllm.sock")


def test_only_stale_socket_files_are_replaced(folder: Path) -> None:
    path = folder / "vllm.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    assert path.is_socket()
    with socket_server(path, *serve_command(path)):
        second = run_forked(*serve_words(path))
        assert second.returncode == 1
        assert second.stderr == f"error: cannot listen on unix:{path}: Address already in use\n"
        assert ask(path, "GET", "/health")[0] == 200


def test_uds_setting_and_gunicorn_bind_option_open_a_unix_socket(folder: Path) -> None:
    path = folder / "vllm.sock"
    gunicorn = (sys.executable, "-m", "gunicorn")
    env = {"SIM_UDS": str(path), "PORT": str(free_port())}
    with socket_server(path, *gunicorn, "wsgi:app", env=env) as server:
        assert not sockets_of(server.process.pid) & listening_tcp_inodes()
    command = [*gunicorn, "--bind", f"unix:{path}", "wsgi:app"]
    with socket_server(path, *command, env={"SIM_CONSOLE": "true"}) as server:
        wait_for_lines(server, f" at unix:{path}; console: /console")


def test_health_check_uses_the_unix_socket(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "vllm.sock"
    environ = {"SIM_UDS": str(path)}
    with socket_server(path, *serve_command(path)):
        assert healthcheck([], environ) == 0
    assert healthcheck([], environ) == 1
    assert capsys.readouterr().err == f"not healthy: unix:{path}\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("file", "the file exists and is not a socket"),
        ("no folder", "its folder does not exist"),
        ("long", "the path must have at most 107 bytes"),
    ],
)
def test_unusable_socket_path_prevents_startup(folder: Path, make: str, reason: str) -> None:
    path = folder / "vllm.sock"
    if make == "file":
        path.write_text("")
    elif make == "no folder":
        path = folder / "missing" / "vllm.sock"
    else:
        path = folder / ("x" * 107)
    ended = run_forked(*serve_words(path))
    assert ended.returncode == 1
    assert ended.stderr == f"error: cannot listen on unix:{path}: {reason}\n"


def test_bind_to_a_unix_socket_allows_only_one_rank(folder: Path) -> None:
    words = ("--bind", f"unix:{folder / 'vllm.sock'}", "wsgi:app")
    ended = run_forked(*words, module="gunicorn", env={"SIM_DATA_PARALLEL_SIZE": "2"})
    assert ended.returncode == 1
    assert (
        ended.stderr
        == "error: bind: a Unix socket serves only one rank and cannot be combined with grpc-port\n"
    )
