"""Server processes of a fleet, on loopback ports."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import gevent

from app.core.settings import settings_table
from app.shared.http_client import exchange
from workbench.fleet.isolation import Isolation

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 4.0
POLL_INTERVAL_S = 0.02
TAIL_BYTES = 4096
VARIABLE_PREFIXES = (
    "SIM_",
    "GUNICORN_",
    "VLLM_",
    "POD_",
    "OTEL_",
    "UNDERSTUDY_",
    "WEB_CONCURRENCY",
)
"""Prefixes of further variables that configure servers."""


class FleetError(Exception):
    """A process failed to start or ended, or an index gets no events; the text is one line."""


class ServerProcess:
    """One server process and its log. `address` is host:port."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        *,
        environ: Mapping[str, str],
        folder: str | None = None,
    ) -> None:
        self.name = name
        self.address = f"{HOST}:{port}"
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            # A Ctrl-C concerns the fleet, which ends its processes itself.
            start_new_session=True,
        )

    def is_healthy(self) -> bool:
        """Returns whether /health is answered with status 200."""
        with suppress(OSError):
            status, _ = exchange(self.address, "GET", "/health", timeout_s=1.0)
            return status == 200
        return False

    def check(self) -> None:
        """Raises FleetError when the process has ended."""
        status = self.process.poll()
        if status is not None:
            raise FleetError(
                f"{self.name} ({self.address}) exited with status {status}: {self.last_line()}"
            )

    def last_line(self) -> str:
        """Returns the last line of the log with "error", else the last line."""
        size = os.fstat(self.log.fileno()).st_size
        tail = os.pread(self.log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        lines = [line.strip() for line in tail.decode(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it has logged nothing"])[-1]


class Processes:
    """Server processes, in the order of their start."""

    def __init__(self) -> None:
        self.servers: list[ServerProcess] = []
        self._reserved: list[socket.socket] = []

    def port(self) -> int:
        """Returns a port that was free, each time another one, and reserves it until `close`.

        On Linux a socket that never listens keeps the port from other processes, but not from a
        server that names it and sets SO_REUSEADDR, as gunicorn and ZMQ do. Other systems refuse
        both.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        self._reserved.append(reserved)
        if sys.platform != "linux":
            reserved.close()
        return port

    def start(
        self, name: str, port: int, command: Sequence[str], isolation: Isolation | None = None
    ) -> ServerProcess:
        """Starts a server that listens at a port; call `wait` before use."""
        environ = server_environment(os.environ)
        folder = None
        if isolation is not None:
            environ = isolation.environment(environ)
            folder = isolation.folder
        server = ServerProcess(name, command, port, environ=environ, folder=folder)
        self.servers.append(server)
        return server

    def wait(self, server: ServerProcess, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the server is healthy.

        Raises:
            FleetError: The server ended, or is not healthy after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while not server.is_healthy():
            server.check()
            self.pause(
                deadline_s,
                f"{server.name} is not healthy after {timeout_s:g} s: {server.last_line()}",
            )

    def pause(self, deadline_s: float, error: str) -> None:
        """Waits a moment. Raises FleetError with the text `error` after the deadline."""
        if time.monotonic() > deadline_s:
            raise FleetError(error)
        gevent.sleep(POLL_INTERVAL_S)

    def check(self) -> None:
        """Raises FleetError when a process has ended."""
        for server in self.servers:
            server.check()

    def close(self) -> None:
        """Ends all servers: by SIGTERM, and after `STOP_TIMEOUT_S` by SIGKILL."""
        try:
            self._signal(signal.SIGTERM)
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline_s and any(
                server.process.poll() is None for server in self.servers
            ):
                gevent.sleep(POLL_INTERVAL_S)
        finally:
            # A second Ctrl-C gets here, too.
            self._signal(signal.SIGKILL)
            for server in self.servers:
                server.process.wait()
                server.log.close()
            for reserved in self._reserved:
                reserved.close()

    def _signal(self, number: signal.Signals) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(server.process.pid, number)


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without variables that configure servers.

    PYTHONPATH begins with the folder of this code.
    """
    # `HF_TOKEN` stays, as the user's own.
    setting_variables = {name for row in settings_table().rows for name in row.env} - {"HF_TOKEN"}
    inherited = {
        name: value
        for name, value in environ.items()
        if name not in setting_variables and not name.startswith(VARIABLE_PREFIXES)
    }
    paths = [str(ROOT)]
    if environ.get("PYTHONPATH"):
        paths.append(environ["PYTHONPATH"])
    return inherited | {"PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raises KeyboardInterrupt in this greenlet on SIGINT, SIGTERM and SIGHUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier_handlers = [signal.getsignal(number) for number in numbers]
    greenlet = gevent.getcurrent()
    watchers = [
        gevent.signal_handler(number, gevent.kill, greenlet, KeyboardInterrupt)
        for number in numbers
    ]
    try:
        yield
    finally:
        for watcher, number, handler in zip(watchers, numbers, earlier_handlers, strict=True):
            watcher.cancel()
            signal.signal(number, handler)
