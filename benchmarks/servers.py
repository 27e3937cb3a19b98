"""Servers under test:

started on a free port and on the server's core, stopped when the block ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks import cores
from benchmarks.connections import HOST, exchange, get
from benchmarks.processes import children
from benchmarks.replies import RefusedError

ROOT = Path(__file__).parents[1]
START_LIMIT_S = 20.0
STOP_LIMIT_S = 15.0
OURS = "understudy"
BARE = "bare gunicorn-gevent"
GUNICORN = (sys.executable, "-m", "gunicorn")
WSGI = (*GUNICORN, "wsgi:app")
MODULE = (sys.executable, "-m", "app")
"""The two ways to start Understudy."""


@dataclass(frozen=True, slots=True)
class Load:
    """The rhythm, seconds, and the number of streams that a server is made ready for."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens: int = 100
    streams: int = 256

    @property
    def length_s(self) -> float:
        """How long one stream should take."""
        return self.ttft_s + self.tokens * self.itl_s


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `arbiter` and `worker` are process ids, the same one for a single
    process.

    `role_chunks`: how many chunks of a stream come before its first token's. `start_s`: until the
    first 200.
    """

    name: str
    port: int
    arbiter: int
    worker: int
    role_chunks: int
    start_s: float


@contextmanager
def ours(
    load: Load,
    command: Sequence[str] = WSGI,
    name: str = OURS,
    root: Path = ROOT,
    extra_settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Understudy with its defaults: own worker, metrics on.

    `root` is the checkout that serves, `extra_settings` are further variables.
    """
    port = free_port()
    settings = {
        "SIM_HOST": HOST,
        "SIM_PORT": str(port),
        "SIM_MODEL": "m",
        "SIM_TIME_TO_FIRST_TOKEN": f"{load.ttft_s}s",
        "SIM_INTER_TOKEN_LATENCY": f"{load.itl_s}s",
        "SIM_MAX_NUM_SEQS": str(load.streams),
    }
    with running(
        name, command, port, {**settings, **extra_settings}, role_chunks=1, root=root
    ) as server:
        yield server


def ours_and_other(
    load: Load, other: Path | None, extra_settings: Mapping[str, str] = MappingProxyType({})
) -> list[AbstractContextManager[Server]]:
    """This checkout and, when one is given, the `other`, each to be entered.

    `extra_settings` are further variables.
    """
    roots = {OURS: ROOT} | ({f"{OURS} of {other.name}": other.resolve()} if other else {})
    return [
        ours(load, name=name, root=root, extra_settings=extra_settings)
        for name, root in roots.items()
    ]


@contextmanager
def bare(load: Load) -> Iterator[Server]:
    """benchmarks/bare.py under gunicorn's stock gevent worker."""
    port = free_port()
    settings = {
        "BARE_TTFT_S": str(load.ttft_s),
        "BARE_ITL_S": str(load.itl_s),
        "BARE_TOKENS": str(load.tokens),
    }
    flags = ["-c", os.devnull, "-k", "gevent", "--no-control-socket", "-b", f"{HOST}:{port}"]
    room = ["--worker-connections", "16384", "--backlog", "4096", "--keep-alive", "75"]
    with running(BARE, [*GUNICORN, *flags, *room, "benchmarks.bare:app"], port, settings) as server:
        yield server


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    port: int,
    settings: Mapping[str, str],
    role_chunks: int = 0,
    root: Path = ROOT,
) -> Iterator[Server]:
    """Any server. RuntimeError with its log when it does not answer within `START_LIMIT_S`."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("SIM_", "GUNICORN_"))
    }
    with tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            command, cwd=root, env={**inherited, **settings}, stdout=log, stderr=log
        )
        try:
            cores.pin_server(process.pid)
            _wait_until_ready(process, port)
            start_s = time.monotonic() - begun
            worker = (children(process.pid) or [process.pid])[-1]
            yield Server(
                name,
                port,
                arbiter=process.pid,
                worker=worker,
                role_chunks=role_chunks,
                start_s=start_s,
            )
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{name}: {error}\n{log.read().decode(errors='replace')}") from error
        finally:
            _stop(process)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"ended with status {process.returncode}")
        with (
            suppress(OSError, RefusedError),
            socket.create_connection((HOST, port), timeout=5) as sock,
        ):
            exchange(sock, get("/health"))
            return
        time.sleep(0.005)
    raise RuntimeError(f"did not answer within {START_LIMIT_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
