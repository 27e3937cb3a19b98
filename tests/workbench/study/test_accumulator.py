"""Differences of counters, corrected for resets."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from workbench.study.accumulator import Accumulator, Sample
from workbench.study.quantities import IN_FLIGHT_KEY, RUNNING, STARTED_KEY, Key

COUNT = Key("input_tokens", "count")
SUM = Key("input_tokens", "sum")
Step = tuple[int, bool]
"""Requests that end in a step, and whether the process is restarted at its beginning."""
steps = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=30)


def counters_of(changes: list[Step], start: int) -> tuple[list[dict[Key, float]], int]:
    """Samples of a process, and the requests that counters can show.

    A restart loses no request here: it is at the beginning of a step.
    """
    count = start
    process_start = 10.0
    samples: list[dict[Key, float]] = [
        {COUNT: float(count), SUM: 3.0 * count, STARTED_KEY: process_start}
    ]
    total = 0
    for number, (ended, restarts) in enumerate(changes, 1):
        if restarts:
            count = 0
            process_start = 100.0 * number + 5
        count += ended
        total += ended
        samples.append({COUNT: float(count), SUM: 3.0 * count, STARTED_KEY: process_start})
    return samples, total


@given(steps, st.integers(0, 1000))
def test_counts_equal_counter_differences_with_resets(changes: list[Step], start: int) -> None:
    samples, total = counters_of(changes, start)
    edges = [100.0 * index for index in range(len(samples))]
    accumulator = Accumulator(edges, max_gap_s=150.0)
    for edge, values in zip(edges, samples, strict=True):
        accumulator.add("pod", Sample(edge, values))
    assert accumulator.sums(COUNT) == [float(ended) for ended, _ in changes]
    assert sum(accumulator.sums(SUM)) == 3.0 * total
    restarts = [edges[index + 1] for index, (_, restarted) in enumerate(changes) if restarted]
    assert accumulator.pods["pod"].resets == restarts


@given(steps, st.integers(0, 1000), st.integers(1, 12))
@example([(0, False), (0, False)], 0, 3)
def test_columns_give_what_single_samples_give(
    changes: list[Step], start: int, length: int
) -> None:
    samples, _ = counters_of(changes, start)
    edges = [100.0 * index for index in range(len(samples))]
    windows = [index // 4 for index in range(len(edges) - 1)]
    by_sample = Accumulator(edges, max_gap_s=150.0, windows=windows)
    by_column = Accumulator(edges, max_gap_s=150.0, windows=windows)
    for edge, values in zip(edges, samples, strict=True):
        by_sample.add("pod", Sample(edge, dict(values)))
    for first in range(0, len(samples), length):
        part = samples[first : first + length]
        columns = {key: [values[key] for values in part] for key in part[0]}
        by_column.add_block("pod", first, columns)
    assert by_column.totals == by_sample.totals
    assert by_column.pod_totals == by_sample.pod_totals
    assert by_column.pods["pod"].resets == by_sample.pods["pod"].resets


def test_differences_over_several_spans_are_divided_by_their_lengths() -> None:
    accumulator = Accumulator([0.0, 10.0, 20.0, 40.0], max_gap_s=15.0)
    accumulator.add("pod", Sample(0.0, {COUNT: 5.0}))
    accumulator.add("pod", Sample(40.0, {COUNT: 45.0}))
    assert accumulator.sums(COUNT) == [10.0, 10.0, 20.0]
    assert accumulator.pods["pod"].gaps == [(0.0, 40.0)]


def test_counters_of_a_pod_that_starts_in_the_range_count_from_zero() -> None:
    accumulator = Accumulator([1000.0, 1060.0, 1120.0], max_gap_s=150.0)
    accumulator.add("new", Sample(1060.0, {COUNT: 7.0, STARTED_KEY: 1030.0}))
    accumulator.add("old", Sample(1060.0, {COUNT: 7.0, STARTED_KEY: 500.0}))
    assert accumulator.sums(COUNT) == [7.0, 0.0]
    assert accumulator.pods["new"].counted_from_zero
    assert not accumulator.pods["old"].counted_from_zero


def test_gauges_are_not_counted_and_do_not_reset() -> None:
    accumulator = Accumulator([0.0, 10.0, 20.0], max_gap_s=15.0)
    for time_s, running in ((0.0, 9.0), (10.0, 4.0), (20.0, 6.0)):
        values = {COUNT: time_s, Key(RUNNING): running, IN_FLIGHT_KEY: running}
        accumulator.add("pod", Sample(time_s, values))
    assert accumulator.sums(IN_FLIGHT_KEY) == [-5.0, 2.0]
    assert Key(RUNNING) not in accumulator.totals
    assert accumulator.pods["pod"].resets == []
