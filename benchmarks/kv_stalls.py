"""How late a greenlet is that ticks every 5 ms while the index of KV blocks works on what is
hostile or huge.

Everything is as in a worker of the server: one thread, gevent, the index with its sockets and
greenlets. Each scenario also checks that the answer is right in the end.
"""

from __future__ import annotations

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import gevent
import msgspec
import zmq.green as zmq

from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
)
from app.core.text.huggingface import default_tokenizer
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.metrics import IndexMetrics
from app.extensions.kv_index.resources import MAX_PODS
from app.extensions.kv_index.service import KvIndex
from app.extensions.kv_index.subscriber import SubscriberSettings
from app.extensions.kv_index.tokenization import Tokenization
from benchmarks.options import parser
from benchmarks.processes import collect_as_a_worker
from benchmarks.report import number, show, show_machine

TICK_S = 0.005
MOST_LATE_MS = 20.0
MODEL = "m"
BLOCK = 16
PODS = 38_000
EVENTS = 15_000
"""Events of a batch of nearly a megabyte."""
NILS = 65_536
"""As many values as a batch may have."""
BLOCKS = 1_000_000
LONG = 200_000
"""Tokens of a long prompt, nearly a megabyte."""

pack = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True)
class Lateness:
    """Of the ticks while something was done: the latest, how many, and how long it took altogether.

    `busy_ms` is the most that was due to this process; the rest of `worst_ms` others have taken.
    """

    worst_ms: float
    busy_ms: float
    ticks: int
    seconds: float


def lateness(work: Callable[[], object], tick_s: float = TICK_S) -> Lateness:
    """Tick while `work` is done by this and other greenlets.

    In a process that gevent has patched.
    """
    late: list[tuple[float, float]] = []

    def tick() -> None:
        while True:
            began = time.thread_time()
            due = time.perf_counter() + tick_s
            gevent.sleep(tick_s)
            late.append((time.perf_counter() - due, time.thread_time() - began))

    ticker = gevent.spawn(tick)
    gevent.sleep(10 * tick_s)
    late.clear()
    began = time.perf_counter()
    try:
        work()
        gevent.sleep(2 * tick_s)
    finally:
        ticker.kill()
    worst = max(wall for wall, _ in late)
    busy = max(min(tick_times) for tick_times in late)
    return Lateness(worst * 1e3, busy * 1e3, len(late), time.perf_counter() - began)


class Fleet:
    """An index, and a socket by which any pod publishes to it."""

    def __init__(self, index: KvIndex, socket: zmq.Socket[bytes]) -> None:
        self.index = index
        self._socket = socket
        self._sequences: dict[str, int] = {}
        self._published = 0

    def publish(self, pod: str, payload: bytes) -> None:
        sequence = self._sequences[pod] = self._sequences.get(pod, -1) + 1
        self._published += 1
        topic = f"kv@{pod}@{MODEL}".encode()
        self._socket.send_multipart(
            [topic, sequence.to_bytes(8, "big"), payload], copy=len(payload) < 1 << 16
        )

    def until_applied(self) -> None:
        """Wait until all that was published is applied. RuntimeError when it takes minutes."""
        metrics = self.index.index.metrics
        with gevent.Timeout(300, RuntimeError("the index is not done")):
            while metrics.received.value < self._published or self.index.stats()["queued"]:
                gevent.sleep(0.02)

    def meet(self) -> None:
        """Publish until the index has heard of it."""
        metrics = self.index.index.metrics
        while not metrics.received.value:
            self.publish("hello", packed([stored([1], range(BLOCK))]))
            gevent.sleep(0.05)
        gevent.sleep(0.2)
        self._published = int(metrics.received.value)
        self.until_applied()


@contextmanager
def fleet() -> Iterator[Fleet]:
    """An index that listens; a pod called hello has one block."""
    subscriber = SubscriberSettings(bind="tcp://127.0.0.1:*", model=MODEL)
    tokenization = Tokenization(lambda model: default_tokenizer(), IndexMetrics(), 10.0)
    index = KvIndex(Index(MemoryBackend(), BLOCK), tokenization, subscriber)
    index.open()
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.linger = 0
        socket.sndhwm = 0
        socket.connect(str(index.address))
        pods = Fleet(index, socket)
        pods.meet()
        try:
            yield pods
        finally:
            index.close()


def packed(events: Iterable[KVEvent]) -> bytes:
    """A batch as vLLM publishes it."""
    return pack(EventBatch(time.time(), list(events), 0))


def stored(hashes: Sequence[int], tokens: Sequence[int], parent: int | None = None) -> BlockStored:
    return BlockStored(
        list(hashes), parent, token_ids=list(tokens), block_size=BLOCK, lora_id=None, group_idx=0
    )


Scenario: TypeAlias = Callable[[Fleet], Callable[[], None]]
"""Prepares what is published; the work is then to publish it, to wait, and to ask."""


def nils(pods: Fleet) -> Callable[[], None]:
    """A batch of as many nils as it may have, in place of events."""
    payload = b"\x93" + pack(1.0) + b"\xdd" + NILS.to_bytes(4, "big") + b"\xc0" * NILS + b"\x00"
    return lambda: _publish(pods, [payload], {"malformed_event": NILS})


def only_nils(pods: Fleet) -> Callable[[], None]:
    """A megabyte of nils."""
    payload = b"\xc0" * (1 << 20)

    def work() -> None:
        _publish(pods, [payload], {})
        expect(pods.index.index.metrics.skipped_messages["unreadable"], 1)

    return work


def many_removals(pods: Fleet) -> Callable[[], None]:
    """One batch with events that remove one block each, in maps as vLLM writes them now."""
    payload = packed([BlockRemoved([n | 1 << 60]) for n in range(EVENTS)])
    return lambda: _publish(pods, [payload], {"unknown_block": EVENTS})


def many_clears(pods: Fleet) -> Callable[[], None]:
    """One batch of clears, as arrays."""
    payload = pack([time.time(), [["AllBlocksCleared"]] * EVENTS, 0])
    return lambda: _publish(pods, [payload], {})


def a_million_blocks(pods: Fleet) -> Callable[[], None]:
    """A million blocks stored by events of one block each, then cleared by one event."""
    payloads = [
        packed([stored([first + n], [first + n, 7] * 8) for n in range(1, 5_001)])
        for first in range(0, BLOCKS, 5_000)
    ]

    def work() -> None:
        _publish(pods, payloads, {})
        expect(pods.index.index.backend.size().copies, BLOCKS + 1)
        _publish(pods, [packed([AllBlocksCleared()])], {})
        expect(pods.index.index.backend.size().copies, 1)

    return work


def a_long_prompt(pods: Fleet) -> Callable[[], None]:
    """One event of a long prompt, and its score."""
    tokens = [(n * 7919) % 100_000 for n in range(LONG)]
    payload = packed([stored(range(1, LONG // BLOCK + 1), tokens)])

    def work() -> None:
        _publish(pods, [payload], {})
        (score,) = pods.index.index.score(MODEL, tokens)
        expect(score.matched, LONG // BLOCK)

    return work


def many_pods(pods: Fleet) -> Callable[[], None]:
    """38,000 pods that have the same blocks, and a score of them."""
    tokens = list(range(1, 4 * BLOCK + 1))
    payload = packed([stored([1, 2, 3, 4], tokens)])

    def work() -> None:
        for number_ in range(PODS):
            pods.publish(f"pod{number_}", payload)
            if number_ % 50 == 0:
                gevent.sleep(0.001)
        pods.until_applied()
        scores = pods.index.index.score(MODEL, tokens)
        expect(len(scores), MAX_PODS)
        newest_pods = range(PODS - MAX_PODS, PODS)
        expect(all(int(score.pod.removeprefix("pod")) in newest_pods for score in scores), True)
        evicted = f"kvcache_events_pods_evicted_total {PODS + 1 - MAX_PODS:.1f}"
        expect(evicted in pods.index.metrics_text(), True)

    return work


def _publish(pods: Fleet, payloads: Iterable[bytes], skipped: Mapping[str, int]) -> None:
    for payload in payloads:
        pods.publish("busy", payload)
        pods.until_applied()
    expect(pods.index.index.metrics.skipped_events, skipped)


def expect(actual: object, expected: object) -> None:
    """RuntimeError where they differ."""
    if actual != expected:
        raise RuntimeError(f"{str(actual)[:200]} instead of {str(expected)[:200]}")


SCENARIOS: Mapping[str, Scenario] = {
    "65,536 nils in place of events": nils,
    "a megabyte of nils": only_nils,
    "a batch of 15,000 removals": many_removals,
    "a batch of 15,000 clears": many_clears,
    "a million blocks, then a clear": a_million_blocks,
    "a prompt of 200,000 tokens, and its score": a_long_prompt,
    "38,000 pods, and a score of them": many_pods,
}


def stall(scenario: Scenario) -> Lateness:
    """How late a tick is while an index goes through a scenario.

    RuntimeError for a wrong answer.
    """
    with fleet() as pods:
        work = scenario(pods)
        gc.collect()
        return lateness(work)


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when a tick is too late in every round."""
    options = _options(argv)
    show_machine()
    collect_as_a_worker()
    rows = []
    status = 0
    for name, scenario in SCENARIOS.items():
        if options.only in name:
            seen = [stall(scenario) for _ in range(options.rounds)]
            best = min(seen, key=lambda stalled: stalled.busy_ms)
            figures = (best.busy_ms, 1), (best.worst_ms, 1), (best.seconds, 1), (best.ticks, 0)
            rows.append((name, *(number(value, digits) for value, digits in figures)))
            status |= best.busy_ms > MOST_LATE_MS
    columns = ("what arrives", "latest tick, ms", "with others on the machine", "seconds", "ticks")
    show(f"Ticks every {TICK_S * 1e3:.0f} ms while the index works", columns, rows)
    return status


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_stalls", __doc__, rounds=2)
    flags.add_argument("--only", default="", help="scenarios with this in their names")
    return flags.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
