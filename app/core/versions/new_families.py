"""Metric families that a release of vLLM has added since the one that the code plays.

The history has their names, kinds, labels and buckets. Nothing here counts for them: they are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument
from vllm_facts.history import CONTEXT_BUCKETS, Lifetime
from vllm_facts.names import value_in

RUNNING = re.compile(r"^vllm:num_requests_running\{(.*)\} ", re.MULTILINE)
"""A sample that each engine has, with the labels of all families."""
CONTEXT_BOUND = re.compile(r'^vllm:request_prompt_tokens_bucket\{.*le="([\d.e+]+)"', re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")


def new_families(families: Mapping[str, Lifetime], release: str, text: str) -> Iterator[str]:
    """Yields families in the Prometheus text format, with a child for each engine.

    Args:
        families: Declarations in the history, by name.
        release: A number such as 0.34.0.
        text: The families of the code, which have the labels of the engines.
    """
    engines = [
        {name: _unescaped(value) for name, value in LABEL.findall(labels)}
        for labels in RUNNING.findall(text)
    ]
    for name, lifetime in families.items():
        names = (value_in(lifetime.labels, release) or "").split()
        bounds = _bounds(value_in(lifetime.buckets, release) or "", text)
        create = _creation(lifetime.kind, bounds)
        kind = lifetime.kind if lifetime.kind in ("counter", "histogram") else "gauge"
        family = Family(name, name.partition(":")[2].replace("_", " "), create, kind=kind)
        for engine in engines:
            family.labels(**{label: engine.get(label, "") for label in names})
        yield family.render()


def _creation(kind: str, bounds: list[float]) -> Callable[[], Instrument]:
    if kind == "histogram":
        return lambda: Histogram(bounds)
    return Counter if kind == "counter" else Gauge


def _bounds(declared: str, text: str) -> list[float]:
    """Returns the bounds of a histogram; those up to the length of the context are in `text`."""
    if declared == CONTEXT_BUCKETS:
        return sorted({float(bound) for bound in CONTEXT_BOUND.findall(text)})
    return [float(bound) for bound in declared.split()]


def _unescaped(value: str) -> str:
    """Returns the value of a label as the server knows it."""
    return ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
