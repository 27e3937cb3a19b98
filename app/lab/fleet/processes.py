"""Server processes on loopback ports, started and ended together."""

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

from app.serving.http.client import exchange
from config.settings import TABLE

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[3]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 4.0
LOOK_AGAIN_S = 0.02
TAIL_BYTES = 4096
TRIES = 3
"""Most ports that are tried for a server when another process has taken its port."""
TAKEN = ("in use", "address already")

SETTINGS = {name for row in TABLE for name in row.env} - {"HF_TOKEN"}
STRANGE = ("SIM_", "GUNICORN_", "VLLM_", "POD_", "OTEL_", "UNDERSTUDY_", "WEB_CONCURRENCY")
"""Variables that configure servers: names, and beginnings of names. `HF_TOKEN` stays, as the user's own."""

Command = Callable[[int], Sequence[str]]
"""Returns the command line of a server for a port."""


class FleetError(Exception):
    """A process failed to start or ended, or an index gets no events; the text is one line."""


class ServerProcess:
    """One server process and its log. `address` is host:port."""

    def __init__(self, name: str, command: Command, port: int, environ: Mapping[str, str]) -> None:
        self.name = name
        self.command = command
        self.address = f"{HOST}:{port}"
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            command(port),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
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
        """Returns the exit status and last log line of an ended process, as one line; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"{self.name} ({self.address}) ended with status {status}: {self.last_line()}"

    def last_line(self) -> str:
        """Returns the last line of the log with "error", else the last line."""
        size = os.fstat(self.log.fileno()).st_size
        tail = os.pread(self.log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it has logged nothing"])[-1]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, while it runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class Processes:
    """Server processes that end with the `with` block, also after an error."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """`now` returns seconds, `sleep` waits for seconds."""
        self._now, self._sleep = now, sleep
        self.servers: list[ServerProcess] = []
        """Servers in the order of their start."""
        self._reserved: list[socket.socket] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def port(self) -> int:
        """Returns a port that was free, each time another one, and reserves it until `close`.

        On Linux a socket that never listens stays bound to each port. The kernel then never picks the port
        for another process. A server that names the port and sets SO_REUSEADDR, as gunicorn and ZMQ do, gets
        it. On other systems another process may take the port first.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        if sys.platform == "linux":
            self._reserved.append(reserved)
        else:
            reserved.close()
        return port

    def start(self, name: str, command: Command) -> ServerProcess:
        """Starts a server on a free port; call `wait` before use."""
        server = ServerProcess(name, command, self.port(), inherited(os.environ))
        self.servers.append(server)
        return server

    def wait(self, server: ServerProcess, limit_s: float = START_LIMIT_S) -> ServerProcess:
        """Waits until the server is healthy, and returns it; on another port if its own was taken.

        Raises FleetError when the server ends or takes longer than `limit_s`.
        """
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
            server.log.close()
            server = self.start(server.name, server.command)
        raise FleetError(ended)

    def check(self) -> None:
        """Raises FleetError when a server has ended."""
        for server in self.servers:
            if ended := server.end():
                raise FleetError(ended)

    def close(self) -> None:
        """Ends all servers: by SIGTERM, and after `STOP_LIMIT_S` by SIGKILL."""
        try:
            for server in self.servers:
                server.signal(signal.SIGTERM)
            give_up_s = self._now() + STOP_LIMIT_S
            while self._now() < give_up_s and any(server.end() is None for server in self.servers):
                self._sleep(LOOK_AGAIN_S)
        finally:
            # A second Ctrl-C gets here, too.
            for server in self.servers:
                server.signal(signal.SIGKILL)
            for server in self.servers:
                server.process.wait()
                server.log.close()
            self.servers.clear()
            for reserved in self._reserved:
                reserved.close()
            self._reserved.clear()


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a server, without variables that configure servers.

    PYTHONPATH names this code, so that any working directory will do; paths in flags are relative to the
    working directory.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in SETTINGS and not name.startswith(STRANGE)
    }
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))}
