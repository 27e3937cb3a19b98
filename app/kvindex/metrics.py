"""What the index counts: the `kvcache_` families of llm-d (kv-cache specification, 4), and its losses.

A loss without a name is a fault that nobody finds: whatever was not used is counted by reason.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar, get_args

from app.metrics.instruments import Counter, Family, Gauge, Histogram

A = TypeVar("A", Counter, Gauge, Histogram)

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
        self._messages: Counts[str] = Counts()
        self._events: Counts[str] = Counts()

    def message(self, reason: MessageLoss, count: int = 1) -> None:
        self._messages[reason] += count

    def event(self, reason: str, count: int = 1) -> None:
        """`reason` is an `EventLoss`, or `bad_` and the name of a field."""
        self._events[reason] += count

    def count(self, lost: Iterable[str], unknown_blocks: int) -> None:
        """Counts what of a batch was not used: events by their reasons, and blocks that are not known."""
        for reason in lost:
            self.event(reason)
        if unknown_blocks:
            self.event("unknown_block", unknown_blocks)

    @property
    def messages(self) -> Mapping[str, int]:
        return self._messages

    @property
    def events(self) -> Mapping[str, int]:
        return self._events


class IndexMetrics:
    """Counts what the index does. `now` gives Unix seconds for the `_created` samples."""

    def __init__(self, now: Callable[[], float] = time.time, reasons: Iterable[str] = ()) -> None:
        """`reasons` are those of events that are counted from 0 on, besides `EventLoss`."""

        def family(name: str, help: str, create: Callable[[], A], kind: str) -> Family[A]:
            return Family(f"kvcache_{name}", help, create, kind, now)

        def counter(name: str, help: str) -> Family[Counter]:
            return family(name, help, Counter, "counter")

        def latency(name: str, help: str, buckets: Sequence[float] = SECONDS) -> Family[Histogram]:
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
        self._crowded_out = counter(
            "events_pods_evicted_total", "Pods forgotten as there were too many: the longest silent ones."
        )
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
        self._asked, self._found = self._lookups.labels(), self._hits.labels()
        self._seconds = self._latency.labels()
        self._best.add(self._found, {})
        self._received = self._messages.labels()
        for reason in MESSAGE_LOSSES:
            self._lost_messages.labels(reason=reason)
        for event_reason in (*EVENT_LOSSES, *reasons):
            self._lost_events.labels(reason=event_reason)
        self._restarts.labels()
        self._crowded_out.labels()
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

    @property
    def messages(self) -> int:
        """How many were received."""
        return int(self._received.value)

    def restarted(self) -> None:
        self._restarts.labels().inc()

    def crowded_out(self) -> None:
        """A pod was forgotten to make room for another one."""
        self._crowded_out.labels().inc()

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

    def _families(self) -> Iterable[Family[Counter] | Family[Gauge] | Family[Histogram]]:
        yield from (self._admissions, self._evictions, self._lookups, self._hits, self._best, self._latency)
        yield from (self._rendering, self._tokenizing, self._tokenized)
        yield self._backend_losses
        yield from (self._messages, self._lost_messages, self._lost_events, self._restarts, self._replays)
        yield self._crowded_out
        yield from self._gauges.values()


def _set(family: Family[Counter], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        family.labels(reason=reason).value = count
