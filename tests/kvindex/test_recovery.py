"""What waits for a replay, for how long, and what becomes of it when the replay is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kvcache.events import KVEvent
from app.kvindex import streams
from app.kvindex.memory import MemoryBackend
from app.kvindex.streams import MESSAGE_BYTES, Message, ReplayLimits
from tests.kvindex.engines import PROMPT, block, removed, stored
from tests.kvindex.publisher import Engine, Station, station


@pytest.fixture
def silent(place: Station) -> Engine:
    """An engine that answers nothing until it is among the place's again."""
    engine = place.engine(connect=False)
    place.engines.remove(engine)
    return engine


def put(place: Station, engine: Engine, sequence: int, *events: KVEvent, **more: object) -> Message:
    payload = engine.pack(*events, ts=1000.0 + sequence)
    sent = Message("a", "m", sequence, payload, engine.replay, **more)  # type: ignore[arg-type]
    place.pool.put(sent)
    return sent


@pytest.mark.parametrize("bound", ["messages", "bytes", "bytes of all pods"])
def test_what_waits_is_bounded(
    place: Station, silent: Engine, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [put(place, silent, 5 + number, block(number)) for number in range(3)]
    size = sum(len(message.payload) for message in held) + 3 * MESSAGE_BYTES
    match bound:
        case "messages":
            monkeypatch.setattr(streams, "MOST_HELD", 3)
        case "bytes":
            monkeypatch.setattr(streams, "MOST_HELD_BYTES", size)
        case _:
            place.replays.limit_bytes = size
    place.settle()
    assert place.matched(PROMPT) == {} and place.replays.size_bytes == size
    put(place, silent, 8, block(3))
    place.settle()
    assert place.matched(PROMPT) == {"a": 4} and place.replays.size_bytes == 0
    assert place.index.losses.messages == {"gap": 5} and place.ended_replays() == {"failed": 1}
    silent.close()


def test_what_waits_for_its_turn_is_bounded_too(
    place: Station, silent: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_HELD", 1)
    place.replays.limits = ReplayLimits(at_once=0)
    put(place, silent, 5, block(0))
    place.settle()
    assert place.matched(PROMPT) == {}
    put(place, silent, 6, block(1))
    place.settle()
    assert place.matched(PROMPT) == {"a": 2} and place.replays.size_bytes == 0
    assert place.index.losses.messages == {"gap": 5}
    silent.close()


def test_a_pod_that_is_gone_waits_no_more(place: Station, silent: Engine) -> None:
    put(place, silent, 5, block(0))
    place.settle()
    assert place.replays._running == 1 and place.replays.size_bytes > 0
    (position,) = place.pool.positions()
    assert (position.sequence, position.lag_s) == (None, 0.0)
    place.pool.gone("a")
    place.settle()
    assert place.replays._running == place.replays.size_bytes == 0 and place.pool.positions() == []
    silent.close()


def test_after_a_failure_the_engine_is_asked_again_when_it_has_cooled_down(
    place: Station, silent: Engine
) -> None:
    put(place, silent, 5, block(0))
    asked: list[int] = []
    for now, number, expected in ((0.0, 1, [0]), (2.0, 2, [0]), (31.9, 3, [0]), (32.0, 4, [0, 12])):
        place.now = now
        put(place, silent, 5 + 2 * number, block(number))
        place.settle()
        while len(asked) < len(expected):
            asked.append(silent.hear())
        assert asked == expected and not silent._router.poll(0)
    assert place.matched(PROMPT) == {"a": 4} and place.index.losses.messages == {"gap": 5 + 1 + 1 + 1}
    silent.close()


@pytest.mark.parametrize(
    ("unread", "reason"), [(b"garbage", "unreadable"), (bytes(1 + (1 << 20)), "too_large")]
)
def test_a_batch_of_a_replay_that_cannot_be_read_is_lost_alone(
    place: Station, silent: Engine, unread: bytes, reason: str
) -> None:
    put(place, silent, 3, block(1))
    silent.kept = {0: silent.pack(block(0), ts=1000.0), 1: unread, 2: silent.pack(ts=1002.0)}
    place.engines.append(silent)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert place.index.losses.messages == {reason: 1}


def test_a_step_tells_whether_a_replay_has_brought_something(place: Station, silent: Engine) -> None:
    for number in range(4):
        silent.publish(block(number), lose=True)
    put(place, silent, 4, block(4))
    while not silent.asked:
        assert not place.pool.step(0.0)
        silent.serve()
    told = False
    while not told:
        told = place.pool.step(0.0)
        assert told == bool(place.matched(PROMPT))
    place.until(lambda: place.matched(PROMPT) == {"a": 5})
    place.settle()
    assert not place.pool.step(0.0) and not any(shard.waiting for shard in place.pool.shards)
    silent.close()


def test_an_address_that_is_the_engines_own_is_asked_whatever_its_rank(place: Station) -> None:
    engine = place.engine(connect=False)
    for number in range(3):
        engine.publish(block(number), lose=True, rank=1)
    place.pool.put(Message("a", "m", 2, engine.kept[2], engine.replay))
    place.until(lambda: place.matched(PROMPT) == {"a": 3})
    assert engine.asked == [0]


def test_without_a_way_to_ask_nothing_waits() -> None:
    with station() as place:
        place.replays._context = None
        engine = place.engine(connect=False)
        put(place, engine, 5, block(0))
        place.settle()
        assert place.matched(PROMPT) == {"a": 1} and place.index.losses.messages == {"gap": 5}


class Forgetful(MemoryBackend):
    """May lose all that it has, as a database that begins anew."""

    def lose(self) -> None:
        fresh = MemoryBackend()
        self.__dict__.update(fresh.__dict__)
        self.epoch = f"{self.epoch}again"


@pytest.mark.parametrize("waiting", [True, False], ids=["during a replay", "between replays"])
def test_when_the_backend_has_lost_everything_all_is_asked_for_again(waiting: bool) -> None:
    backend = Forgetful()
    backend.epoch = "first"
    with station(backend) as place:
        place.pool.step(0.0)
        engine = place.engine(connect=False)
        for number in range(3):
            engine.publish(block(number), lose=True)
            place.pool.put(Message("a", "m", number, engine.kept[number], engine.replay))
        place.until(lambda: place.matched(PROMPT) == {"a": 3})
        place.settle()
        engine.asked.clear()
        place.engines.clear()
        engine.publish(block(3), lose=True)
        if waiting:
            put(place, engine, 4, block(4))
            place.settle()
            engine.asked.append(engine.hear())  # else it may be lost with the socket that it left by
        backend.lose()
        put(place, engine, 5 if waiting else 4, *([] if waiting else [block(4)]))
        place.settle()
        place.engines.append(engine)
        place.until(lambda: place.matched(PROMPT) == {"a": 5})
        place.settle()
        assert engine.asked == ([3, 0] if waiting else [0])
        assert place.index.losses.messages == {}
        assert place.replays._running == place.replays.size_bytes == 0


fates = st.lists(
    st.sampled_from(["comes", "comes", "comes twice", "is lost", "is lost on both ways"]), max_size=12
)


@settings(max_examples=30, deadline=None)
@given(fates, st.integers(0, 3))
def test_whatever_is_lost_on_the_way_is_filled_in_its_order(lost: list[str], steps: int) -> None:
    """Each batch takes away the block of the one before it: in another order, others would be left."""
    with station() as place:
        engine = place.engine(connect=False)
        left: set[int] = set()
        for number, fate in enumerate([*lost, "comes"]):
            engine.publish(removed([number]), stored([number + 1], [number] * 4), lose=True)
            for _ in range(("comes", "comes twice").index(fate) + 1 if fate.startswith("comes") else 0):
                place.pool.put(Message("a", "m", number, engine.kept[number], engine.replay))
            if fate == "is lost on both ways":
                del engine.kept[number]
            else:
                left = left - {number} | {number + 1}
            for _ in range(steps):
                place.step()
        shards = place.pool.shards
        place.until(lambda: not any(shard.waiting for shard in shards))
        assert [place.matched([number - 1] * 4) for number in left] == [{"a": 1}] * len(left)
        assert place.index.size().copies == len(left)
        (position,) = place.pool.positions()
        assert position.sequence == len(lost) and position.lag_s == 2000.0 - 1000.0 - len(lost)
        found = place.index.losses.messages
        assert found.get("gap", 0) == lost.count("is lost on both ways")
        assert set(found) <= {"gap", "duplicate"}  # a replay may bring what then comes by itself
        assert place.replays._running == place.replays.size_bytes == 0
        assert [shard.size_bytes for shard in shards] == [0] * len(shards)
