"""The queues of the pool: what they hold, how long they work, and how long they rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from app.kvindex import event_pool
from app.kvindex.backend import Operation, Outcome, Stamp
from app.kvindex.event_pool import Pool, PoolSettings
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.memory import MemoryBackend
from app.kvindex.streams import MESSAGE_BYTES, Message, Replays
from tests.kvindex.engines import PROMPT, block, removed, stored
from tests.kvindex.held import matched
from tests.kvindex.test_pool import Flaky, batch, encode, make, message, run


class Noting(MemoryBackend):
    """Notes which batches are said to begin an engine anew, and knows how far others have come."""

    known: Stamp | None = None

    def __init__(self) -> None:
        super().__init__()
        self.restarts: list[bool] = []

    def apply(self, source: Source, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        assert stamp is not None
        self.restarts.append(stamp.restart)
        return super().apply(source, operations, stamp)

    def position(self, source: Source) -> Stamp | None:
        return self.known


def test_a_queue_rests_twice_as_long_every_time_and_at_most_five_seconds() -> None:
    backend = Flaky()
    _, pool = make(backend, shards=1)
    (shard,) = pool.shards
    for begin in (0.0, 1000.0):
        backend.away = True
        pool.put(message("a", int(begin), block(0)))
        rests, now = [], begin
        for _ in range(9):
            assert not shard.step(now) and shard.waiting
            rests.append(shard._rest_until - now)
            now = shard._rest_until
            assert not shard.step(now - 0.01) and shard._rest_until == now
        assert rests == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
        backend.away = False
        run(pool, now)
        assert len(pool) == 0 and not shard.waiting


def test_others_have_a_turn_when_a_message_has_taken_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick passes with every look at the clock: two of them are more than two milliseconds."""
    turns: list[None] = []
    monkeypatch.setattr(event_pool, "pause_if_possible", lambda: turns.append(None))
    clock = count().__next__
    index = Index(MemoryBackend(), IndexSettings(block_size=4))
    pool = Pool(index, Replays(None), PoolSettings(shards=1), clock=lambda: 0.0011 * clock())
    for number in range(6):
        pool.put(message("a", number, block(number)))
    assert not pool.step(0.0) and matched(index, PROMPT) == {"a": 6}
    assert len(turns) == 3


def test_between_so_many_messages_there_is_a_look_at_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_pool, "MOST_A_STEP", 3)
    _, pool = make(shards=1)
    for number in range(7):
        pool.put(message("a", number, block(number)))
    told = []
    while len(pool):
        told.append((pool.step(0.0), len(pool)))
    assert told == [(True, 4), (True, 1), (False, 0)]


def test_a_queue_is_woken_by_what_comes_and_sleeps_when_it_has_looked() -> None:
    _, pool = make(shards=1)
    (shard,) = pool.shards
    assert not shard.wake.is_set() and not shard.waiting
    for _ in range(2):
        pool.put(message("a", 0, block(0)))
        assert shard.wake.is_set() and shard.waiting
        run(pool)
        assert not shard.wake.is_set() and not shard.waiting
        pool.gone("a")
        assert shard.wake.is_set() and shard.waiting
        run(pool)


def test_what_waits_in_a_queue_is_reckoned_to_the_byte() -> None:
    sent = [message("a", number, block(number)) for number in range(3)]
    size = sum(len(each.payload) + MESSAGE_BYTES for each in sent)
    _, pool = make(most_bytes=2 * size, most_payload_bytes=len(sent[0].payload), shards=2)
    for each in sent:
        assert not pool.full
        pool.put(each)
    (shard,) = [each for each in pool.shards if len(each)]
    assert shard.size_bytes == size == shard.limit_bytes
    assert pool.full and pool.size_bytes == size
    pool.put(Message("a", "m", 3, sent[0].payload + b"\0"))
    pool.gone("a")
    assert len(pool) == 5 and shard.size_bytes == size
    assert pool.size_bytes == size
    pool.replays.size_bytes = 7
    assert pool.size_bytes == size + 7
    pool.replays.size_bytes = 0
    run(pool)
    assert pool.size_bytes == shard.size_bytes == 0 and not pool.full


def test_what_a_pool_may_hold_is_told_to_the_byte() -> None:
    _, pool = make(most_bytes=1000, most_pods=3, most_engines=5)
    pool.replays.limit_bytes = 30
    assert pool.limit_bytes == 1000 + 30


def test_every_queue_follows_its_share_of_the_engines() -> None:
    index, pool = make(most_engines=8, shards=4)
    for number in range(100):
        pool.put(message(f"pod{number}", 0, block(0)))
    run(pool)
    assert [len(shard.positions()) for shard in pool.shards] == [2, 2, 2, 2]
    assert index.losses.messages == {"too_many_pods": 92}


@pytest.mark.parametrize(("rest", "most"), [({"most_pods": 2}, 2), ({"most_pods": 1}, 1)])
def test_so_many_pods_are_followed(rest: dict[str, int], most: int) -> None:
    index, pool = make(**rest)
    forgotten = [pool.put(message(pod, 0, block(0))) for pod in "abab"[: 2 * most]]
    assert forgotten == [None] * 4 if most == 2 else forgotten == [None, "a"]
    run(pool)
    assert len(matched(index, PROMPT)) == most


def test_only_the_first_batch_after_a_restart_says_so() -> None:
    backend = Noting()
    _, pool = make(backend, shards=1)
    for sequence, ts in ((0, 1.0), (1, 2.0), (0, 9.0), (1, 10.0)):
        pool.put(Message("a", "m", sequence, encode(batch(block(sequence), ts=ts))))
    run(pool)
    assert backend.restarts == [False, False, True, False]


def test_an_engine_goes_on_where_another_indexer_has_seen_it() -> None:
    backend = Noting()
    index, pool = make(backend, shards=1)
    backend.known = Stamp(6, 1006.0)
    for sequence in (6, 7, 9):
        pool.put(message("a", sequence, block(sequence - 6)))
    run(pool)
    assert index.losses.messages == {"duplicate": 1, "gap": 1}


def test_a_backend_that_tells_its_epoch_late_has_lost_nothing() -> None:
    backend = MemoryBackend()
    index, pool = make(backend, shards=1)
    for epoch, sequence in (("", 0), ("first", 1), ("first", 1), ("second", 2)):
        backend.epoch = epoch
        pool.put(message("a", sequence, block(sequence)))
        run(pool)
    assert index.losses.messages == {"duplicate": 1, "gap": 2}


def test_a_loss_is_noticed_between_two_messages() -> None:
    """What comes behind the message that found it is the first of what the backend has."""
    backend = Noting()
    backend.epoch = "first"
    index, pool = make(backend, shards=1)
    apply = backend.apply

    def loses(source: Source, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        assert stamp is not None
        if stamp.sequence == 1:
            backend.epoch = "second"
        return apply(source, operations, stamp)

    backend.apply = loses  # type: ignore[method-assign]
    for sequence in range(3):
        pool.put(message("a", sequence, block(sequence)))
    pool.step(0.0)
    assert len(pool) == 0 and index.losses.messages == {"gap": 2}


@pytest.mark.parametrize("unread", [b"garbage", bytes(2000)], ids=["unreadable", "too large"])
def test_a_number_that_cannot_be_read_is_that_of_one_engine_that_awaits_it(unread: bytes) -> None:
    index, pool = make(shards=1, most_payload_bytes=1000)

    def put(sequence: int, rank: int, number: int) -> None:
        payload = encode(batch(stored([number], [number] * 4), ts=1000.0 + sequence, rank=rank))
        pool.put(Message("a", "m", sequence, payload))

    for sequence, rank in ((3, 0), (3, 1), (3, 2), (4, 0)):
        put(sequence, rank, 1)
    pool.put(Message("a", "m", 4, unread))
    pool.put(Message("b", "m", 4, unread))
    run(pool)
    index.losses.messages.pop("gap")
    for sequence, rank in ((5, 0), (5, 1), (5, 2)):
        put(sequence, rank, 2)
    run(pool)
    assert {each.rank: each.sequence for each in pool.positions()} == {0: 5, 1: 5, 2: 5}
    assert index.losses.messages["gap"] == 1
    assert sum(index.losses.messages.values()) == 1 + 2


def test_a_pod_that_is_gone_takes_its_engines_with_it() -> None:
    index, pool = make(shards=1)
    for model in ("m", "n"):
        pool.put(message("a", 0, block(0), model=model))
        pool.put(message("b", 0, block(0), model=model))
    pool.gone("a")
    pool.gone("nobody")
    run(pool)
    assert [(each.pod, each.model, each.sequence) for each in pool.positions()] == [
        ("b", "m", 0),
        ("b", "n", 0),
    ]
    assert matched(index, PROMPT) == {"b": 1}
    pool.put(message("a", 1, block(0), removed([1])))
    run(pool)
    assert index.losses.messages == {"gap": 1}
    pool.close()
