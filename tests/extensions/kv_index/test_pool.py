"""The event pool: many pods side by side, what its queues hold, and how long they work and rest."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import AllBlocksCleared, KVEvent, encoder
from app.extensions.kv_index.backend import BackendUnavailableError, Outcome, Stamp
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.parts import split_batch
from app.extensions.kv_index.pool import Pool, fnv1a_32
from app.extensions.kv_index.resources import PoolSettings
from tests.extensions.kv_index.engines import PROMPT, batch, block, matched, removed, stored
from tests.extensions.kv_index.publisher import stepped_indexer, stopped_clock, work

encode = encoder()


class Failing(MemoryBackend):
    """Does not answer some of the calls."""

    calls = 0
    fails_at = range(0)

    def apply(self, source: IndexedEngine, operations: Any, stamp: Stamp | None = None) -> Outcome:
        self.calls += 1
        if self.calls in self.fails_at:
            raise BackendUnavailableError("away")
        return super().apply(source, operations, stamp)


def make(backend: MemoryBackend | None = None, **limits_changed: object) -> tuple[Index, Pool]:
    """With one queue, which shows the order of things."""
    index = Index(backend or MemoryBackend(), block_size=4)
    limits = PoolSettings(**({"shards": 1} | limits_changed))  # type: ignore[arg-type]
    return index, Pool(index, limits, clock=stopped_clock)


def message(pod: str, sequence: int, *events: object, model: str = "m") -> PublishedMessage:
    return PublishedMessage(pod, model, sequence, encode(batch(*events, ts=1000.0 + sequence)))  # type: ignore[arg-type]


def test_index_rejects_engines_above_the_maximum_number() -> None:
    index, pool = make(MemoryBackend(max_holders=10), max_engines=20, shards=1)
    for number in range(30):
        pool.put(message(f"pod{number}", 0, stored([1], PROMPT[:4])))
    work(pool)
    assert len(matched(index, PROMPT)) == 10
    assert index.metrics.skipped_messages == {"too_many_pods": 20}
    assert len(pool.positions()) == 20


def test_pod_restart_is_counted_once_despite_backend_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Failing()
    index, pool = make(backend)
    for sequence in (5, 6):
        pool.put(message("a", sequence, stored([sequence], PROMPT[:4])))
    work(pool)
    backend.fails_at = range(3, 6)
    monkeypatch.setattr("app.extensions.kv_index.resources.MIN_BACKOFF_S", 0.001)
    pool.put(PublishedMessage("a", "m", 0, encode(batch(stored([1], PROMPT[:4]), ts=9e9))))
    work(pool)
    assert backend.calls == 6
    assert index.backend.size().copies == 1
    assert "kvcache_events_pod_restarts_total 1.0" in index.metrics.render({})


def test_internal_error_drops_only_the_message_that_caused_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index, pool = make()
    ingest = index.ingest

    def fail(source: IndexedEngine, *arguments: Any) -> object:
        if source.pod == "bad":
            raise RuntimeError("a fault")
        return ingest(source, *arguments)

    index.ingest = fail  # type: ignore[assignment,method-assign]
    for pod in ("bad", "a"):
        pool.put(message(pod, 0, stored([1], PROMPT[:4])))
    work(pool)
    assert matched(index, PROMPT) == {"a": 1}
    assert index.metrics.skipped_messages == {"failed": 1} and "a fault" in caplog.text


frames = st.lists(st.binary(max_size=40), max_size=5)


@settings(max_examples=20, deadline=None)
@given(st.lists(frames, max_size=20), st.integers())
def test_event_subscriber_continues_after_arbitrary_messages(
    messages: list[list[bytes]], seed: int
) -> None:
    rng = Random(seed)
    with stepped_indexer() as indexer:
        indexer.listen(topic="")
        engine = indexer.engine("kv@a@m")
        indexer.meet(engine)
        sequence = 0
        for frames_of_message in messages:
            if frames_of_message and frames_of_message[0][:6] != b"kv@a@m":
                engine.send_frames(*frames_of_message)
            if rng.random() < 0.5:
                number = rng.randrange(10)
                engine.send(
                    encode(batch(stored([sequence + 1], [number] * 4), ts=5000.0 + sequence))
                )
                sequence += 1
        engine.publish(stored([77], PROMPT[:4]), ts=1e6)

        def is_last_batch_indexed() -> bool:
            return matched(indexer.index, PROMPT).get("a") == 1

        indexer.wait_until(is_last_batch_indexed)
        assert "failed" not in indexer.index.metrics.skipped_messages
        assert "gap" not in indexer.index.metrics.skipped_messages


def test_each_change_of_the_backend_epoch_is_counted_as_one_gap() -> None:
    backend = MemoryBackend()
    index, pool = make(backend)
    for epoch, sequence in (("", 0), ("first", 1), ("first", 1), ("second", 2)):
        backend.epoch = epoch
        pool.put(message("a", sequence, block(sequence)))
        work(pool)
    assert index.metrics.skipped_messages == {"duplicate": 1, "gap": 2}


@pytest.mark.parametrize("unread", [b"garbage", bytes(2000)], ids=["unreadable", "too large"])
def test_unreadable_message_is_skipped_for_the_rank_that_expects_it(
    unread: bytes,
) -> None:
    index, pool = make(max_payload_bytes=1000)

    def put(sequence: int, rank: int, number: int) -> None:
        payload = encode(batch(stored([number], [number] * 4), ts=1000.0 + sequence, rank=rank))
        pool.put(PublishedMessage("a", "m", sequence, payload))

    for sequence, rank in ((3, 0), (3, 1), (3, 2), (4, 0)):
        put(sequence, rank, 1)
    pool.put(PublishedMessage("a", "m", 4, unread))
    pool.put(PublishedMessage("b", "m", 4, unread))
    work(pool)
    index.metrics.skipped_messages.pop("gap")
    for sequence, rank in ((5, 0), (5, 1), (5, 2)):
        put(sequence, rank, 2)
    work(pool)
    assert {position.rank: position.sequence for position in pool.positions()} == {0: 5, 1: 5, 2: 5}
    assert index.metrics.skipped_messages["gap"] == 1
    assert sum(index.metrics.skipped_messages.values()) == 1 + 2


def test_longest_silent_pods_are_removed_above_the_limit() -> None:
    index, pool = make(max_pods=3)
    for sequence, pod in enumerate("abcade"):  # when d comes, a is not the longest silent
        pool.put(
            PublishedMessage(
                pod, "m", sequence, encode(batch(stored([1], PROMPT[:4]), ts=1000.0 + sequence))
            )
        )
    work(pool)
    assert set(matched(index, PROMPT)) == {"a", "d", "e"}
    assert "kvcache_events_pods_evicted_total 2.0" in index.metrics.render({})


def test_event_losses_are_counted_once_when_a_batch_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.extensions.kv_index.resources.MIN_BACKOFF_S", 0.001)
    backend = Failing()
    backend.fails_at = range(1, 4)
    index, pool = make(backend)
    stores = [stored([number], [number] * 4) for number in range(2, 6_002)]
    events: list[KVEvent] = [stored([1], PROMPT[:3]), *stores, removed([9**9])]
    pool.put(PublishedMessage("a", "m", 0, encode(batch(*events, ts=1000.0))))
    work(pool)
    parts = list(split_batch(events, block_size=4))
    assert backend.calls == 3 + len(parts) and index.backend.size().copies == 6_000
    assert index.metrics.skipped_events == {"token_count": 1, "unknown_block": 1}


def test_other_greenlets_run_while_thousands_of_blocks_are_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, pool = make()
    copies = [0]

    def record_copies() -> None:
        copies.append(index.backend.size().copies)

    for module in (
        "extensions.kv_index.index",
        "extensions.kv_index.memory",
        "core.base.clock.pause",
    ):
        monkeypatch.setattr(f"app.{module}.pause_if_possible", record_copies)
    stores = [stored([number], [number] * 4) for number in range(1, 5_001)]
    for sequence, events in enumerate((stores, [AllBlocksCleared()])):
        pool.put(PublishedMessage("a", "m", sequence, encode(batch(*events, ts=1000.0 + sequence))))
    work(pool)
    counts = pairwise([*copies, index.backend.size().copies])
    max_step = max(abs(later - earlier) for earlier, later in counts)
    assert max(copies) > 4_000
    assert index.backend.size().copies == 0
    assert max_step <= 2048
    assert index.metrics.skipped_events == {}


def test_fnv_hashes_equal_those_of_llm_d() -> None:
    hashes = {b"": 0x811C9DC5, b"a": 0xE40C292C, b"pod1": 3435266023, b"10.0.0.1:8000": 1207617965}
    assert {data: fnv1a_32(data) for data in hashes} == hashes
