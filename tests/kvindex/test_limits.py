"""What is huge or hostile is refused by name, or worked on with pauses, and the answer is the right one.

How long others wait is measured by `benchmarks/kv_stalls.py`; here it is counted what is done in one go.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from app.kvcache.events import AllBlocksCleared, KVEvent, encoder
from app.kvindex.backend import BackendUnavailable, Outcome, Stamp
from app.kvindex.event_pool import MOST_PODS, Pool, PoolSettings
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.memory import MemoryBackend
from app.kvindex.streams import Message, Replays
from tests.kvindex.engines import PROMPT, batch, removed, stored
from tests.kvindex.held import matched
from tests.kvindex.publisher import Station

pack = msgspec.msgpack.encode


def make(backend: MemoryBackend | None = None, **more: Any) -> tuple[Index, Pool]:
    index = Index(backend or MemoryBackend(), IndexSettings(block_size=4))
    return index, Pool(index, Replays(None), PoolSettings(shards=1, **more))


def work_off(pool: Pool) -> None:
    while pool.step(0.0):
        pass


def events_of(events: bytes, count: int) -> bytes:
    """A batch of events that are packed."""
    return b"\x93" + pack(1000.0) + b"\xdd" + count.to_bytes(4, "big") + events + b"\x00"


def test_a_batch_of_too_many_events_is_refused_by_name() -> None:
    index, pool = make()
    pool.put(Message("a", "m", 0, encoder()(batch(stored([1], PROMPT[:4]), ts=1000.0))))
    pool.put(Message("a", "m", 1, events_of(b"\xc0" * 65_537, 65_537)))
    pool.put(Message("a", "m", 2, encoder()(batch(stored([2], PROMPT[4:8], 1), ts=1002.0))))
    work_off(pool)
    assert index.losses.events == {} and index.losses.messages == {"too_large": 1}
    assert matched(index, PROMPT) == {"a": 2}


@pytest.mark.parametrize("junk", [b"\xc0", b"\x05", b"\xff", b"\x80", b"\x90", b"\xa0", b"\xc3"])
def test_values_that_are_no_events_are_malformed_events(junk: bytes) -> None:
    index, pool = make()
    pool.put(Message("a", "m", 0, events_of(junk * 5_000, 5_000)))
    pool.put(Message("a", "m", 1, encoder()(batch(stored([1], PROMPT[:4]), ts=1001.0))))
    work_off(pool)
    assert index.losses.events == {"malformed_event": 5_000} and index.losses.messages == {}
    assert matched(index, PROMPT) == {"a": 1}


def test_others_have_a_turn_after_some_thousand_events(monkeypatch: pytest.MonkeyPatch) -> None:
    index, pool = make()
    copies = [0]
    for module in ("index", "memory", "event_pool"):
        monkeypatch.setattr(
            f"app.kvindex.{module}.pause_if_possible", lambda: copies.append(index.size().copies)
        )
    stores = [stored([number], [number] * 4) for number in range(1, 5_001)]
    for sequence, events in enumerate((stores, [AllBlocksCleared()])):
        pool.put(Message("a", "m", sequence, encoder()(batch(*events, ts=1000.0 + sequence))))
    work_off(pool)
    most = max(abs(after - before) for before, after in pairwise([*copies, index.size().copies]))
    assert max(copies) > 4_000 and index.size().copies == 0 and most <= 2048
    assert index.losses.events == {}


def test_of_too_many_pods_the_longest_silent_are_forgotten() -> None:
    index, pool = make(most_pods=3)
    for sequence, pod in enumerate("abcade"):  # when d comes, a is not the longest silent
        pool.put(Message(pod, "m", sequence, encoder()(batch(stored([1], PROMPT[:4]), ts=1000.0 + sequence))))
    work_off(pool)
    assert set(matched(index, PROMPT)) == {"a", "d", "e"}
    assert "kvcache_events_pods_evicted_total 2.0" in index.metrics.render({}, {}, {})


@pytest.mark.slow
def test_thirty_eight_thousand_pods_leave_the_latest_ones() -> None:
    pods, (index, pool) = 38_000, make(most_messages=40_000)
    payload = encoder()(batch(stored([1, 2], PROMPT[:8]), ts=1000.0))
    for number in range(pods):
        pool.put(Message(f"pod{number}", "m", 0, payload))
    work_off(pool)
    kept = {f"pod{number}" for number in range(pods - MOST_PODS, pods)}
    assert matched(index, PROMPT) == dict.fromkeys(kept, 2)
    assert set(index.backend.pods()) == kept and len(pool.positions()) == MOST_PODS
    assert index.size().copies == 2 * MOST_PODS and index.losses.messages == {}
    text = index.metrics.render({}, {}, {})
    assert f"kvcache_events_pods_evicted_total {pods - MOST_PODS}.0" in text
    assert pool.size_bytes <= pool.limit_bytes


def test_a_pod_that_was_forgotten_can_come_back() -> None:
    index, pool = make(most_pods=1)
    for sequence, pod in ((0, "a"), (0, "b"), (1, "a")):
        event = stored([1], PROMPT[:4])
        pool.put(Message(pod, "m", sequence, encoder()(batch(event, ts=1000.0 + sequence))))
    work_off(pool)
    assert matched(index, PROMPT) == {"a": 1} and index.losses.messages == {"gap": 1}


def test_a_message_too_large_is_not_kept() -> None:
    index, pool = make(most_payload_bytes=1000)
    pool.put(Message("a", "m", 0, encoder()(batch(stored([1], PROMPT[:4]), ts=1000.0))))
    pool.put(Message("a", "m", 1, bytes(1001)))
    assert pool.shards[0].size_bytes < 1000
    pool.put(Message("a", "m", 2, encoder()(batch(stored([2], PROMPT[4:8], 1), ts=1002.0))))
    work_off(pool)
    assert matched(index, PROMPT) == {"a": 2} and index.losses.messages == {"too_large": 1}


def test_a_large_message_comes_through_a_socket(place: Station) -> None:
    place.listen()
    engine = place.engine("kv@a@m")
    place.meet(engine)
    tokens = [number % 50_000 + 70_000 for number in range(150_000)]
    payload = engine.pack(stored(range(1, 37_501), tokens))
    assert 800_000 < len(payload) < 1 << 20
    engine.send(payload)
    place.until(lambda: place.pool.positions() != [])
    place.until(lambda: place.matched(tokens) == {"a": 37_500})
    assert place.index.losses.events == {}


class Failing(MemoryBackend):
    """Does not answer the n-th call."""

    calls, fails_at = 0, 0

    def apply(self, source: Source, operations: Any, stamp: Stamp | None = None) -> Outcome:
        self.calls += 1
        if self.calls == self.fails_at:
            raise BackendUnavailable("away")
        return super().apply(source, operations, stamp)


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_what_is_lost_is_counted_once_though_the_backend_fails_halfway(fails_at: int) -> None:
    backend = Failing()
    backend.fails_at = fails_at
    index, pool = make(backend)
    stores = [stored([number], [number] * 4) for number in range(2, 6_002)]
    events: list[KVEvent] = [stored([1], PROMPT[:3]), *stores, removed([9**9])]
    pool.put(Message("a", "m", 0, encoder()(batch(*events, ts=1000.0))))
    for now in range(100):
        pool.step(float(now))
    assert backend.calls > 5 and index.size().copies == 6_000
    assert index.losses.events == {"token_count": 1, "unknown_block": 1}
