"""Fake metrics: typed form of the setting, and updates of single keys (docs/metrics.md).

Keys are the fields of `FakeMetrics` with dashes. msgspec checks all values except functions of
time.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.declaration import suggestion
from config.durations import parse_duration
from config.kinds import MAX_FLOAT
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

_TOTALS = {
    "request-prompt-tokens": "total-prompt-tokens",
    "request-generation-tokens": "total-generation-tokens",
}
"""Histogram of token counts -> its total."""
# llm-d-inference-sim accepts only these names in YAML.
_OTHER_NAMES = {
    "totalprompttokens": "total-prompt-tokens",
    "totalgenerationtokens": "total-generation-tokens",
}
_LEVELS = ("running-requests", "waiting-requests", "kv-cache-usage")
_LEVEL_RULE = "; a number, or a function such as ramp:0:10:30s (shape:start:end:period)"
TTFT_BUCKETS = 23
"""Number of buckets of the time to the first token, with +Inf."""
TPOT_BUCKETS = 20
"""Number of buckets of the time per output token, with +Inf."""

FinishReason = Literal[
    "stop",
    "length",
    "abort",
    "error",
    "repetition",
    # Reasons of llm-d-inference-sim only.
    "tool_calls",
    "remote_decode",
    "cache_threshold",
]

Finite = Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Counts = tuple[Count, ...]
"""Observations per bucket, not cumulative; missing buckets at the end are 0."""
Histogram = Annotated[Counts, Meta(max_length=1000)]
"""Observations per bucket; surplus items count in the last bucket."""
Names = Annotated[str, Meta(pattern="^[^\ud800-\udfff]*$")]
"""Names separated by commas, without lone surrogates."""

Shape = Literal["oscillate", "ramp", "rampreset", "squarewave"]
Number = Annotated[float, Meta(ge=0, le=MAX_FLOAT)]
Share = Annotated[float, Meta(ge=0, le=1)]
T = TypeVar("T")


class FakeMetricsError(ValueError):
    """Raised for a wrong value; the message has its key and the rule."""


class Function(Struct, Generic[T], frozen=True):
    """A value that changes over time from `start` to `end`, written as shape:start:end:period."""

    shape: Shape
    start: T
    end: T
    period_s: Annotated[float, Meta(gt=0)]


class FakeAdapters(Struct, frozen=True, forbid_unknown_fields=True):
    """LoRA adapters at one time: names separated by commas, and Unix seconds."""

    running: Names = ""
    waiting: Names = ""
    timestamp: Finite = 0.0


class FakeMetrics(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Fake values, one field per key; None or empty omits the family."""

    running_requests: Number | Function[Number] | None = None
    waiting_requests: Number | Function[Number] | None = None
    kv_cache_usage: Share | Function[Share] | None = None
    loras: Annotated[tuple[FakeAdapters, ...], Meta(max_length=1000)] = ()
    ttft_buckets_values: Annotated[Counts, Meta(max_length=TTFT_BUCKETS)] = ()
    tpot_buckets_values: Annotated[Counts, Meta(max_length=TPOT_BUCKETS)] = ()
    request_tpot_buckets_values: Histogram = ()
    e2erl_buckets_values: Histogram = ()
    queue_time_buckets_values: Histogram = ()
    inf_time_buckets_values: Histogram = ()
    prefill_time_buckets_values: Histogram = ()
    decode_time_buckets_values: Histogram = ()
    request_prompt_tokens: Histogram = ()
    request_generation_tokens: Histogram = ()
    request_params_max_tokens: Histogram = ()
    request_max_generation_tokens: Histogram = ()
    request_success_total: dict[FinishReason, Count] | None = None
    total_prompt_tokens: Count | None = None
    """None: derived from the counts of `request_prompt_tokens`."""
    total_generation_tokens: Count | None = None
    """None: derived from the counts of `request_generation_tokens`."""
    prefix_cache_hits: Count | None = None
    prefix_cache_queries: Count | None = None

    def __post_init__(self) -> None:
        hits = self.prefix_cache_hits
        queries = self.prefix_cache_queries
        if (hits is None) != (queries is None):
            raise ValueError("prefix-cache-hits requires prefix-cache-queries")
        if hits is not None and queries is not None and hits > queries:
            raise ValueError("prefix-cache-hits must not exceed prefix-cache-queries")


def parse(text: str | None) -> FakeMetrics | None:
    """Parses the setting; None means real metrics.

    Raises:
        FakeMetricsError: A key or value is wrong; the message has the first one.
    """
    document = _document(text)
    if document is None:
        return None
    return _typed(document)


def merged(current: str | None, update: object) -> str:
    """Returns the setting's JSON text after an update of some keys.

    `update` is an object, or its JSON text. An absent or null key keeps its value; an empty list or
    object clears it. A new list of token counts removes the old total, unless `update` has a new
    total.

    Raises:
        FakeMetricsError: The update or the result is wrong, or the metrics are real.
    """
    document = _document(current)
    if document is None:
        raise FakeMetricsError(
            "fake-metrics cannot be changed because the server was started without fake metrics"
        )
    changes = _document(update) or {}
    for counts, total in _TOTALS.items():
        if counts in changes and total not in changes:
            document.pop(total, None)
    document |= changes
    _typed(document)
    return json.dumps(document, ensure_ascii=False)


def _document(source: object) -> dict[str, object] | None:
    """Returns the object in `source` (or its JSON text) with canonical keys and without nulls."""
    content = source
    if isinstance(source, str | bytes):
        try:
            content = decode_untrusted(source, decoder=python_json)
        except UntrustedDataError:
            raise FakeMetricsError("fake-metrics must be valid JSON") from None
    if content is None:
        return None
    if not isinstance(content, dict):
        raise FakeMetricsError("fake-metrics must be a JSON object")
    keys = [field.replace("_", "-") for field in FakeMetrics.__struct_fields__]
    document: dict[str, object] = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        name = _OTHER_NAMES.get(name, name)
        if name not in keys:
            raise FakeMetricsError(
                f"{key!r} is not the name of a fake metric{suggestion(name, names=keys)}"
            )
        if name in document:
            raise FakeMetricsError(f"{name} is specified twice")
        document[name] = value
    return {name: value for name, value in document.items() if value is not None}


def _typed(document: Mapping[str, object]) -> FakeMetrics:
    values = dict(document)
    for name in _LEVELS:
        if name in values:
            values[name] = _function(values[name])
    adapters = values.get("loras")
    if isinstance(adapters, list):
        values["loras"] = [_object(item) for item in adapters]
    try:
        return msgspec.convert(values, FakeMetrics, strict=False)
    except msgspec.ValidationError as error:
        # The error is like "Expected `int` >= 0 - at `$.total-prompt-tokens`".
        rule, _, path = str(error).partition(" - at ")
    key = path.rpartition("$.")[2].strip("`")
    if key.startswith(_LEVELS):
        rule += _LEVEL_RULE
    raise FakeMetricsError(f"{key}: {rule}" if key else rule)


def _object(item: object) -> object:
    """Returns the object that a text has as JSON; any other value unchanged."""
    if isinstance(item, str):
        with suppress(UntrustedDataError):
            return decode_untrusted(item, decoder=python_json)
    return item


def _function(value: object) -> object:
    """Splits the text of a function of time; any other value unchanged."""
    if not isinstance(value, str) or value.count(":") != 3:
        return value
    fields = zip(Function.__struct_fields__, value.split(":"), strict=True)
    function: dict[str, object] = dict(fields)
    with suppress(ValueError):
        function["period_s"] = parse_duration(function["period_s"])
    return function
