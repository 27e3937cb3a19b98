"""What the index counts: the `kvcache_` families of llm-d (kv-cache specification, 4), and its losses.

A loss without a name is a fault that nobody finds: whatever was not used is counted by reason.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

from app.metrics.instruments import Counter, Family, Gauge, Histogram

MessageLoss: TypeAlias = Literal[
    "bad_frames",
    "bad_topic",
    "too_large",
    "unreadable",
    "duplicate",
    "gap",
    "foreign_replay",
    "too_many_pods",
    "failed",
]
"""Why a whole message was not used.

`bad_frames`: not three frames, or a sequence number that is not 8 bytes. `bad_topic`: names no pod.
`too_large`: more bytes than allowed, or more than 65,536 events. `unreadable`: its payload is no batch, or
nested too deeply. `duplicate`: it was applied before. `gap`: never received (counted in messages), and not
replayed. `foreign_replay`: a replay that another pod or rank has answered, the rest of which is left.
`too_many_pods`: of one pod too many. `failed`: an error of the index itself, which is logged.
"""

EventLoss: TypeAlias = Literal[
    "malformed_event",
    "unknown_event",
    "token_count",
    "extra_keys_count",
    "unknown_parent",
    "unaligned_parent",
    "unknown_block",
    "too_many_tiers",
]
"""Why one event was not used; besides these there is `bad_<field>` for each field.

`malformed_event`: neither a map nor an array with a name. `unknown_event`: of another name. `token_count`:
not as many tokens as the blocks have. `extra_keys_count`: not one entry for each block. `unknown_parent`:
continues a block that is not known. `unaligned_parent`: continues inside a block of the index whose first
tokens are forgotten. `unknown_block`: offloads or removes blocks (counted in blocks) that are not known.
`too_many_tiers`: names one storage medium too many.
"""

MESSAGE_LOSSES: tuple[MessageLoss, ...] = get_args(MessageLoss)
EVENT_LOSSES: tuple[EventLoss, ...] = get_args(EventLoss)


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FAST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, *SECONDS)
"""llm-d's buckets begin at 5 ms, where most lookups have ended long ago."""


class Losses:
    """Counts of messages and of events that were not used."""

    def __init__(self) -> None:
        self.messages: Counts[str] = Counts()
        self.events: Counts[str] = Counts()

    def message(self, reason: MessageLoss, count: int = 1) -> None:
        self.messages[reason] += count

    def event(self, reason: str, count: int = 1) -> None:
        """`reason` is an `EventLoss`, or `bad_` and the name of a field."""
        self.events[reason] += count

    def count(self, lost: Iterable[str], unknown_blocks: int) -> None:
        """Counts what of a batch was not used: events by their reasons, and blocks that are not known."""
        for reason in lost:
            self.event(reason)
        if unknown_blocks:
            self.event("unknown_block", unknown_blocks)


class IndexMetrics:
    """Counts what the index does. `now` gives Unix seconds for the `_created` samples."""

    def __init__(self, now: Callable[[], float] = time.time, reasons: Iterable[str] = ()) -> None:
        """`reasons` are those of events that are counted from 0 on, besides `EventLoss`."""
        self._families: list[Family[Counter] | Family[Gauge] | Family[Histogram]] = []

        def counter(name: str, help: str) -> Family[Counter]:
            family = Family(f"kvcache_{name}_total", help, Counter, "counter", now)
            self._families.append(family)
            return family

        def latency(name: str, help: str, buckets: Sequence[float] = SECONDS) -> Family[Histogram]:
            create = partial(Histogram, buckets)
            family = Family(f"kvcache_{name}_latency_seconds", help, create, "histogram", now)
            self._families.append(family)
            return family

        def gauge(name: str, help: str) -> Family[Gauge]:
            family = Family(f"kvcache_{name}", help, Gauge, "gauge", now)
            self._families.append(family)
            return family

        self._added = counter("index_admissions", "Copies of blocks that were added.").labels()
        self._removed = counter("index_evictions", "Copies of blocks that were removed.").labels()
        self._lookups = counter("index_lookup_requests", "Prompts that were scored.").labels()
        hits = counter("index_lookup_hits", "Blocks that the best pod had, over all prompts.")
        self._hits = hits.labels()
        best = counter("index_max_pod_hit_count", "Other name of kvcache_index_lookup_hits.")
        best.add(self._hits, {})
        self._seconds = latency("index_lookup", "Time to score a prompt.", FAST_SECONDS).labels()
        self._rendering = latency("tokenization_render_chat_template", "Time to render a conversation.")
        self._tokenizing = latency("tokenization_tokenization", "Time to turn a prompt into token ids.")
        self._tokenized = counter("tokenization_tokenized_tokens", "Tokens of prompts that came as text.")
        self._backend_losses = counter(
            "index_backend_losses", "Times that the backend had lost all it held."
        ).labels()
        self.received = counter("events_messages", "Messages received.").labels()
        self._lost_messages = counter("events_messages_skipped", "Messages not used, by reason.")
        self._lost_events = counter(
            "events_skipped", "Events not used (blocks, for unknown_block), by reason."
        )
        self.restarts = counter("events_pod_restarts", "Pods that began anew.").labels()
        self._replays = counter("events_replays", "Replays asked for, by result.")
        self.crowded_out = counter(
            "events_pods_evicted", "Pods forgotten as there were too many: the longest silent ones."
        ).labels()
        self._gauges = {
            "index_blocks": gauge("index_blocks", "Blocks in the index."),
            "index_copies": gauge(
                "index_copies", "Copies of blocks in the index: each holder and tier counts."
            ),
            "events_pods": gauge("events_pods", "Pods in the index."),
            "events_queue_depth": gauge("events_queue_depth", "Messages that wait to be applied."),
        }
        _set(self._lost_messages, dict.fromkeys(MESSAGE_LOSSES, 0))
        _set(self._lost_events, dict.fromkeys((*EVENT_LOSSES, *reasons), 0))

    def changed(self, added: int, removed: int) -> None:
        """Copies of blocks came and went."""
        self._added.inc(added)
        self._removed.inc(removed)

    def looked_up(self, seconds: float, matched: int) -> None:
        """A prompt was scored; the best pod has `matched` of its blocks."""
        self._lookups.inc()
        self._hits.inc(matched)
        self._seconds.observe(seconds)

    def tokenized(self, tokenizer: str, seconds: float, tokens: int) -> None:
        self._tokenizing.labels(tokenizer=tokenizer).observe(seconds)
        self._tokenized.labels(tokenizer=tokenizer).inc(tokens)

    def rendered(self, tokenizer: str, seconds: float) -> None:
        self._rendering.labels(tokenizer=tokenizer).observe(seconds)

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
        self._backend_losses.value = times_lost
        _set(self._lost_messages, messages)
        _set(self._lost_events, events)
        return "".join(family.render() for family in self._families)


def _set(family: Family[Counter], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        family.labels(reason=reason).value = count
