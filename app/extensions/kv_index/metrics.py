"""Metrics of the index: llm-d's `kvcache_` families, and losses.

Every unused message and event is counted with a reason, so that operators can find the cause.
"""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal, TypeAlias, get_args

from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram

MessageLoss: TypeAlias = Literal[
    "bad_frames",
    "bad_topic",
    "bad_sequence",
    "too_large",
    "unreadable",
    "duplicate",
    "gap",
    "foreign_replay",
    "too_many_pods",
    "no_memory",
    "failed",
]
"""Reasons for an unused message; docs/kv-index.md explains each."""

EventLoss: TypeAlias = Literal[
    "malformed_event",
    "unknown_event",
    "token_count",
    "extra_keys_count",
    "unknown_parent",
    "unaligned_parent",
    "unpaired_block",
    "unknown_block",
    "too_many_tiers",
]
"""Reasons for an unused event, beside `bad_<field>` for each field; docs/kv-index.md explains each.
"""

MESSAGE_LOSSES: tuple[MessageLoss, ...] = get_args(MessageLoss)
EVENT_LOSSES: tuple[EventLoss, ...] = get_args(EventLoss)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FAST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, *SECONDS)
"""Buckets of lookups, in seconds. llm-d's buckets begin at 5 ms, more than most lookups take."""

COUNTERS = {
    "index_admissions": "Copies of blocks that were added.",
    "index_evictions": "Copies of blocks that were removed.",
    "index_lookup_requests": "Prompts that were scored.",
    "index_lookup_hits": "Blocks that the best pod had, over all prompts.",
    "index_max_pod_hit_count": "Alias of kvcache_index_lookup_hits.",
    "tokenization_tokenized_tokens": "Tokens of prompts that were sent as text.",
    "index_backend_losses": "Times that the backend lost all its data.",
    "events_messages": "Messages received.",
    "events_messages_skipped": "Messages that were not used, by reason.",
    "events_skipped": "Events (blocks, for unknown_block) not used, by reason.",
    "events_pod_restarts": "Restarts of pods.",
    "events_replays": "Replays that were requested, by result.",
    "events_pods_evicted": "Longest silent pods, removed to make room for new ones.",
}
LATENCIES = {
    "index_lookup": ("Time to score a prompt.", FAST_SECONDS),
    "tokenization_render_chat_template": ("Time to render a conversation.", SECONDS),
    "tokenization_tokenization": ("Time to tokenize a prompt.", SECONDS),
}
GAUGES = {
    "index_blocks": "Blocks in the index.",
    "index_copies": "Copies of blocks in the index, one for each holder and tier.",
    "events_pods": "Pods in the index.",
    "events_queue_depth": "Messages that wait to be applied.",
}


class IndexMetrics:
    """Metrics of an index.

    `reasons` are further reasons for lost events, shown as 0 from the start.
    """

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self._counters = {
            name: Family(f"kvcache_{name}_total", help, Counter, kind="counter")
            for name, help in COUNTERS.items()
        }
        self._latencies = {
            name: Family(
                f"kvcache_{name}_latency_seconds",
                help,
                partial(Histogram, buckets),
                kind="histogram",
            )
            for name, (help, buckets) in LATENCIES.items()
        }
        self._gauges = {
            name: Family(f"kvcache_{name}", help, Gauge, kind="gauge")
            for name, help in GAUGES.items()
        }
        self.added = self._counter("index_admissions")
        self.removed = self._counter("index_evictions")
        self.received = self._counter("events_messages")
        self.restarts = self._counter("events_pod_restarts")
        self.evicted_pods = self._counter("events_pods_evicted")
        self._lookups = self._counter("index_lookup_requests")
        self._hits = self._counter("index_lookup_hits")
        self._counters["index_max_pod_hit_count"].add(self._hits, {})
        self._backend_losses = self._counter("index_backend_losses")
        self._lookup_latency = self._latencies["index_lookup"].labels()
        self.skipped_messages: Counts[str] = Counts()
        """Unused messages, by reason."""
        self.skipped_events: Counts[str] = Counts()
        """Unused events, by reason."""
        self._set("events_messages_skipped", dict.fromkeys(MESSAGE_LOSSES, 0))
        self._set("events_skipped", dict.fromkeys((*EVENT_LOSSES, *reasons), 0))

    def skip_message(self, reason: MessageLoss, count: int = 1) -> None:
        """Counts unused messages."""
        self.skipped_messages[reason] += count

    def record_lookup(self, seconds: float, matched: int) -> None:
        """Counts a scored prompt; the best pod has `matched` of the prompt's blocks."""
        self._lookups.inc()
        self._hits.inc(matched)
        self._lookup_latency.observe(seconds)

    def record_tokenization(self, tokenizer: str, seconds: float, tokens: int) -> None:
        """Counts a tokenized prompt."""
        self._latencies["tokenization_tokenization"].labels(tokenizer=tokenizer).observe(seconds)
        self._counter("tokenization_tokenized_tokens", tokenizer=tokenizer).inc(tokens)

    def record_rendering(self, tokenizer: str, seconds: float) -> None:
        """Counts a rendered conversation."""
        latency = self._latencies["tokenization_render_chat_template"].labels(tokenizer=tokenizer)
        latency.observe(seconds)

    def record_replay(self, is_complete: bool) -> None:
        """Counts a replay that has ended."""
        self._counter("events_replays", result="complete" if is_complete else "failed").inc()

    def render(self, gauges: Mapping[str, float], loss_count: int = 0) -> str:
        """Returns all families in the Prometheus text format.

        `gauges` has their values by name; `loss_count` counts the losses of the backend's data.
        """
        for name, value in gauges.items():
            self._gauges[name].labels().value = value
        self._backend_losses.value = loss_count
        self._set("events_messages_skipped", self.skipped_messages)
        self._set("events_skipped", self.skipped_events)
        texts = [family.render() for family in self._counters.values()]
        texts += [family.render() for family in self._latencies.values()]
        texts += [family.render() for family in self._gauges.values()]
        return "".join(texts)

    def _counter(self, name: str, **labels: str) -> Counter:
        return self._counters[name].labels(**labels)

    def _set(self, name: str, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            self._counter(name, reason=reason).value = count
