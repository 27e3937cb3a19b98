"""The `kvcache_` families of llm-d's index (kv-cache specification, 4), and a few that name its losses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from app.kvindex.decoding import field_losses
from app.kvindex.losses import EVENT_LOSSES, MESSAGE_LOSSES
from app.metrics.instruments import Counter, Gauge, Histogram
from app.metrics.text import Family

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FAST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, *SECONDS)
"""llm-d's buckets begin at 5 ms, where most lookups have ended long ago."""


class IndexMetrics:
    """Counts what the index does. `now` gives Unix seconds for the `_created` samples."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        def family(name: str, help: str, create: Callable[[], Any], kind: str) -> Family[Any]:
            return Family(f"kvcache_{name}", help, create, kind, now)

        def counter(name: str, help: str) -> Family[Any]:
            return family(name, help, Counter, "counter")

        def latency(name: str, help: str, buckets: Sequence[float] = SECONDS) -> Family[Any]:
            return family(f"{name}_latency_seconds", help, partial(Histogram, buckets), "histogram")

        self._admissions = counter("index_admissions_total", "Copies of blocks that were added.")
        self._evictions = counter("index_evictions_total", "Copies of blocks that were removed.")
        self._lookups = counter("index_lookup_requests_total", "Prompts that were scored.")
        self._hits = counter("index_lookup_hits_total", "Blocks that the best pod had, over all prompts.")
        self._best = counter("index_max_pod_hit_count_total", "Other name of kvcache_index_lookup_hits.")
        self._latency = latency("index_lookup", "Time to score a prompt.", FAST_SECONDS)
        self._rendering = latency("tokenization_render_chat_template", "Time to render a conversation.")
        self._tokenizing = latency("tokenization_tokenization", "Time to turn a prompt into token ids.")
        self._tokenized = counter(
            "tokenization_tokenized_tokens_total", "Tokens of prompts that came as text."
        )
        self._messages = counter("events_messages_total", "Messages received.")
        self._lost_messages = counter("events_messages_skipped_total", "Messages not used, by reason.")
        self._lost_events = counter(
            "events_skipped_total", "Events not used (blocks, for unknown_block), by reason."
        )
        self._restarts = counter("events_pod_restarts_total", "Pods that began anew.")
        self._backend_losses = counter(
            "index_backend_losses_total", "Times that the backend had lost all it held."
        )
        self._replays = counter("events_replays_total", "Replays asked for, by result.")
        self._gauges = {
            name: family(name, help, Gauge, "gauge")
            for name, help in (
                ("index_blocks", "Blocks in the index."),
                ("index_copies", "Copies of blocks in the index: each holder and tier counts."),
                ("events_pods", "Pods in the index."),
                ("events_queue_depth", "Messages that wait to be applied."),
            )
        }
        self._added, self._removed = self._admissions.labels(), self._evictions.labels()
        self._asked, self._found, self._seconds = (
            family.labels() for family in (self._lookups, self._hits, self._latency)
        )
        self._best.add(self._found, {})
        self._received = self._messages.labels()
        for reason in MESSAGE_LOSSES:
            self._lost_messages.labels(reason=reason)
        for event_reason in (*EVENT_LOSSES, *field_losses()):
            self._lost_events.labels(reason=event_reason)
        self._restarts.labels()
        self._backend_losses.labels()

    def changed(self, added: int, removed: int) -> None:
        """Copies of blocks came and went."""
        self._added.inc(added)
        self._removed.inc(removed)

    def looked_up(self, seconds: float, matched: int) -> None:
        """A prompt was scored; the best pod has `matched` of its blocks."""
        self._asked.inc()
        self._found.inc(matched)
        self._seconds.observe(seconds)

    def tokenized(self, tokenizer: str, seconds: float, tokens: int) -> None:
        self._tokenizing.labels(tokenizer=tokenizer).observe(seconds)
        self._tokenized.labels(tokenizer=tokenizer).inc(tokens)

    def rendered(self, tokenizer: str, seconds: float) -> None:
        self._rendering.labels(tokenizer=tokenizer).observe(seconds)

    def received(self) -> None:
        self._received.inc()

    def restarted(self) -> None:
        self._restarts.labels().inc()

    def replayed(self, result: Literal["complete", "failed"]) -> None:
        self._replays.labels(result=result).inc()

    def render(
        self,
        gauges: Mapping[str, float],
        messages: Mapping[str, int],
        events: Mapping[str, int],
        times_lost: int = 0,
    ) -> str:
        """The text of all families, with the present values of gauges and the losses by reason."""
        for name, value in gauges.items():
            self._gauges[name].labels().set(value)
        self._backend_losses.labels().value = times_lost
        _set(self._lost_messages, messages)
        _set(self._lost_events, events)
        return "".join(family.render() for family in self._families())

    def _families(self) -> Iterable[Family[Any]]:
        yield from (self._admissions, self._evictions, self._lookups, self._hits, self._best, self._latency)
        yield from (self._rendering, self._tokenizing, self._tokenized)
        yield self._backend_losses
        yield from (self._messages, self._lost_messages, self._lost_events, self._restarts, self._replays)
        yield from self._gauges.values()


def _set(family: Family[Counter], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        family.labels(reason=reason).value = count
