"""Server processes on loopback ports of their own: started together, ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from app.load.client import exchange
from config.settings import TABLE

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 4.0
LOOK_AGAIN_S = 0.02
TAIL_BYTES = 4096
TRIES = 3
"""Ports that a server is started on, one after the other, when somebody else has taken them."""
TAKEN = ("in use", "address already")

SETTINGS = {name for row in TABLE for name in row.env} - {"HF_TOKEN"}
STRANGE = ("SIM_", "GUNICORN_", "VLLM_", "POD_", "OTEL_", "UNDERSTUDY_", "WEB_CONCURRENCY")
"""Variables of servers, and how others of theirs begin. The token of the hub is a person's."""

Command = Callable[[int], Sequence[str]]
"""The command line of a server that is to answer on a port."""


class FleetError(Exception):
    """A process that does not start or has ended, or an index that hears nothing; the text is one line."""


class Ports:
    """Ports that no one listened on when they were taken; `close` gives all of them back.

    On Linux each stays reserved: a socket is bound to it that never listens. The kernel then does not give
    the port to anybody who asks for any, but to a server that asks for this one and sets SO_REUSEADDR, as
    gunicorn and ZMQ do. Elsewhere another process may be faster.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self) -> int:
        """A port that this object has not given before."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        if sys.platform == "linux":
            self._reserved.append(reserved)
        else:
            reserved.close()
        return port

    def close(self) -> None:
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()


class ServerProcess:
    """One server. `address` (host:port) may be another one after a start that found its port taken."""

    def __init__(self, name: str, command: Command, port: int, environ: Mapping[str, str]) -> None:
        self.name = name
        self.command = command
        self.address = f"{HOST}:{port}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            command(port),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # A Ctrl-C concerns the fleet, which ends its processes itself.
            start_new_session=True,
        )

    def is_healthy(self) -> bool:
        try:
            return exchange(self.address, "GET", "/health", timeout_s=1.0)[0] == 200
        except OSError:
            return False

    def end(self) -> str | None:
        """How it has ended, in one line with the last of its log; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"{self.name} ({self.address}) ended with status {status}: {self.last_line()}"

    def last_line(self) -> str:
        """The last line of the log that tells of an error, or the last one of all."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it has logged nothing"])[-1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it has started, while it runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def close_log(self) -> None:
        self._log.close()


class Processes:
    """Servers that all end when the block ends, however it does."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """`now` gives seconds, `sleep` waits for so many."""
        self._now, self._sleep = now, sleep
        self.servers: list[ServerProcess] = []
        """All that were started, in that order."""
        self.ports = Ports()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, command: Command) -> ServerProcess:
        """Start a server on a free port; `wait` for it before use."""
        server = ServerProcess(name, command, self.ports.take(), inherited(os.environ))
        self.servers.append(server)
        return server

    def wait(self, server: ServerProcess, limit_s: float = START_LIMIT_S) -> ServerProcess:
        """Until it answers; the server that does. FleetError when it ends or takes longer than `limit_s`."""
        give_up_s = self._now() + limit_s
        for tried in range(TRIES):
            while (ended := server.end()) is None:
                if server.is_healthy():
                    return server
                if self._now() > give_up_s:
                    raise FleetError(
                        f"{server.name} is not healthy after {limit_s:g} s: {server.last_line()}"
                    )
                self._sleep(LOOK_AGAIN_S)
            if tried == TRIES - 1 or not any(words in ended.lower() for words in TAKEN):
                break
            self.servers.remove(server)
            server.close_log()
            server = self.start(server.name, server.command)
        raise FleetError(ended)

    def check(self) -> None:
        """FleetError when one of them has ended."""
        for server in self.servers:
            if ended := server.end():
                raise FleetError(ended)

    def close(self) -> None:
        """End all of them: by SIGTERM, and by SIGKILL what still runs after `STOP_LIMIT_S`."""
        try:
            for server in self.servers:
                server.signal(signal.SIGTERM)
            give_up_s = self._now() + STOP_LIMIT_S
            while self._now() < give_up_s and any(server.end() is None for server in self.servers):
                self._sleep(LOOK_AGAIN_S)
        finally:
            # Reached by a second Ctrl-C, too.
            for server in self.servers:
                server.signal(signal.SIGKILL)
            for server in self.servers:
                server.process.wait()
                server.close_log()
            self.servers.clear()
            self.ports.close()


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: what is set there for another server must not change this one.

    It finds this very code, whatever the working directory; paths in flags stay relative to that.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in SETTINGS and not name.startswith(STRANGE)
    }
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))}
