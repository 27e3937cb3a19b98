"""Accumulators count what a naive reading of the same observations counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

from app.base.metrics.instruments import Counter, Gauge, Histogram, Summary, number

finite = st.floats(min_value=0, max_value=1e9, allow_nan=False)
bounds = st.lists(finite, unique=True, max_size=12).map(sorted)


@given(bounds, st.lists(st.tuples(finite, st.integers(1, 5)), max_size=40))
def test_a_histogram_counts_as_a_naive_one(limits: list[float], seen: list[tuple[float, int]]) -> None:
    histogram = Histogram(limits)
    for value, count in seen:
        histogram.observe(value, count)
    flat = [value for value, count in seen for _ in range(count)]
    naive = [sum(value <= limit for value in flat) for limit in [*limits, math.inf]]
    *buckets, count, total = histogram.values()
    assert (buckets, count) == (naive, len(flat))
    assert total == pytest.approx(sum(flat))


@given(bounds, st.lists(st.one_of(finite, st.integers(0, 10)), max_size=40))
def test_many_values_at_once_are_the_same_as_one_after_the_other(
    limits: list[float], seen: list[float]
) -> None:
    together, one_by_one = Histogram(limits), Histogram(limits)
    together.observe_all(iter(seen))
    for value in seen:
        one_by_one.observe(value)
    assert together.values() == one_by_one.values()


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram([1, 2])
    histogram.observe(1)
    assert histogram.values() == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("limits", [[2, 1], [1, 1]])
def test_bounds_must_ascend(limits: list[float]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(limits)


def test_counters_gauges_and_summaries_add_up() -> None:
    counter, gauge, summary = Counter(), Gauge(), Summary()
    counter.inc()
    counter.inc(2)
    gauge.add(3)
    gauge.add(-1)
    summary.observe_all([4])
    summary.observe_all([0.5, 0.25])
    assert (counter.values(), gauge.values(), summary.values()) == ((3,), (2,), (3, 4.75))


@given(st.one_of(st.floats(), st.integers(-(10**18), 10**18)))
def test_numbers_are_printed_as_prometheus_client_prints_them(value: float) -> None:
    assert number(value) == floatToGoString(value)
