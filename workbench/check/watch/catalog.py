"""The metrics of a version of vLLM: names, kinds, labels, values of labels, and buckets.

Names and kinds of all versions are in vllm_facts/history.json. The labels and buckets are the same
that the server exports. Start reading at `Catalog.find`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal, NamedTuple

from app.core.base.metrics.families import engine_table
from app.core.base.metrics.optional_families import TRANSFERS, drafts
from app.core.base.metrics.spec import Bounds
from vllm_facts.history import Lifetime, read_history
from vllm_facts.names import value_in
from workbench.check.options import supported_versions
from workbench.check.watch.names import PREFIX, plain_name, prefix_of

COUNTER_SUFFIX = "_total"
SUFFIXES = ("_bucket", "_sum", "_count", "_created")
PLUGGABLE = (
    "vllm:kv_offload_",
    "vllm:hisparse_",
    "vllm:mooncake_",
    "vllm:umbp_",
    "vllm:hf3fs_",
    "vllm:omni_",
)
"""Beginnings of names that vLLM's connectors and tiers make while they run."""
ROUTER = "the router of vLLM's production stack"
OTHER_PROGRAMS: Mapping[str, str] = dict.fromkeys(
    (
        "vllm:avg_decoding_length",
        "vllm:avg_itl",
        "vllm:avg_latency",
        "vllm:avg_ttft",
        "vllm:current_qps",
        "vllm:healthy_pods_total",
        "vllm:input_tokens_total",
        "vllm:num_decoding_requests",
        "vllm:num_incoming_requests_total",
        "vllm:num_prefill_requests",
        "vllm:output_tokens_total",
        "vllm:request_errors_total",
        "vllm:request_latency_seconds",
        "vllm:router_queueing_delay_seconds",
        "vllm:routing_decisions_total",
    ),
    ROUTER,
) | {"vllm:deployment_replicas": "the GPU optimizer of AIBrix"}
"""Metrics with vLLM's prefix that other programs export, and no version of vLLM does."""
ROUTER_NAMES = frozenset(
    (
        "vllm:gpu_prefix_cache_hit_rate",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:num_requests_swapped",
    )
)
"""Metrics that vLLM removed and the router still exports, with the label `server`."""
MIN_LIKENESS = 0.87
MAX_SIMILAR = 500
"""Most names that are compared with the known names."""
SHORTEST_MISSPELLED = 12
MAX_NAME = 100
"""Characters of names that are compared with the known names, which takes milliseconds."""
DETAILED = frozenset(supported_versions())
"""Versions whose labels and buckets are known."""
ADAPTER_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
HIDDEN_CONDITION = "show_hidden_metrics"
"""Part of the condition of a metric that --show-hidden-metrics-for-version shows."""
Status = Literal["here", "removed", "later", "elsewhere", "open", "unknown"]


class Family(NamedTuple):
    """A metric; None stands for unknown labels or bounds."""

    name: str
    kind: str = ""
    """counter, gauge or histogram; empty if it is not known."""
    labels: frozenset[str] | None = None
    values: Mapping[str, frozenset[str]] = {}
    """Labels whose values vLLM chooses, with all values."""
    bounds: Bounds | None = None
    has_token_bounds: bool = False
    """The bounds are 1, 2, 5, 10 ... up to the length of the context."""


class Found(NamedTuple):
    """The metric that the name of a series belongs to in a version."""

    status: Status
    family: Family
    suffix: str = ""
    """Suffix of the series, such as _bucket."""
    lifetime: Lifetime | None = None
    prefix: str = PREFIX
    """Beginning of the name as it is written, such as ray_vllm_."""


class Catalog:
    """The metrics of one version."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._history = read_history().metrics
        self._families = _families() if version in DETAILED else {}
        self._kinds = {name: family.kind for name, family in _families().items()}
        labels: set[str] = set()
        for family in self._families.values():
            labels |= family.labels or set()
        self.labels = frozenset(labels)
        """The labels of all metrics."""
        self._similar: dict[str, str] = {}

    def find(self, series: str) -> Found:
        """Returns what is known of the series with a name, which may be one of Ray Serve's."""
        prefix = prefix_of(series)
        if prefix in ("", PREFIX):
            return self._find(series)
        name = plain_name(series)
        metric = self._find(name)
        if metric.status == "unknown" and self.is_here(name + COUNTER_SUFFIX):
            metric = self._find(name + COUNTER_SUFFIX)  # Ray exports counters with and without it
        family = metric.family._replace(name=metric.family.name.replace(PREFIX, prefix, 1))
        return metric._replace(family=family, prefix=prefix)

    def is_hidden(self, metric: Found) -> bool:
        """Returns whether this version exports a metric only with an option."""
        return metric.lifetime is not None and is_hidden_in(metric.lifetime, self.version)

    def _find(self, series: str) -> Found:
        for name, suffix in _readings(series):
            if name in OTHER_PROGRAMS:
                return Found("elsewhere", Family(name), suffix)
            lifetime = self._history.get(name)
            if lifetime is not None and lifetime.is_in(self.version):
                return Found("here", self._family(name), suffix, lifetime)
        for name, suffix in _readings(series):
            lifetime = self._history.get(name)
            if lifetime is not None:
                ends = [end for _, end in lifetime.periods if end]
                is_gone = any(Lifetime([("", end)]).is_gone_in(self.version) for end in ends)
                status: Status = "removed" if is_gone else "later"
                return Found(status, self._family(name), suffix, lifetime)
        is_open = series.startswith(PLUGGABLE) or ":" in series.removeprefix(PREFIX)
        return Found("open" if is_open else "unknown", Family(series))

    def similar(self, series: str) -> str:
        """Returns the name of this version that a misspelled one means; empty without one."""
        prefix = prefix_of(series)
        if prefix not in ("", PREFIX):
            return self.similar(plain_name(series)).replace(PREFIX, prefix)
        if series not in self._similar:
            if len(self._similar) >= MAX_SIMILAR:
                return ""
            self._similar[series] = self._most_similar(series)
        return self._similar[series]

    def _most_similar(self, series: str) -> str:
        if self.is_here(series + COUNTER_SUFFIX):
            return series + COUNTER_SUFFIX
        name, suffix = _readings(series)[-1]
        if not SHORTEST_MISSPELLED <= len(name) <= MAX_NAME:
            return ""
        names = [name for name, life in self._history.items() if life.is_in(self.version)]
        matches = get_close_matches(name, names, n=1, cutoff=MIN_LIKENESS)
        if matches:
            return matches[0] + suffix
        matches = get_close_matches(series, names, n=1, cutoff=MIN_LIKENESS)
        return matches[0] if matches else ""

    def has_beginning(self, beginning: str) -> bool:
        """Returns whether the name of a metric of this version has a beginning."""
        beginning = plain_name(beginning)
        names = (*OTHER_PROGRAMS, *(name for name in self._history if self.is_here(name)))
        return any(name.startswith(beginning) or beginning.startswith(name) for name in names)

    def is_here(self, name: str) -> bool:
        """Returns whether this version has a metric."""
        lifetime = self._history.get(name)
        return lifetime is not None and lifetime.is_in(self.version)

    def _family(self, name: str) -> Family:
        if name in self._families:
            return self._families[name]
        lifetime = self._history[name]
        kind = self._kinds.get(name) or lifetime.kind
        return Family(name, kind)


def is_hidden_in(lifetime: Lifetime, version: str) -> bool:
    """Returns whether a version shows a metric only with an option."""
    return HIDDEN_CONDITION in (value_in(lifetime.conditions, version) or "")


def _readings(series: str) -> list[tuple[str, str]]:
    """Returns the metrics that a series can belong to, each with the suffix of the series."""
    readings = [(series, "")]
    for suffix in SUFFIXES:
        if series.endswith(suffix):
            name = series.removesuffix(suffix)
            readings.append((name, suffix))
            if suffix == "_created":
                readings.append((name + COUNTER_SUFFIX, suffix))
    return readings


def _families() -> dict[str, Family]:
    families = {}
    for spec in (*engine_table({}, block_times=True), *TRANSFERS, *drafts(1)):
        is_open = spec.name.endswith(("_info", "_per_pos_total"))
        values = {} if is_open else {key: frozenset(each) for key, each in spec.extra.items()}
        labels = frozenset((*spec.base, *spec.extra))
        families[spec.name] = Family(
            name=spec.name,
            kind=spec.kind,
            labels=labels,
            values=values,
            bounds=spec.bounds,
            has_token_bounds=spec.kind == "histogram" and spec.bounds is None,
        )
    name = f"{PREFIX}lora_requests_info"
    families[name] = Family(name, "gauge", frozenset(ADAPTER_LABELS))
    return families
