"""Streams of batches: each once and in order, gaps filled by a replay, restarts noticed."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.kvcache.events import KVEvent
from app.kvindex import streams
from app.kvindex.keys import fnv1a_32
from app.kvindex.streams import Message, SequenceTracker, Verdict
from tests.kvindex.engines import PROMPT, block, stored
from tests.kvindex.publisher import FakeEngine, Station


class History:
    """What `SequenceTracker` says, from the list of all batches that were applied since the last restart."""

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered
        self.forget()

    def forget(self) -> None:
        self.applied: list[tuple[int, float]] = []
        self.received = -1

    def apply(self, sequence: int, ts: float, replayed: bool) -> None:
        self.applied.append((sequence, ts))
        if not replayed:
            self.received = max(self.received, sequence)

    def last(self) -> int:
        return max(sequence for sequence, _ in self.applied)

    def skip(self, sequence: int) -> None:
        if self.applied and sequence == self.last() + 1:
            self.apply(sequence, max(ts for _, ts in self.applied), False)

    def missing(self, sequence: int) -> int:
        return len(range(self.last() + 1, sequence)) if self.applied else sequence

    def judge(self, sequence: int, ts: float) -> Verdict:
        if not self.applied:
            return Verdict.FIRST
        ahead = sequence - self.last()
        if ahead > 0:
            return Verdict.NEXT if ahead == 1 else Verdict.GAP
        times = dict(self.applied)
        if sequence >= self.applied[0][0] and -ahead < self.remembered:
            if sequence not in times:
                return Verdict.LATE
            if times[sequence] == ts:
                return Verdict.DUPLICATE
        came_in_a_replay = sequence > self.received and ts <= max(ts for _, ts in self.applied)
        return Verdict.DUPLICATE if came_in_a_replay else Verdict.RESTART


Deed = tuple[Literal["apply", "replay", "skip", "restart"], int, float]
deeds = st.lists(
    st.tuples(
        st.sampled_from(["apply", "apply", "apply", "replay", "replay", "skip", "restart"]),
        st.integers(0, 12),
        st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    ),
    max_size=12,
)


@given(deeds, st.integers(1, 6))
def test_a_stream_says_what_the_whole_history_says(done: list[Deed], remembered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "REMEMBERED", remembered)
        made, history = SequenceTracker(), History(remembered)
        for deed, sequence, ts in done:
            match deed:
                case "skip":
                    made.skip(sequence)
                    history.skip(sequence)
                case "restart":
                    made.restart()
                    history.forget()
                case _:
                    made.apply(sequence, ts, replayed=deed == "replay")
                    history.apply(sequence, ts, deed == "replay")
            for number in range(14):
                assert made.missing(number) == history.missing(number)
                for ts in (0.5, 1.0, 2.0, 3.0, 4.0):
                    assert made.judge(number, ts) is history.judge(number, ts)


def put(
    place: Station,
    engine: FakeEngine,
    sequence: int,
    *events: KVEvent,
    ts: float | None = None,
    **more: object,
) -> None:
    """A message, past the sockets."""
    payload = engine.pack(*events, ts=1000.0 + sequence if ts is None else ts)
    place.pool.put(Message("a", "m", sequence, payload, **more))  # type: ignore[arg-type]


def losses(place: Station) -> dict[str, int]:
    return dict(place.index.losses.messages)


def test_batches_out_of_order_are_all_applied(place: Station) -> None:
    engine = place.engine(connect=False)
    for sequence, number in ((3, 0), (4, 1), (6, 3), (5, 2)):
        put(place, engine, sequence, block(number) if number != 3 else stored([9], [1, 2, 3, 4]))
    place.settle()
    assert place.matched(PROMPT) == {"a": 3}
    assert losses(place) == {"gap": 3 + 1}


def test_a_pod_that_is_first_heard_late_has_lost_what_came_before(place: Station) -> None:
    engine = place.engine(connect=False)
    put(place, engine, 41, block(0))
    put(place, engine, 42, block(1))
    put(place, engine, 7, block(0), ts=5000.0)  # begins anew
    place.settle()
    assert place.matched(PROMPT) == {"a": 1}
    assert losses(place) == {"gap": 41 + 7}


@pytest.mark.parametrize("topics", [True, False])
def test_a_gap_is_filled_by_a_replay_before_what_comes_after_it(place: Station, topics: bool) -> None:
    engine = place.engine(connect=False, topics=topics)
    for numbers, lost in (([0, 1], []), ([2, 3, 4, 5], [2, 3]), ([6, 7], [6])):
        for number in numbers:
            engine.publish(block(number), lose=True)
            if number not in lost:
                place.pool.put(Message("a", "m", number, engine.kept[number], engine.replay))
        place.until(lambda last=numbers[-1]: place.matched(PROMPT) == {"a": last + 1})  # type: ignore[misc]
    assert losses(place) == {}
    assert engine.asked == [0, 2, 6]
    complete = 'kvcache_events_replays_total{result="complete"} 3.0'
    place.until(lambda: complete in place.index.metrics.render({}, {}, {}))  # its end comes after its batches


def test_a_gap_that_shows_while_a_replay_runs_is_filled_by_another(place: Station) -> None:
    engine = place.engine(connect=False)
    for number in range(2):
        engine.publish(block(number), lose=True)
    place.pool.put(Message("a", "m", 1, engine.kept[1], engine.replay))
    place.pool.step(0)  # asks
    place.until(lambda: engine.asked == [0], engine.serve)
    for number in range(2, 5):
        engine.publish(block(number), lose=True)
    place.pool.put(Message("a", "m", 4, engine.kept[4], engine.replay))
    place.until(lambda: place.matched(PROMPT) == {"a": 5})
    assert engine.asked == [0, 2] and losses(place) == {}


def test_an_address_that_is_none_fails_at_once(place: Station) -> None:
    engine = place.engine(connect=False)
    put(place, engine, 3, block(0), replay="nonsense")
    place.settle()
    assert place.matched(PROMPT) == {"a": 1}


def test_a_restart_clears_the_pod_and_asks_for_its_new_beginning(place: Station) -> None:
    engine = place.engine(connect=False)
    for number in range(3):
        put(place, engine, number, block(number))
    engine.kept = {n: engine.pack(block(n), ts=5000.0 + n) for n in range(2)}
    put(place, engine, 1, block(1), ts=5001.0, replay=engine.replay)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert losses(place) == {}
    assert place.index.size().copies == 2


def test_only_a_few_replays_run_at_once(place: Station) -> None:
    engines = [place.engine(connect=False) for _ in range(12)]
    for number, engine in enumerate(engines):
        engine.publish(block(0), lose=True)
        place.pool.put(Message(f"pod{number}", "m", 0, engine.kept[0], engine.replay))
    place.engines.clear()
    place.settle()
    assert place.replays._running == 8
    place.engines.extend(engines)
    place.until(lambda: len(place.matched(PROMPT)) == 12)


def test_shards_are_those_of_llm_d() -> None:
    hashes = {"pod1": 3435266023, "10.0.0.1:8000": 1207617965, "10.0.0.1": 3737042573, "localhost": 22050618}
    assert {pod: fnv1a_32(pod.encode()) for pod in hashes} == hashes
