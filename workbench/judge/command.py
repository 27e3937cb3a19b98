"""`understudy judge`: compares an export of a load tool with the server's journal."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import astuple

from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, as_command, number_of
from workbench.judge.clocks import align
from workbench.judge.exports import read_export
from workbench.judge.matching import match
from workbench.judge.served import read_journal, round_trip_s
from workbench.judge.verdict import RequestTimes, Verdict, answered_pairs, judge
from workbench.load.output_files import (
    STDOUT,
    atomic_file,
    check_output_paths,
    write_results,
    write_rows,
)
from workbench.load.tables import markdown

ABOUT = """\
Compare what a load tool reports with the truth of the server, request by request (docs/judge.md).
EXPORT is a file of GuideLLM, AIPerf, inference-perf, vllm bench serve or Locust. The server must
run with --journal N, for at least the requests of the run.
"""
DEFAULT_SERVER = "http://127.0.0.1:8000"
GOOD_ALIGNMENT_MS = 1.0
MAX_DIFFERENCE_MS = 1e9
"""Largest difference of two clocks that show the time of day: above, one has another zero."""
MAX_NAMES = 5
"""Most requests that a line of the report names."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; returns 1 if the tool added more than `--max-added-ms`."""
    options = make_parser().parse_args(argv)
    outputs = [options.out]
    if options.json != STDOUT:
        outputs.append(options.json)
    check_output_paths(outputs, [options.export])
    export = read_export(options.export)
    network_s = None
    if options.rtt_ms is not None:
        network_s = options.rtt_ms / 1000
    elif "://" in options.journal:
        network_s = round_trip_s(options.journal)
    journal = read_journal(options.journal, options.admin_key)
    matches = match(options.export, export, journal)
    alignment = align(options.export, answered_pairs(matches), export.has_unix_times)
    verdict, rows = judge(export, matches, alignment, network_s)
    with write_results(options.json, verdict, report(verdict)):
        if options.out is not None:
            with atomic_file(options.out) as partial:
                write_rows(partial, RequestTimes.__struct_fields__, map(_cells, rows))
    return _status(verdict, options.max_added_ms)


def _status(verdict: Verdict, max_added_ms: float | None) -> int:
    if max_added_ms is None:
        return 0
    comparison = verdict.latencies.get("TTFT") or verdict.latencies.get("E2E")
    if comparison is None:
        raise ConfigError("--max-added-ms: the export contains no latencies")
    if comparison.added.p50 <= max_added_ms:
        return 0
    raise ConfigError(
        f"the median added time is {comparison.added.p50:g} ms, which exceeds {max_added_ms:g} ms"
    )


def _cells(row: RequestTimes) -> list[object]:
    cells: list[object] = []
    for value in astuple(row):
        if isinstance(value, float):
            value = f"{value:.6f}"
        cells.append("" if value is None else value)
    return cells


def report(verdict: Verdict) -> str:
    """Returns the report as text with Markdown tables."""
    lines = [_matching_line(verdict), _clock_line(verdict)]
    lines += _failures(verdict)
    if verdict.latencies:
        rows = [["ms", "tool p50", "server p50", "added p50", "added p90", "added max"]]
        for name, comparison in verdict.latencies.items():
            figures = [comparison.tool.p50, comparison.server.p50, *astuple(comparison.added)]
            rows.append([name, *map(_shown, figures)])
        lines += ["", markdown(rows)]
    rows = [["ms", "p50", "p90", "max"]]
    for name, spread in verdict.parts.items():
        rows.append([name, *map(_shown, astuple(spread))])
    lines += ["", markdown(rows), "", *_conclusions(verdict)]
    return "\n".join(lines)


def _matching_line(verdict: Verdict) -> str:
    line = f"{verdict.tool}: {verdict.matched} of {verdict.requests} requests found in the journal"
    return f"{line}, by {verdict.matched_by}"


def _clock_line(verdict: Verdict) -> str:
    width = f"{verdict.clock_uncertainty_ms:.2f} ms"
    difference_ms = verdict.clock_difference_ms
    if verdict.is_same_clock:
        line = f"Clocks: tool and server have the same, within {width}"
    elif abs(difference_ms) < MAX_DIFFERENCE_MS:
        direction = "ahead of" if difference_ms > 0 else "behind"
        line = f"Clocks: the server's is {abs(difference_ms):,.2f} ms {direction} the tool's"
        line += f", within {width}"
    else:
        line = f"Clocks: the tool's has a zero of its own; aligned within {width}"
    if verdict.clock_drift_ppm:
        line += f", and gains {verdict.clock_drift_ppm:+.1f} microseconds per second"
    if verdict.clock_uncertainty_ms > GOOD_ALIGNMENT_MS:
        line += ". The fastest request was slow on its way: the parts there and back are uncertain"
    return line


def _failures(verdict: Verdict) -> list[str]:
    lines = list(verdict.notes)
    if verdict.not_served:
        count = len(verdict.not_served)
        lines.append(
            f"Not in the journal: {count} ({_names(verdict.not_served)}): they did not reach the"
            " server, several have the same ID, or --journal is too small"
        )
    if verdict.not_reported:
        count = len(verdict.not_reported)
        lines.append(f"Not in the export: {count} ({_names(verdict.not_reported)})")
    if verdict.outside:
        lines.append(f"In the journal before or after the run: {verdict.outside}")
    if verdict.failed:
        line = f"Failed at the tool: {verdict.failed}"
        if verdict.failed_but_answered:
            line += f", of which the server answered {verdict.failed_but_answered} with 200"
        lines.append(line)
    return lines


def _names(names: Sequence[str]) -> str:
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += ", ..."
    return text


def _conclusions(verdict: Verdict) -> list[str]:
    lines = []
    for name in ("TTFT", "E2E"):
        comparison = verdict.latencies.get(name)
        if comparison is not None:
            added_ms = comparison.added.p50
            share = 100 * added_ms / max(comparison.tool.p50, 1e-9)
            lines.append(
                f"Tool and network add {added_ms:.2f} ms to the median {name}, {share:.1f}% of it."
            )
            break
    if verdict.overhead_ms is not None:
        lines.append(
            f"A round trip of the network takes {verdict.network_ms:.2f} ms, so"
            f" {verdict.overhead_ms:.2f} ms are overhead of the tool itself."
        )
    else:
        lines.append(
            "The network was not measured: give --journal URL on the tool's machine, or --rtt-ms."
        )
    late = verdict.parts.get("tool: planned to sent")
    if late is not None:
        lines.append(
            f"Requests were sent {late.p50:.2f} ms after the planned moment (median; at most"
            f" {late.max:.2f} ms): the tool's latencies do not count this."
        )
    if verdict.slowest:
        lines.append(f"Most time was added to {verdict.slowest}.")
    return lines


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:.2f}"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = FlagParser(prog=f"{COMMAND} judge", description=ABOUT, allow_abbrev=False)
    parser.examples = (f"{COMMAND} judge run.jsonl --journal http://localhost:8000",)
    add = parser.add_argument
    add("export", metavar="EXPORT", help="file of the load tool, optionally compressed by gzip")
    add(
        "--journal",
        default=DEFAULT_SERVER,
        metavar="URL_OR_FILE",
        help=f"the server, or a stored response of GET /admin/journal [{DEFAULT_SERVER}]",
    )
    add("--admin-key", metavar="KEY", help="key for the routes under /admin")
    add(
        "--rtt-ms",
        type=number_of(0, 1e6),
        metavar="MS",
        help="round trip between tool and server [the fastest of 20 TCP connections to the URL]",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE.csv[.gz]",
        help="write the times of each request in seconds, one line per request",
    )
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the result as JSON; - prints it instead of the text",
    )
    add(
        "--max-added-ms",
        type=number_of(0, 1e6),
        metavar="MS",
        help="exit with status 1 if the median added time is longer",
    )
    return parser
