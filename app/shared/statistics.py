"""Statistics of latencies: means, quantiles, and the twelve figures of a run."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf

LATENCY_NAMES = ("TTFT", "TPOT", "E2E")
QUANTILES = (0.5, 0.9, 0.99)
FIGURE_NAMES = tuple(
    f"{latency} {figure}" for latency in LATENCY_NAMES for figure in ("mean", "p50", "p90", "p99")
)
"""Names of the twelve figures, in their fixed order."""
RUN = 1 << 20
"""Values of a column that are sorted together."""
SAMPLES = 32
"""Values of each run from which the bounds of parts are chosen."""


def mean_and_quantiles(values: Iterable[float]) -> list[float]:
    """Returns mean, p50, p90 and p99; a quantile is one of the values."""
    ascending = sorted(values)
    mean = sum(ascending) / len(ascending)
    return [mean, *(quantile(ascending, share) for share in QUANTILES)]


def quantile(ascending: Sequence[float], share: float) -> float:
    """Returns the value that exceeds this share of the values."""
    return ascending[int(len(ascending) * share)]


def column_mean_and_quantiles(
    column: array[float], shares: Sequence[float], run: int = RUN
) -> list[float]:
    """Returns the mean and the `quantile` of each share; `shares` are in ascending order.

    A float in a list takes four times the memory, so that runs of the column are sorted in place.
    The results equal those of one sorted list to the last bit.
    """
    positions = [int(len(column) * share) for share in shares]
    quantiles: list[float] = []

    def parts() -> Iterator[list[float]]:
        start = 0
        for part in ascending_parts(column, run):
            while len(quantiles) < len(positions):
                index = positions[len(quantiles)] - start
                if index >= len(part):
                    break
                quantiles.append(part[index])
            start += len(part)
            yield part

    # One sum over all parts: newer versions of Python round the sum once, at its end.
    mean = sum(chain.from_iterable(parts())) / len(column)
    return [mean, *quantiles]


def ascending_parts(column: array[float], run: int = RUN) -> Iterator[list[float]]:
    """Yields the values of a column in ascending order, in lists of about `run` values.

    Sorts runs of the column in place, and merges them from bound to bound.
    """
    if len(column) <= run:
        yield sorted(column)
        return
    ends = []
    samples: list[float] = []
    for start in range(0, len(column), run):
        ascending = array("d", sorted(column[start : start + run]))
        column[start : start + run] = ascending
        ends.append(start + len(ascending))
        samples += ascending[:: -(-run // SAMPLES)]
    samples.sort()
    starts = list(range(0, len(column), run))
    for bound in [*samples[SAMPLES::SAMPLES], inf]:
        part: list[float] = []
        for number, end in enumerate(ends):
            stop = bisect_right(column, bound, starts[number], end)
            part += column[starts[number] : stop]
            starts[number] = stop
        part.sort()
        yield part


def weighted_quantiles(
    values: Iterable[tuple[float, float]], shares: Sequence[float]
) -> Iterator[float]:
    """Yields the least value that exceeds each share of the weight; `shares` are ascending.

    Values come with their weights. With equal weights, `quantile` returns the same results.
    """
    ascending = sorted(values)
    total = sum(weight for _, weight in ascending)
    position = 0
    covered = ascending[0][1]
    for share in shares:
        while covered <= share * total and position < len(ascending) - 1:
            position += 1
            covered += ascending[position][1]
        yield ascending[position][0]


def histogram_quantile(share: float, values: Sequence[float], bounds: Sequence[float]) -> float:
    """Returns Prometheus' quantile over buckets with upper `bounds`; 0 without values."""
    if not values:
        return 0.0
    counts = Counter(bisect_left(bounds, value) for value in values)
    rank = share * len(values)
    below = 0
    for index, bound in enumerate(bounds):
        inside = counts[index]
        if inside and below + inside >= rank:
            lower_bound = bounds[index - 1] if index else 0.0
            return lower_bound + (bound - lower_bound) * (rank - below) / inside
        below += inside
    return bounds[-1]


def latencies(
    send_s: Sequence[float],
    first_s: Sequence[float],
    last_s: Sequence[float],
    output_tokens: Sequence[float],
) -> Iterator[array[float]]:
    """Yields TTFT, TPOT and E2E in seconds, one value per request.

    The TPOT is the mean time of a request's tokens after the first, as in `vllm bench serve`. It
    leaves out requests with a single token.
    """
    yield array("d", (first - send for send, first in zip(send_s, first_s, strict=True)))
    rows = zip(first_s, last_s, output_tokens, strict=True)
    yield array("d", ((last - first) / (tokens - 1) for first, last, tokens in rows if tokens > 1))
    yield array("d", (last - send for send, last in zip(send_s, last_s, strict=True)))


def latency_figures(*columns: Sequence[float]) -> list[float]:
    """Returns the figures named by `FIGURE_NAMES`, in seconds. Takes the columns of `latencies`."""
    return [figure for values in latencies(*columns) for figure in mean_and_quantiles(values)]
