"""Starts a server in a separate process on a free port, for the length of a `with` block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_understudy import tree
from vllm_understudy.control import Server
from vllm_understudy.ports import HOST, free_port
from vllm_understudy.rules import ControlError, Json

SEED = 7
"""Default seed: replies repeat from one test run to the next."""
JOURNAL = 1000
"""Default number of requests that a server keeps for `Server.requests`."""
START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0


@contextmanager
def running_server(*arguments: str, **settings: Json) -> Iterator[Server]:
    """Runs a server for the length of the block, and then checks that rules answered its requests.

    `settings` have the names of docs/reference-settings.md, `_` for `-`: `max_num_seqs=8`,
    `fault_rules=[...]`. `arguments` come first on the command line: `"serve", "Qwen/Qwen3-8B"`
    works as `vllm serve`. The server ignores SIM_... variables.

    Raises:
        RuntimeError: the server does not start; the message has its log.
        AssertionError: a test has set replies, and no rule answered a request of the block.
    """
    with unchecked_server(*arguments, **settings) as server:
        yield server
        if server.has_replies or server.is_strict:
            with suppress(ControlError):  # a server without a journal, or one that has ended
                server.assert_matched()


@contextmanager
def unchecked_server(*arguments: str, **settings: Json) -> Iterator[Server]:
    """Runs a server as `running_server` does, without the check at the end.

    Raises:
        RuntimeError: the server does not start; the message has its log.
    """
    ranks = settings.get("data_parallel_size")
    port = free_port(ranks) if isinstance(ranks, int) else free_port()
    defaults: dict[str, Json] = {"host": HOST, "port": port, "seed": SEED, "journal": JOURNAL}
    command = tree.command(*arguments, *flags({**defaults, **settings}))
    admin_key = None
    if settings.get("admin_key"):
        admin_key = str(settings["admin_key"])
    tls = bool(settings.get("self_signed_certs") or settings.get("ssl_certfile"))
    with tempfile.NamedTemporaryFile(prefix="understudy-", suffix=".log") as log:
        is_strict = settings.get("unmatched") == "error"
        server = Server(port, Path(log.name), admin_key, tls=tls, is_strict=is_strict)
        process = subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_healthy(server, process)
            server.log_start = len(server.log())
            yield server
        finally:
            server.mcp.close()
            _stop(process)


def flags(settings: dict[str, Json]) -> list[str]:
    """Returns the command line for `settings`; None leaves a setting at its default."""
    arguments: list[str] = []
    for name, value in settings.items():
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", *_flag_values(value)]
    return arguments


def _flag_values(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    return [json.dumps(value)]


def _environment() -> dict[str, str]:
    variables = {name: text for name, text in os.environ.items() if not name.startswith("SIM_")}
    return tree.environment(variables)


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not server.is_healthy():
        if process.poll() is not None:
            raise RuntimeError(
                f"the server did not start (exit status {process.returncode}): "
                f"{server.log().removeprefix('error: ').strip()}"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the server did not become healthy within {START_LIMIT_S:g} s:\n{server.log()}"
            )
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, and SIGKILL after `STOP_LIMIT_S`: streams without a reader delay the end."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
