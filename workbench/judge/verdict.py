"""The time that a load tool and the network add to the work of the server: `judge`.

All added times of TTFT, E2E and TPOT are differences of durations, so they do not depend on the
alignment of the clocks. The times on the way there and back do.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from app.shared.statistics import quantile
from workbench.judge.clocks import Alignment
from workbench.judge.matching import Matches, Pair
from workbench.runs.tool_requests import Export

MIN_GAPS = 2
"""Fewest gaps between tokens for a time per token."""
PARTS = {
    "tool: planned to sent": "late_s",
    "tool and network: sent to arrived": "out_s",
    "server: in the queue": "queue_s",
    "server: to the first token": "prefill_s",
    "server: first to last token": "decode_s",
    "server: token to its write": "write_s",
    "network and tool: written to received": "back_s",
}
"""Fields of `RequestTimes` by the name of the part, in order of time."""


class RequestTimes(Struct, kw_only=True):
    """The times of one request in seconds; None for a time that was not measured."""

    place: str
    id: str
    late_s: float | None
    """From the planned moment to sending."""
    out_s: float
    """From sending to the arrival at the server."""
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    write_s: float | None
    """From the first token of the engine to its write; of a whole answer, from the last token."""
    back_s: float | None
    """From the write of the first token to its receipt; without streaming, of the answer."""
    tool_ttft_s: float | None
    server_ttft_s: float | None
    tool_e2e_s: float | None
    server_e2e_s: float | None
    tool_tpot_s: float | None
    server_tpot_s: float | None
    preemptions: int | None
    cached_tokens: int | None


class Spread(Struct):
    """Median, 90th percentile and maximum, in milliseconds."""

    p50: float
    p90: float
    max: float


class Comparison(Struct):
    """A latency as the tool and as the server measured it, and their difference per request."""

    tool: Spread
    server: Spread
    added: Spread


class Verdict(Struct, kw_only=True):
    """The result of a comparison; times in milliseconds."""

    tool: str
    requests: int
    matched: int
    matched_by: str
    not_served: list[str]
    """Places of the requests that the journal does not have."""
    not_reported: list[str]
    """Ids of entries of the journal that the export does not have."""
    outside: int
    """Number of entries of the journal before and after the run."""
    failed: int
    """Requests that the tool counts as failed."""
    failed_but_answered: int
    """Of these, requests that the server answered with status 200."""
    clock_difference_ms: float
    """The server's clock minus the tool's."""
    clock_uncertainty_ms: float
    clock_drift_ppm: float
    is_same_clock: bool
    latencies: dict[str, Comparison]
    """TTFT, TPOT and E2E."""
    parts: dict[str, Spread]
    """Parts of a request, by name."""
    network_ms: float | None
    """A round trip of the network; None if it was not measured."""
    overhead_ms: float | None
    """Median of the time that the tool itself adds; None without `network_ms`."""
    slowest: str
    """The request with most added time."""
    notes: Sequence[str]
    """Remarks on the export."""


def times_of(pair: Pair, alignment: Alignment) -> RequestTimes:
    """Returns the times of a request that was answered on both sides."""
    tool = pair.tool
    served = pair.served
    first_sent_s = served.first_sent_s
    last_sent_s = served.last_sent_s
    times = RequestTimes(
        place=tool.place,
        id=served.id,
        late_s=_between(tool.planned_s, tool.send_s),
        out_s=served.arrived_s - alignment.to_server(tool.send_s),
        queue_s=_between(served.queued_s, served.scheduled_s),
        prefill_s=_between(served.scheduled_s, served.first_s),
        decode_s=_between(served.first_s, served.last_s),
        write_s=_between(served.first_s, first_sent_s),
        back_s=None,
        tool_ttft_s=_between(tool.send_s, tool.first_s),
        server_ttft_s=_between(served.arrived_s, first_sent_s),
        tool_e2e_s=_between(tool.send_s, tool.received_s),
        server_e2e_s=_between(served.arrived_s, last_sent_s),
        tool_tpot_s=None,
        server_tpot_s=None,
        preemptions=served.preemptions,
        cached_tokens=served.cached_tokens,
    )
    if tool.first_s is not None and first_sent_s is not None:
        times.back_s = alignment.to_server(tool.first_s) - first_sent_s
    elif tool.received_s is not None and last_sent_s is not None:
        times.write_s = _between(served.last_s, last_sent_s)
        times.back_s = alignment.to_server(tool.received_s) - last_sent_s
    gaps = served.output_tokens - 1
    tool_decode_s = _between(tool.first_s, tool.last_s)
    server_decode_s = _between(first_sent_s, last_sent_s)
    if gaps >= MIN_GAPS and tool_decode_s is not None and server_decode_s is not None:
        times.tool_tpot_s = tool_decode_s / gaps
        times.server_tpot_s = server_decode_s / gaps
    return times


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    if begin_s is None or end_s is None:
        return None
    return end_s - begin_s


def added_s(times: RequestTimes) -> float | None:
    """Returns the time that tool and network added until the first token, or else until the end."""
    added = _between(times.server_ttft_s, times.tool_ttft_s)
    if added is None:
        return _between(times.server_e2e_s, times.tool_e2e_s)
    return added


def answered_pairs(matches: Matches) -> list[Pair]:
    """Returns the pairs that tool and server consider answered."""
    return [pair for pair in matches.pairs if not pair.tool.error and pair.served.status == 200]


def judge(
    export: Export, matches: Matches, alignment: Alignment, network_s: float | None
) -> tuple[Verdict, list[RequestTimes]]:
    """Returns the verdict, and the times of each request."""
    rows = [times_of(pair, alignment) for pair in answered_pairs(matches)]
    failed = [pair for pair in matches.pairs if pair.tool.error]
    added = [added_s(row) for row in rows]
    measured = sorted(row_added for row_added in added if row_added is not None)
    overhead_ms = None
    if network_s is not None and measured:
        overhead_ms = round(1000 * max(0.0, quantile(measured, 0.5) - network_s), 3)
    notes = []
    if export.never_sent:
        notes = [f"Never sent by the tool: {len(export.never_sent)}"]
    verdict = Verdict(
        tool=export.title,
        requests=len(export.requests),
        matched=len(matches.pairs),
        matched_by=matches.method,
        not_served=[request.place.rpartition(": ")[2] for request in matches.not_served],
        not_reported=[entry.id for entry in matches.not_reported],
        outside=matches.outside,
        failed=sum(bool(request.error) for request in export.requests),
        failed_but_answered=sum(pair.served.status == 200 for pair in failed),
        clock_difference_ms=round(1000 * alignment.difference_s, 3),
        clock_uncertainty_ms=round(1000 * alignment.half_width_s, 3),
        clock_drift_ppm=round(1e6 * alignment.drift, 1),
        is_same_clock=alignment.is_same_clock,
        latencies=_latencies(rows),
        parts=_parts(rows),
        network_ms=None if network_s is None else round(1000 * network_s, 3),
        overhead_ms=overhead_ms,
        slowest=_slowest(rows),
        notes=notes,
    )
    return verdict, rows


def _latencies(rows: Sequence[RequestTimes]) -> dict[str, Comparison]:
    latencies = {}
    for name, field in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e")):
        tool_s = [getattr(row, f"tool_{field}_s") for row in rows]
        server_s = [getattr(row, f"server_{field}_s") for row in rows]
        measured = [times for times in zip(tool_s, server_s, strict=True) if None not in times]
        if measured:
            latencies[name] = Comparison(
                tool=_spread(tool for tool, _ in measured),
                server=_spread(server for _, server in measured),
                added=_spread(tool - server for tool, server in measured),
            )
    return latencies


def _parts(rows: Sequence[RequestTimes]) -> dict[str, Spread]:
    parts = {}
    for name, field in PARTS.items():
        values = [getattr(row, field) for row in rows]
        measured = [value for value in values if value is not None]
        if measured:
            parts[name] = _spread(measured)
    return parts


def _spread(seconds: Iterable[float]) -> Spread:
    ascending = sorted(seconds)
    return Spread(
        p50=round(1000 * quantile(ascending, 0.5), 3),
        p90=round(1000 * quantile(ascending, 0.9), 3),
        max=round(1000 * ascending[-1], 3),
    )


def _slowest(rows: Sequence[RequestTimes]) -> str:
    """Names the request with most added time, and the way on which it was added."""
    added = 0.0
    row: RequestTimes | None = None
    for candidate in rows:
        candidate_s = added_s(candidate)
        if candidate_s is not None and (row is None or candidate_s > added):
            added = candidate_s
            row = candidate
    if row is None:
        return ""
    back_s = row.back_s or 0.0
    way = "before the server had it"
    share_s = row.out_s
    if back_s > row.out_s:
        way = "after the server had written its answer"
        share_s = back_s
    place = row.place.rpartition(": ")[2]
    return f"{place} ({row.id}): {1000 * added:.1f} ms added, {1000 * share_s:.1f} ms of them {way}"
