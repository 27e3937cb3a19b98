"""A server of its own in a process of its own, on a free port, for as long as a `with` block lasts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vllm_understudy import tree
from vllm_understudy.control import Json, Server

SEED = 7
"""Of a server that is not told another: in a test it says the same each time."""
PORTS = range(16_000, 32_000)
"""Below those that the kernel gives to clients: a connection of the test itself would take one of these."""
HOST = "127.0.0.1"
START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0


@contextmanager
def running_server(*words: str, **settings: Json) -> Iterator[Server]:
    """A server that answers inside the block and is gone behind it.

    `settings` are those of docs/configuration.md, `_` for `-`: `max_num_seqs=8`, `fault_rules=[...]`.
    `words` stand before them on the command line: `"serve", "Qwen/Qwen3-8B"` plays `vllm serve`.
    Variables SIM_... of the environment are not read. RuntimeError with the log when it does not start.
    """
    ranks = settings.get("data_parallel_size")
    port = free_port(ranks if isinstance(ranks, int) else 1)
    command = tree.command(*words, *flags({"host": HOST, "port": port, "seed": SEED, **settings}))
    key = settings.get("admin_key")
    tls = bool(settings.get("self_signed_certs") or settings.get("ssl_certfile"))
    with tempfile.NamedTemporaryFile(prefix="understudy-", suffix=".log") as log:
        server = Server(port, Path(log.name), str(key) if key else None, tls)
        process = subprocess.Popen(
            command,
            env=_variables(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_healthy(server, process)
            yield server
        finally:
            _end(process)


def flags(settings: dict[str, Json]) -> list[str]:
    """The command line that gives `settings`; None leaves one at its default."""
    words: list[str] = []
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *_texts(value)]
    return words


def _texts(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    return [json.dumps(value)]


def free_port(ports: int = 1) -> int:
    """The first of so many neighbouring TCP ports that nobody listens on now."""
    while True:
        first = secrets.choice(PORTS)
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + ports):
                probes.enter_context(socket.socket()).bind((HOST, port))
            return first


def _variables() -> dict[str, str]:
    return tree.environment({name: text for name, text in os.environ.items() if not name.startswith("SIM_")})


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not server.is_healthy():
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}:\n{server.log()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server is not healthy after {START_LIMIT_S:g} s:\n{server.log()}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM; what is not gone soon after, as with streams that nobody reads, is killed."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
