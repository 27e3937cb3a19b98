"""A real server in a process of its own, on a free port, for as long as a `with` block lasts."""

import http.client
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import IO

from tests.forked_server import ForkedServer

ROOT = Path(__file__).parents[1]
QUICK_STEPS = Path(__file__).with_name("quick-steps.yaml")
SEED = "7"
"""Of servers that are not told another: what they say is the same each time."""
GENERAL_WAY = "UNDERSTUDY_TESTS_GENERAL_WAY"
"""Set by --general-way, for servers of every kind."""
SERVER_PORTS = range(16_000, 32_000)
PORTS_A_WORKER = 2_000
"""How many of these each process of pytest-xdist has to itself:

a port is free until a server is there.
"""
NEIGHBOURS = 4
"""Largest number of neighbouring ports that one test asks for."""
FORKED = ("app", "app.entrypoint", "gunicorn")
"""Modules that `server_template` can run."""
FOR_PYTHON = ("PYTHON", "LD_", "MALLOC_")
"""Beginnings of variables that a process reads before its first module."""
OUR_MODULES = ("PYTHONPATH", str(ROOT))
"""A variable without an effect on a fork, which finds our modules in any case."""
HASH_SEED = "PYTHONHASHSEED"
"""Also a setting of the server, on whose answers the order of sets has no influence."""
START_LIMIT_S = 40.0
STOP_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server; `process` is gunicorn's arbiter."""

    port: int
    process: subprocess.Popen[bytes] | ForkedServer
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """All that the server has written to stdout and stderr so far."""
        return self.log_file.read_text()

    def stop(self, timeout_s: float = STOP_LIMIT_S) -> int:
        """SIGTERM, then the exit status. subprocess.TimeoutExpired when it goes on running."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[RunningServer]:
    """`python -m app` with `flags`; `env` is added to an environment without SIM_ variables.

    Ready (GET /health answers) inside the block, stopped by SIGTERM after it. RuntimeError with the
    log when it does not start or does not stop.
    """
    port = free_port()
    command = [sys.executable, "-m", "app", "--host", "127.0.0.1", "--port", str(port), *flags]
    with running_command(command, port, env or {}) as server:
        yield server


@contextmanager
def running_image(*words: str, env: Mapping[str, str] | None = None) -> Iterator[RunningServer]:
    """What the container's entry point makes of `words`, such as vLLM's command line.

    As `running_server`.
    """
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "app.entrypoint",
        *words,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with running_command(command, port, env or {}) as server:
        yield server


@contextmanager
def running_gunicorn(
    *arguments: str, env: Mapping[str, str] | None = None, ports: int = 1
) -> Iterator[RunningServer]:
    """`gunicorn wsgi:app` with `arguments`; settings are SIM_ variables in `env`. As
    `running_server`.

    Its port is the first of `ports` that are free.
    """
    port = free_port(ports)
    command = [sys.executable, "-m", "gunicorn", *arguments, "wsgi:app"]
    env = {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port), **(env or {})}
    with running_command(command, port, env) as server:
        yield server


def free_port(ports: int = 1) -> int:
    """The first of so many neighbouring TCP ports that nobody listens on now.

    It lies below the ports that the kernel gives to clients (32768 and above on Linux): one of
    those may be taken by a connection of these very tests before the server is there. No port is
    returned twice until all were: a test may ask for several before any of them is in use.
    """
    assert ports <= NEIGHBOURS
    while True:
        first = next(_own_ports())
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + ports):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@cache
def _own_ports() -> Iterator[int]:
    """The ports of this process in random order, repeated, each the first of `NEIGHBOURS`."""
    ports = SERVER_PORTS
    if worker := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw"):
        first = int(worker) * PORTS_A_WORKER % len(SERVER_PORTS)
        ports = SERVER_PORTS[first : first + PORTS_A_WORKER]
    firsts = ports[::NEIGHBOURS]
    return cycle(secrets.SystemRandom().sample(firsts, len(firsts)))


@contextmanager
def running_command(
    command: Sequence[str],
    port: int,
    env: Mapping[str, str],
    start_limit_s: float = START_LIMIT_S,
    cwd: Path = ROOT,
) -> Iterator[RunningServer]:
    """A server that `command` starts in the folder `cwd`, and that listens on `port`.

    As `running_server`.
    """
    general = {"SIM_FAST_PATH": "false"} if os.environ.get(GENERAL_WAY) else {}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIM_")}
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = started(command, {**inherited, "SIM_SEED": SEED, **general, **env}, log, cwd)
        server = RunningServer(port, process, Path(log.name))
        try:
            _wait_until_healthy(server, start_limit_s)
            yield server
            with suppress(subprocess.TimeoutExpired):
                if process.poll() is None:
                    server.stop()
            if process.poll() is None:
                raise RuntimeError(
                    f"the server runs {STOP_LIMIT_S:g} s after SIGTERM:\n{server.log()}"
                )
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _is_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Returns whether a fork of this interpreter can be the server."""
    if [*command[:2]] != [sys.executable, "-m"] or command[2] not in FORKED:
        return False
    if command[2] == "gunicorn" and not _has_our_settings(command):
        return False
    return all(
        os.environ.get(name) == value or name == HASH_SEED or (name, value) == OUR_MODULES
        for name, value in env.items()
        if name.startswith(FOR_PYTHON)
    )


def _has_our_settings(command: Sequence[str]) -> bool:
    """Returns whether gunicorn serves our application, by a configuration that includes ours."""
    if command[-1] != "wsgi:app":
        return False
    if "-c" not in command:
        return True
    configuration = Path(command[command.index("-c") + 1])
    return "gunicorn.conf.py" in configuration.read_text()


def started(
    command: Sequence[str], env: Mapping[str, str], log: IO[bytes], cwd: Path = ROOT
) -> subprocess.Popen[bytes] | ForkedServer:
    """Starts a server in a session of its own; forks it if `server_template` has its modules."""
    if _is_forked(command, env):
        return ForkedServer(
            command[2], command[3:], env=env, stdout=log.name, stderr=log.name, cwd=cwd
        )
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def ending(
    process: subprocess.Popen[bytes],
    is_healthy: Callable[[], bool],
    patience_s: float = START_LIMIT_S,
) -> Iterator[None]:
    """Waits until `process`, a session of its own, is healthy; it has to end by SIGTERM with status
    0.
    """
    try:
        deadline = time.monotonic() + patience_s
        while not is_healthy():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(server: RunningServer, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not _is_healthy(server.port):
        if server.process.poll() is not None:
            raise RuntimeError(
                f"the server exited with status {server.process.returncode}:\n{server.log()}"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server is not healthy after {limit_s:g} s:\n{server.log()}")
        time.sleep(0.02)


def _is_healthy(port: int) -> bool:
    for connection in (
        http.client.HTTPConnection("127.0.0.1", port, timeout=1),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=1, context=_unverified()),
    ):
        with closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except ConnectionRefusedError:
                return False  # by TLS it would be refused, too
            except (OSError, http.client.HTTPException):
                pass  # perhaps the server speaks TLS
    return False


@cache
def _unverified() -> ssl.SSLContext:
    """A context for servers with certificates of their own. Each takes milliseconds to create."""
    return ssl._create_unverified_context()
