"""Fake metrics: what the setting may say, in a typed form, and its change in parts (simulator.md 14.4)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from config.fake_values import (
    Counts,
    FakeAdapters,
    FakeMetricsError,
    Level,
    Reader,
    read_adapters,
    read_count,
    read_counts,
    read_reasons,
    read_requests,
    read_share,
)

T = TypeVar("T")
TTFT_BUCKETS, TPOT_BUCKETS = 23, 20
"""Buckets of the times to first token and per output token, +Inf included."""
MANY = 1000
"""Counts that any other list may have; what goes beyond its buckets counts in the last."""


def _key(default: T, read: Reader) -> T:
    return dataclasses.field(default=default, metadata={"read": read})


def _counts(longest: int = MANY) -> Counts:
    return _key((), read_counts(longest))


def _count() -> int | None:
    return _key(None, read_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMetrics:
    """What is told, one field per key, with underscores for dashes. None and empty: not told."""

    running_requests: Level | None = _key(None, read_requests)
    waiting_requests: Level | None = _key(None, read_requests)
    kv_cache_usage: Level | None = _key(None, read_share)
    loras: tuple[FakeAdapters, ...] = _key((), read_adapters)
    ttft_buckets_values: Counts = _counts(TTFT_BUCKETS)
    tpot_buckets_values: Counts = _counts(TPOT_BUCKETS)
    request_tpot_buckets_values: Counts = _counts()
    e2erl_buckets_values: Counts = _counts()
    queue_time_buckets_values: Counts = _counts()
    inf_time_buckets_values: Counts = _counts()
    prefill_time_buckets_values: Counts = _counts()
    decode_time_buckets_values: Counts = _counts()
    request_prompt_tokens: Counts = _counts()
    request_generation_tokens: Counts = _counts()
    request_params_max_tokens: Counts = _counts()
    request_max_generation_tokens: Counts = _counts()
    request_success_total: Mapping[str, int] | None = _key(None, read_reasons)
    total_prompt_tokens: int | None = _count()
    """None: what the counts of `request_prompt_tokens` amount to."""
    total_generation_tokens: int | None = _count()
    """None: what the counts of `request_generation_tokens` amount to."""
    prefix_cache_hits: int | None = _count()
    prefix_cache_queries: int | None = _count()


_READERS: Mapping[str, Reader] = {
    field.name.replace("_", "-"): field.metadata["read"] for field in dataclasses.fields(FakeMetrics)
}
# The reference simulator knows these two in YAML by no other name.
_OTHER_NAMES = {
    "totalprompttokens": "total-prompt-tokens",
    "totalgenerationtokens": "total-generation-tokens",
}
_TOTALS = {
    "request-prompt-tokens": "total-prompt-tokens",
    "request-generation-tokens": "total-generation-tokens",
}


def parse(text: str | None) -> FakeMetrics | None:
    """What the setting says; None when the metrics are the true ones.

    Raises FakeMetricsError, which names the first key that is wrong.
    """
    document = _document(text)
    return None if document is None else _typed(document)


def merged(current: str | None, update: Any) -> str:
    """The setting's JSON text after an update of some of its keys.

    `current` is the setting, `update` an object, or JSON text of one. A key that is absent or null stays as
    it is, an empty list or object clears. A new list of token counts replaces their explicit total, too,
    unless it brings one. Raises FakeMetricsError for an update that is wrong, alone or together with what
    there is, and when there is nothing to update because the metrics are the true ones.
    """
    before = _document(current)
    if before is None:
        raise FakeMetricsError("fake-metrics", "cannot change: the server was started without them")
    changes = _document(update) or {}
    for counts, total in _TOTALS.items():
        if counts in changes and total not in changes:
            before.pop(total, None)
    after = before | changes
    _typed(after)
    return json.dumps(after, ensure_ascii=False)


def _document(source: Any) -> dict[str, Any] | None:
    """The object in `source` (or its JSON text) with its keys in their first form and without nulls."""
    try:
        found = json.loads(source) if isinstance(source, str | bytes) else source
    except (ValueError, RecursionError):
        raise FakeMetricsError("fake-metrics", "must be JSON") from None
    if found is None:
        return None
    if not isinstance(found, dict):
        raise FakeMetricsError("fake-metrics", "must be a JSON object")
    document: dict[str, Any] = {}
    for key, value in found.items():
        name = _known(key)
        if name in document:
            raise FakeMetricsError(name, "is given twice")
        document[name] = value
    return {name: value for name, value in document.items() if value is not None}


def _known(key: str) -> str:
    name = key.replace("_", "-")
    name = _OTHER_NAMES.get(name, name)
    if name not in _READERS:
        close = get_close_matches(name, _READERS, n=1)
        raise FakeMetricsError(repr(key), "is not a fake metric" + (f"; {close[0]} is" if close else ""))
    return name


def _typed(document: Mapping[str, Any]) -> FakeMetrics:
    values = {name.replace("-", "_"): _READERS[name](name, value) for name, value in document.items()}
    fakes = FakeMetrics(**values)
    hits, queries = fakes.prefix_cache_hits, fakes.prefix_cache_queries
    if (hits is None) != (queries is None):
        raise FakeMetricsError("prefix-cache-hits", "must be given together with prefix-cache-queries")
    if hits is not None and queries is not None and hits > queries:
        raise FakeMetricsError("prefix-cache-hits", "must not be more than prefix-cache-queries")
    return fakes
