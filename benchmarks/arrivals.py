"""From moments of arrival to figures: how far from its due moment each chunk came."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MS = 1e-6
"""Milliseconds of a nanosecond."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When chunks are due: chunk k at TTFT + k * ITL after its request, seconds. The first
    `skipped` ones of a stream (the role) are not counted.
    """

    ttft_s: float
    itl_s: float
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One stream: when its request left and when each chunk arrived, nanoseconds of one clock."""

    requested_ns: int
    chunks_ns: Sequence[int]


@dataclass(frozen=True, slots=True)
class Pace:
    """Errors in milliseconds; absolute ones except for `drift_ms`, where late is positive.

    `speed` is 1 when streams take as long as they should, 0.5 when twice as long.
    """

    chunks: float
    speed: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    chunk_p50_ms: float
    chunk_p99_ms: float
    chunk_max_ms: float
    drift_ms: float


def errors_ms(stream: Arrivals, rhythm: Rhythm) -> list[float]:
    """Arrival minus due moment of each counted chunk; late is positive."""
    first = stream.requested_ns + rhythm.ttft_s * 1e9
    counted = stream.chunks_ns[rhythm.skipped :]
    return [(moment - first - k * rhythm.itl_s * 1e9) * MS for k, moment in enumerate(counted)]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a `share` of all is not above (nearest rank); NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered))
    return ordered[max(0, rank - 1)]


def pace(streams: Sequence[Arrivals], rhythm: Rhythm) -> Pace:
    """Figures of a run; streams without a counted chunk are left out."""
    errors = [stream_errors for stream in streams if (stream_errors := errors_ms(stream, rhythm))]
    ttft = [abs(error[0]) for error in errors]
    chunk = [abs(error) for stream in errors for error in stream]
    return Pace(
        chunks=len(chunk),
        speed=_speed(streams, rhythm),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p99_ms=quantile(ttft, 0.99),
        chunk_p50_ms=quantile(chunk, 0.5),
        chunk_p99_ms=quantile(chunk, 0.99),
        chunk_max_ms=max(chunk, default=float("nan")),
        drift_ms=drift_ms(errors),
    )


def drift_ms(errors: Sequence[Sequence[float]]) -> float:
    """Median error in the last quarter of the streams minus that in their first quarter."""
    first = [error for stream in errors for error in stream[: max(1, len(stream) // 4)]]
    last = [error for stream in errors for error in stream[-max(1, len(stream) // 4) :]]
    return statistics.median(last) - statistics.median(first) if errors else float("nan")


def _speed(streams: Sequence[Arrivals], rhythm: Rhythm) -> float:
    """How long all streams should take over how long they took, from request to last chunk."""
    should = took = 0.0
    for stream in streams:
        if counted := len(stream.chunks_ns[rhythm.skipped :]):
            should += (rhythm.ttft_s + (counted - 1) * rhythm.itl_s) * 1e9
            took += stream.chunks_ns[-1] - stream.requested_ns
    return should / took if took else float("nan")
