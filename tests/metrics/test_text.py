"""A family's text is what prometheus_client would print for the same numbers."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as TheirCounter
from prometheus_client import Gauge as TheirGauge
from prometheus_client import Histogram as TheirHistogram
from prometheus_client import Summary as TheirSummary
from prometheus_client.parser import text_string_to_metric_families

from app.base.metrics.instruments import Counter, Family, Gauge, Histogram, Summary

BOUNDS = (0.5, 1, 2.5, 1e6)
CREATED = 1_700_000_000.25
values = st.lists(st.floats(min_value=0, max_value=1e8), max_size=8)


def theirs(family: type, name: str, labels: dict[str, str], seen: list[float], **options: object) -> str:
    registry = CollectorRegistry()
    child = family(name, 'a "help"\n\\', list(labels), registry=registry, **options).labels(**labels)
    child._created = CREATED
    for value in seen:
        child.inc(value) if hasattr(child, "inc") else child.observe(value)
    return generate_latest(registry).decode()


def ours(name: str, create: type, kind: str, labels: dict[str, str], seen: list[float]) -> str:
    family: Family = Family(name, 'a "help"\n\\', create, kind, now=lambda: CREATED)
    child = family.labels(**labels)
    for value in seen:
        if hasattr(child, "observe_all"):
            child.observe_all([value])
        else:
            next(getattr(child, act) for act in ("inc", "add") if hasattr(child, act))(value)
    return family.render()


@given(st.dictionaries(st.sampled_from(["model_name", "engine", "zone"]), st.text(), min_size=1), values)
def test_every_kind_prints_byte_for_byte_the_same(labels: dict[str, str], seen: list[float]) -> None:
    histogram = partial(Histogram, BOUNDS)
    assert ours("h", histogram, "histogram", labels, seen) == theirs(
        TheirHistogram, "h", labels, seen, buckets=BOUNDS
    )
    assert ours("c_total", Counter, "counter", labels, seen) == theirs(TheirCounter, "c", labels, seen)
    assert ours("g", Gauge, "gauge", labels, seen) == theirs(TheirGauge, "g", labels, seen)
    assert ours("s", Summary, "summary", labels, seen) == theirs(TheirSummary, "s", labels, seen)


def test_hostile_label_values_survive_the_parser() -> None:
    for hostile in ('a"b', "a\\b", "a\nb", '100%s{}"},x="1', "模型 \U0001f600", "\r\t\x00", ""):
        family = Family("g", "help", Gauge, "gauge")
        family.labels(model_name=hostile).set(1)
        (parsed,) = text_string_to_metric_families(family.render())
        assert [sample.labels for sample in parsed.samples] == [{"model_name": hostile}]


def test_a_lone_surrogate_cannot_break_the_encoding() -> None:
    family = Family("g", "help", Gauge, "gauge")
    family.labels(model_name="bad\udc80name")
    assert 'model_name="bad?name"' in family.render().encode().decode()
