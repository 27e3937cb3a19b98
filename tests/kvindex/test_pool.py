"""The event pool: many pods side by side, and whatever they send."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kvcache.events import encoder
from app.kvindex.backend import BackendUnavailable, Operation, Outcome, Stamp
from app.kvindex.event_pool import Pool, PoolSettings
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.memory import MemoryBackend
from app.kvindex.streams import REMEMBERED, Message, Replays
from tests.kvindex.engines import PROMPT, batch, removed, stored
from tests.kvindex.held import matched
from tests.kvindex.publisher import station

encode = encoder()


class Flaky(MemoryBackend):
    """Does not answer while `away`."""

    away = False

    def apply(self, source: Source, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        if self.away:
            raise BackendUnavailable("away")
        return super().apply(source, operations, stamp)


def make(backend: MemoryBackend | None = None, **more: object) -> tuple[Index, Pool]:
    index = Index(backend or MemoryBackend(), IndexSettings(block_size=4))
    return index, Pool(index, Replays(None), PoolSettings(**more), clock=lambda: 0.0)  # type: ignore[arg-type]


def message(pod: str, sequence: int, *events: object, model: str = "m") -> Message:
    return Message(pod, model, sequence, encode(batch(*events, ts=1000.0 + sequence)))  # type: ignore[arg-type]


def run(pool: Pool, now: float = 0.0) -> None:
    while pool.step(now):
        pass


@pytest.mark.slow
def test_ten_thousand_pods_share_a_prompt() -> None:
    index, pool = make(most_messages=20_000)
    pods = [f"10.{number >> 8}.{number & 255}.1:8000" for number in range(10_000)]
    for sequence, event in enumerate((stored([1, 2], PROMPT[:8]), stored([3], PROMPT[8:12], 2))):
        for pod in pods:
            pool.put(message(pod, sequence, event))
        run(pool)
    assert len(matched(index, PROMPT)) == 10_000 == len(index.backend.pods())
    assert {score.matched for score in index.score("m", PROMPT)} == {3}
    assert index.score("m", PROMPT, pods=pods[5:6])[0].pod == pods[5]
    for pod in pods[:9_999]:
        pool.gone(pod)
    run(pool)
    assert matched(index, PROMPT) == {pods[-1]: 3}
    assert index.losses.messages == {} == index.losses.events


def test_more_pods_than_there_is_room_for_are_refused_and_counted() -> None:
    index, pool = make(MemoryBackend(most_holders=10), most_engines=20, shards=1)
    for number in range(30):
        pool.put(message(f"pod{number}", 0, stored([1], PROMPT[:4])))
    run(pool)
    assert len(matched(index, PROMPT)) == 10
    assert index.losses.messages == {"too_many_pods": 20}
    assert len(pool.positions()) == 20


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 5))
def test_the_events_of_a_pod_stay_in_their_order(steps: list[tuple[int, int]], shards: int) -> None:
    """Storing and removing in turns: any other order would leave something else."""
    index, pool = make(shards=shards)
    sequences, held = dict.fromkeys(range(7), 0), dict.fromkeys(range(7), 0)
    for pod, key in steps:
        event = removed([held[pod]]) if held[pod] else stored([key + 1], PROMPT[:4])
        held[pod] = 0 if held[pod] else key + 1
        pool.put(message(f"pod{pod}", sequences[pod], event))
        sequences[pod] += 1
    run(pool)
    assert set(matched(index, PROMPT)) == {f"pod{pod}" for pod, key in held.items() if key}


def test_models_whose_hashes_collide_do_not_disturb_each_other() -> None:
    index, pool = make()
    for sequence, model in enumerate(["m", "other"]):
        pool.put(message("a", sequence, stored([1, 2], PROMPT[:8]), model=model))
        pool.put(message("b", sequence, stored([1, 2], PROMPT[4:12]), model=model))
    run(pool)
    pool.put(message("a", 2, removed([1, 2]), model="other"))
    run(pool)
    assert matched(index, PROMPT) == {"a": 2} and matched(index, PROMPT, "other") == {}
    assert index.size().copies == 2 + 2 + 2


def test_what_waits_is_bounded_in_messages_and_bytes() -> None:
    _, pool = make(most_messages=3, most_bytes=1 << 30, shards=1)
    for sequence in range(3):
        assert not pool.full
        pool.put(message("a", sequence))
    assert pool.full and len(pool) == 3
    run(pool)
    assert not pool.full and len(pool) == 0
    _, pool = make(most_messages=100, most_bytes=1000, shards=1)
    pool.put(Message("a", "m", 0, bytes(1000)))
    assert pool.full
    run(pool)
    assert not pool.full


def test_messages_wait_for_a_backend_that_is_away_and_it_is_asked_ever_less_often() -> None:
    backend = Flaky()
    index, pool = make(backend, shards=1)
    backend.away = True
    pool.put(message("a", 0, stored([1], PROMPT[:4])))
    asked = []
    apply = backend.apply
    backend.apply = lambda *a, **k: (asked.append(now), apply(*a, **k))[1]  # type: ignore[method-assign]
    for tick in range(300):
        now = tick / 10
        assert not pool.step(now)
    assert len(pool) == 1 and 5 < len(asked) < 12
    backend.away = False
    pool.step(100.0)
    assert matched(index, PROMPT) == {"a": 1} and len(pool) == 0


def test_a_restart_is_counted_once_though_the_backend_is_away() -> None:
    backend = Flaky()
    index, pool = make(backend, shards=1)
    for sequence in (5, 6):
        pool.put(message("a", sequence, stored([sequence], PROMPT[:4])))
    run(pool)
    backend.away = True
    pool.put(Message("a", "m", 0, encode(batch(stored([1], PROMPT[:4]), ts=9e9))))
    for now in (10.0, 20.0, 30.0):
        pool.step(now)
    backend.away = False
    run(pool, 40.0)
    assert index.size().copies == 1
    assert "kvcache_events_pod_restarts_total 1.0" in index.metrics.render({}, {}, {})


def test_an_engine_that_begins_anew_with_its_clock_set_back_is_noticed() -> None:
    index, pool = make(shards=1)
    for sequence in range(REMEMBERED + 6):
        pool.put(message("a", sequence, stored([sequence + 1], PROMPT[:4])))
    run(pool)
    pool.put(Message("a", "m", 0, encode(batch(stored([1], PROMPT[4:8]), ts=1.0))))
    run(pool)
    assert matched(index, PROMPT[4:]) == {"a": 1} and matched(index, PROMPT) == {}
    assert "kvcache_events_pod_restarts_total 1.0" in index.metrics.render({}, {}, {})


def test_an_error_of_the_index_itself_costs_one_message(caplog: pytest.LogCaptureFixture) -> None:
    index, pool = make(shards=1)
    ingest = index.ingest

    def fail(batch_: object, pod: str, *more: object, **named: object) -> object:
        if pod == "bad":
            raise RuntimeError("a fault")
        return ingest(batch_, pod, *more, **named)  # type: ignore[arg-type]

    index.ingest = fail  # type: ignore[assignment,method-assign]
    for pod in ("bad", "a"):
        pool.put(message(pod, 0, stored([1], PROMPT[:4])))
    run(pool)
    assert matched(index, PROMPT) == {"a": 1}
    assert index.losses.messages == {"failed": 1} and "a fault" in caplog.text


def test_a_pool_without_queues_is_refused() -> None:
    with pytest.raises(ValueError):
        make(shards=0)


frames = st.lists(st.binary(max_size=40), max_size=5)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(frames, max_size=20), st.integers())
def test_no_frames_do_harm(sent: list[list[bytes]], seed: int) -> None:
    rng = Random(seed)
    with station() as place:
        place.listen(topic="")
        engine = place.engine("kv@a@m")
        place.meet(engine)
        sequence = 0
        for each in sent:
            if each and each[0][:6] != b"kv@a@m":
                engine.send_frames(*each)
            if rng.random() < 0.5:
                number = rng.randrange(10)
                engine.send(encode(batch(stored([sequence + 1], [number] * 4), ts=5000.0 + sequence)))
                sequence += 1
        engine.publish(stored([77], PROMPT[:4]), ts=1e6)
        place.until(lambda: matched(place.index, PROMPT).get("a") == 1)
        assert "failed" not in place.index.losses.messages
        assert "gap" not in place.index.losses.messages
