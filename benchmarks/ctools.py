"""Two tools in C that may lie beside the repository: a load client (sseload) and a pacing server
(csrv).

sseload takes the kernel's time stamps, so its own lateness is not charged to the server; csrv is
the limit of what one thread can do on the machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.arrivals import Pace, Rhythm
from benchmarks.client import ClientHealth
from benchmarks.servers import Load, Server, bare, free_port, ours_and_other, running
from benchmarks.streams import Observation, StreamPlan

CSRV = "C server"
NAN = float("nan")


@contextmanager
def csrv(program: Path, load: Load) -> Iterator[Server]:
    """The C server, pacing with the rhythm of `load`."""
    port = free_port()
    command = [str(program.resolve()), str(port), f"{load.itl_s * 1e3:g}", f"{load.ttft_s * 1e3:g}"]
    with running(CSRV, command, port, {}) as server:
        yield server


@contextmanager
def compared(load: Load, csrv_program: Path | None, other: Path | None) -> Iterator[list[Server]]:
    """The bare application, Understudy and, when they are given, an `other` checkout and the C
    server.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server) for server in (bare(load), *ours_and_other(load, other))
        ]
        if csrv_program:
            servers.append(stack.enter_context(csrv(csrv_program, load)))
        yield servers


def observe(program: Path, plan: StreamPlan, rhythm: Rhythm) -> Observation:
    """What sseload saw of a plan."""
    beat = {"-i": rhythm.itl_s, "-f": rhythm.ttft_s, "-s": plan.spread_s}
    flags = [text for flag, value_s in beat.items() for text in (flag, f"{value_s * 1e3:g}")]
    seen = _sseload(program, plan.port, plan.streams, plan.tokens, rhythm.skipped, *flags)
    ttft = seen["ttft_err_ms"] or {}
    error = seen["abs_err_ms"] or {}
    figures = Pace(
        chunks=seen["chunks"],
        speed=NAN,
        ttft_p50_ms=ttft.get("abs50", NAN),
        ttft_p99_ms=ttft.get("abs99", NAN),
        chunk_p50_ms=error.get("abs50", NAN),
        chunk_p99_ms=error.get("abs99", NAN),
        chunk_max_ms=max(abs(error.get("min", NAN)), abs(error.get("max", NAN))),
        drift_ms=NAN,
    )
    return Observation(figures, plan.streams - seen["dones"], True, _health(seen))


def burst(
    program: Path, port: int, streams: int, tokens: int, role_chunks: int, seconds: float
) -> tuple[float, ClientHealth]:
    """Chunks per second that sseload saw at zero latency, and how the client itself did."""
    seen = _sseload(program, port, streams, tokens, role_chunks, "-i", "0", "-d", f"{seconds:g}")
    return float(seen["chunks_s"]), _health(seen)


def _sseload(
    program: Path, port: int, streams: int, tokens: int, role_chunks: int, *flags: str
) -> dict[str, Any]:
    command = [
        str(program.resolve()),
        "-p",
        str(port),
        "-n",
        str(streams),
        "-t",
        str(tokens),
        "-S",
        str(role_chunks),
    ]
    extra = ["-k", "-x", ',"ignore_eos":true']
    printed = subprocess.run(
        [*command, *flags, *extra], check=True, capture_output=True, timeout=120
    ).stdout
    seen: dict[str, Any] = json.loads(printed)
    return seen


def _health(seen: dict[str, Any]) -> ClientHealth:
    lag = seen["client_lag_ms"] or {}
    return ClientHealth(
        cpu=seen["client_cpu"] / seen["elapsed"], waited=0.0, lag_p99_ms=lag.get("p99", 0.0)
    )
