"""Columns of numbers that are too long for lists: a float in a list takes four times the memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf

RUN = 1 << 20
"""Values that are sorted together."""
SAMPLES = 32
"""Values of each run from which the bounds of parts are chosen."""


def mean_and_quantiles(
    column: array[float], shares: Sequence[float], run: int = RUN
) -> list[float]:
    """Returns the mean and the values that exceed these shares; `shares` are in ascending order.

    Sorts runs of the column in place. The results equal those of the whole column in one list.
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
