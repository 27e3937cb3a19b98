"""Requests per second of short replies that are not streamed, with known and new prompts.

With --all, of every family of routes (`benchmarks.families`), beside aimock where npm is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import closed_loop, cores
from benchmarks.arrivals import quantile
from benchmarks.connections import chat, completion
from benchmarks.families import AIMOCK_FIXTURES, FAMILIES, SCRIPT, requests_of
from benchmarks.options import add_other, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, middle_ratio, number, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server, bare, free_port, ours_and_other, running

WARM_UP_S = 1.0
AIMOCK = "@copilotkit/aimock@1.43.0"
KINDS = ("chat-known", "chat-new", "completion-known", "completion-new")
COLUMNS = (
    *("server", "requests/s", "ratio", "CPU µs/request", "CPU ratio"),
    *("p50 ms", "p99 ms", "server CPU", "client CPU"),
)


@dataclass(frozen=True, slots=True)
class Round:
    """One server, once."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    server_cpu: float
    client_cpu: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(streams=options.connections)
    if options.all:
        compare_families(load, options)
        return 0
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server)
            for server in (bare(load), *ours_and_other(load, options.other))
        ]
        for kind in options.kinds:
            title = f"Short replies, {kind.replace('-', ', ')} prompt, {options.connections} connections"
            compare(title, servers, _requests(kind, options.tokens), options)
    return 0


def compare_families(load: Load, options: argparse.Namespace) -> None:
    """Shows a table for each family of `options.families`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        script = folder / "script.yaml"
        script.write_text(SCRIPT, "utf-8")
        reference = stack.enter_context(bare(load))
        settings = {"SIM_EMBEDDINGS_WITH_CHAT": "true"}
        usual = [
            stack.enter_context(server) for server in ours_and_other(load, options.other, settings)
        ]
        settings = {"SIM_SCRIPT": str(script)}
        scripted = [
            stack.enter_context(server) for server in ours_and_other(load, options.other, settings)
        ]
        command = aimock_command()
        if command and "scripted reply" in options.families:
            scripted.append(stack.enter_context(aimock(command, folder)))
        for family in options.families:
            servers = scripted if family == "scripted reply" else usual
            title = f"{family}, new messages, {options.connections} connections"
            compare(title, [reference, *servers], requests_of(family), options)


def aimock_command() -> Sequence[str]:
    """Returns the command of aimock, which npm installs into its cache; empty without npm."""
    npm = shutil.which("npm")
    node = shutil.which("node")
    if npm is None or node is None:
        return ()
    words = [npm, "exec", "--yes", f"--package={AIMOCK}", "-c", "command -v llmock"]
    path = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return (node, path)


@contextmanager
def aimock(command: Sequence[str], folder: Path) -> Iterator[Server]:
    """Starts aimock with one fixture, which gives the reply of `SCRIPT`."""
    fixtures = folder / "fixtures.json"
    fixtures.write_text(json.dumps(AIMOCK_FIXTURES), "utf-8")
    port = free_port()
    flags = ["--port", str(port), "--fixtures", str(fixtures), "--log-level", "silent"]
    with running("aimock", [*command, *flags], port, {}) as server:
        yield server


def _requests(kind: str, tokens: int) -> Iterator[bytes]:
    """Requests without an end; a new prompt is eight words and a number that no request before it
    had.
    """
    route, prompts = kind.split("-")
    new = (f"What is new about the number {n} today?" for n in count())
    texts = repeat("hi") if prompts == "known" else new
    for text in texts:
        yield chat(tokens, False, text) if route == "chat" else completion(tokens, text)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("requests", __doc__)
    flags.add_argument("--connections", type=int, default=32)
    flags.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    flags.add_argument("--tokens", type=int, default=5, help="longest reply")
    flags.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is asked")
    flags.add_argument("--all", action="store_true", help="measure families of routes instead")
    flags.add_argument(
        "--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES), help="for --all"
    )
    add_other(flags)
    return flags.parse_args(argv)


def compare(
    title: str, servers: Sequence[Server], requests: Iterator[bytes], options: argparse.Namespace
) -> None:
    """Load the servers in turns with `requests`, which do not end, and show a table.

    The first server is the reference. `options` are --rounds, --connections and --seconds.
    """
    warnings: list[str] = []
    for server in servers:
        closed_loop.run(server.port, options.connections, WARM_UP_S, requests, streams=False)
    rounds = interleaved(
        servers, options.rounds, lambda server: _measure(server, requests, options, warnings)
    )
    _show(title, rounds, warnings)


def _measure(
    server: Server, requests: Iterator[bytes], options: argparse.Namespace, warnings: list[str]
) -> Round:
    """One round; what disturbed it is added to `warnings`."""
    with used_by(server.worker) as use:
        run = closed_loop.run(
            server.port, options.connections, options.seconds, requests, streams=False
        )
    warnings += run.client.warnings() + use.warnings(server.name)
    return Round(
        per_s=run.units / run.wall_s,
        cpu_us=use.cpu_s / run.units * 1e6,
        p50_ms=quantile(run.latencies_ms, 0.5),
        p99_ms=quantile(run.latencies_ms, 0.99),
        server_cpu=min(1.0, use.cpu_s / run.wall_s),
        client_cpu=run.client.cpu,
    )


def _show(title: str, rounds: dict[Server, list[Round]], warnings: list[str]) -> None:
    reference = next(iter(rounds.values()))
    rows = []
    for server, seen in rounds.items():
        row = medians(seen)
        rows.append(
            (
                server.name,
                number(row.per_s, 0),
                middle_ratio(
                    [round_.per_s for round_ in seen], [round_.per_s for round_ in reference]
                ),
                number(row.cpu_us, 0),
                middle_ratio(
                    [round_.cpu_us for round_ in seen], [round_.cpu_us for round_ in reference]
                ),
                number(row.p50_ms),
                number(row.p99_ms),
                share(row.server_cpu),
                share(row.client_cpu),
            )
        )
    show(title, COLUMNS, rows, warnings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
