"""Instruments count as a naive reading does; a family's text is what prometheus_client prints."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as TheirCounter
from prometheus_client import Gauge as TheirGauge
from prometheus_client import Histogram as TheirHistogram
from prometheus_client import Summary as TheirSummary
from prometheus_client.utils import floatToGoString

from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram, Summary, number

finite = st.floats(min_value=0, max_value=1e9, allow_nan=False)
bounds = st.lists(finite, unique=True, max_size=12).map(sorted)


@given(bounds, st.lists(st.tuples(finite, st.integers(1, 5)), max_size=40))
def test_histogram_bucket_counts_are_cumulative(
    limits: list[float], seen: list[tuple[float, int]]
) -> None:
    histogram = Histogram(limits)
    for value, count in seen:
        histogram.observe(value, count)
    flat = [value for value, count in seen for _ in range(count)]
    naive = [sum(value <= limit for value in flat) for limit in [*limits, math.inf]]
    *buckets, count, total = histogram.values()
    assert (buckets, count) == (naive, len(flat))
    assert total == pytest.approx(sum(flat))


@given(st.one_of(st.floats(), st.integers(-(10**18), 10**18)))
def test_numbers_have_the_same_format_as_in_prometheus_client(value: float) -> None:
    assert number(value) == floatToGoString(value)


BOUNDS = (0.5, 1, 2.5, 1e6)
CREATED = 1_700_000_000.25
values = st.lists(st.floats(min_value=0, max_value=1e8), max_size=8)


def theirs(
    family: type, name: str, labels: dict[str, str], seen: list[float], **options: object
) -> str:
    registry = CollectorRegistry()
    child = family(name, 'a "help"\n\\', list(labels), registry=registry, **options).labels(
        **labels
    )
    child._created = CREATED
    for value in seen:
        child.inc(value) if hasattr(child, "inc") else child.observe(value)
    return generate_latest(registry).decode()


def ours(name: str, create: type, kind: str, labels: dict[str, str], seen: list[float]) -> str:
    family: Family = Family(name, 'a "help"\n\\', create, kind=kind, now=lambda: CREATED)
    child = family.labels(**labels)
    for value in seen:
        if hasattr(child, "observe_all"):
            child.observe_all([value])
        else:
            next(getattr(child, act) for act in ("inc", "add") if hasattr(child, act))(value)
    return family.render()


@given(
    st.dictionaries(st.sampled_from(["model_name", "engine", "zone"]), st.text(), min_size=1),
    values,
)
def test_every_metric_type_has_the_same_output_as_in_prometheus_client(
    labels: dict[str, str], seen: list[float]
) -> None:
    histogram = partial(Histogram, BOUNDS)
    assert ours("h", histogram, kind="histogram", labels=labels, seen=seen) == theirs(
        TheirHistogram, "h", labels, seen, buckets=BOUNDS
    )
    assert ours("c_total", Counter, kind="counter", labels=labels, seen=seen) == theirs(
        TheirCounter, "c", labels, seen
    )
    assert ours("g", Gauge, kind="gauge", labels=labels, seen=seen) == theirs(
        TheirGauge, "g", labels, seen
    )
    assert ours("s", Summary, kind="summary", labels=labels, seen=seen) == theirs(
        TheirSummary, "s", labels, seen
    )


def test_counter_counts_one_event_at_a_time_by_default() -> None:
    counter = Counter()
    counter.inc()
    counter.inc(3)
    assert counter.values() == (4,)
