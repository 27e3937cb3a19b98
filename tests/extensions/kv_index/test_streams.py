"""Streams of batches:

each once and in order; gaps and how they are filled, by whom, and for how long.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import BlockStored, KVEvent
from app.core.engine.kvcache.replay import END
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.pods import PodEndpoint, TargetSource
from tests.extensions.kv_index.engines import PROMPT, block, removed, stored
from tests.extensions.kv_index.publisher import FakeEngine, Station, station
from tests.running_server import free_port


def put(
    place: Station,
    engine: FakeEngine,
    sequence: int,
    *events: KVEvent,
    ts: float | None = None,
    **more: object,
) -> PublishedMessage:
    """A message, past the sockets."""
    payload = engine.pack(*events, ts=1000.0 + sequence if ts is None else ts)
    message = PublishedMessage("a", "m", sequence, payload, **more)
    place.pool.put(message)
    return message


def ask(place: Station, engine: FakeEngine, sequence: int, *events: KVEvent) -> PublishedMessage:
    """A message of an engine that can be asked for what was before."""
    return put(place, engine, sequence, *events, replay=engine.replay)


def losses(place: Station) -> dict[str, int]:
    return dict(place.index.metrics.skipped_messages)


def test_batches_out_of_order_are_all_applied(place: Station) -> None:
    engine = place.engine(connect=False)
    for sequence, number in ((3, 0), (4, 1), (6, 3), (5, 2)):
        put(place, engine, sequence, block(number) if number != 3 else stored([9], [1, 2, 3, 4]))
    place.settle()
    assert place.matched(PROMPT) == {"a": 3}
    assert losses(place) == {"gap": 3 + 1}


def test_batches_before_the_first_message_of_a_pod_count_as_a_gap(place: Station) -> None:
    engine = place.engine(connect=False)
    put(place, engine, 41, block(0))
    put(place, engine, 42, block(1))
    put(place, engine, 7, block(0), ts=5000.0)  # begins anew
    place.settle()
    assert place.matched(PROMPT) == {"a": 1}
    assert losses(place) == {"gap": 41 + 7}


@pytest.mark.parametrize("topics", [True, False])
def test_a_replay_fills_a_gap_before_later_batches_are_applied(
    place: Station, topics: bool
) -> None:
    engine = place.engine(connect=False, topics=topics)
    for numbers, lost in (([0, 1], []), ([2, 3, 4, 5], [2, 3]), ([6, 7], [6])):
        for number in numbers:
            engine.publish(block(number), lose=True)
            if number not in lost:
                place.pool.put(
                    PublishedMessage("a", "m", number, engine.kept[number], engine.replay)
                )
        place.until(lambda last=numbers[-1]: place.matched(PROMPT) == {"a": last + 1})  # type: ignore[misc]
    assert losses(place) == {}
    assert engine.asked == [2, 6]
    complete = 'kvcache_events_replays_total{result="complete"} 2.0'
    place.until(
        lambda: complete in place.index.metrics.render({})
    )  # its end comes after its batches


def test_an_invalid_replay_address_fails_at_once(place: Station) -> None:
    engine = place.engine(connect=False)
    put(place, engine, 3, block(0), replay="nonsense")
    place.settle()
    assert place.matched(PROMPT) == {"a": 1}


def test_a_restart_clears_the_pod_and_requests_its_first_batches(place: Station) -> None:
    engine = place.engine(connect=False)
    for number in range(3):
        put(place, engine, number, block(number))
    engine.kept = {n: engine.pack(block(n), ts=5000.0 + n) for n in range(2)}
    put(place, engine, 1, block(1), ts=5001.0, replay=engine.replay)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert losses(place) == {}
    assert place.index.backend.size().copies == 2


def test_only_a_few_replays_run_at_once(place: Station) -> None:
    engines = [place.engine(connect=False) for _ in range(12)]
    for number, engine in enumerate(engines):
        for at in range(2):
            engine.publish(block(at), lose=True)
        place.pool.put(PublishedMessage(f"pod{number}", "m", 1, engine.kept[1], engine.replay))
    place.engines.clear()
    place.settle()
    assert place.pool.resources.replay_slots.counter == 0
    place.engines.extend(engines)
    place.until(lambda: len(place.matched(PROMPT)) == 12)


OTHER = list(range(500, 540))


def other_block(number: int) -> BlockStored:
    return stored(
        [number + 51], OTHER[number * 4 : number * 4 + 4], number + 50 if number else None
    )


def publish(
    engine: FakeEngine, numbers: Sequence[int], lost: Sequence[int] = (), rank: int = 0
) -> None:
    """Blocks of the prompt, or of another one where the rank is not 0."""
    for number in numbers:
        event = other_block(number) if rank else block(number)
        engine.publish(event, lose=number in lost, rank=rank)


def ranks_have(place: Station, tokens: list[int]) -> dict[int, int]:
    return {score.rank: score.matched for score in place.index.score("m", tokens)}


@pytest.mark.parametrize("connect", [True, False], ids=["they connect", "they are connected to"])
def test_each_rank_is_replayed_from_its_own_port(place: Station, connect: bool) -> None:
    port = free_port(2)
    ranks = []
    if connect:
        place.listen(replay_port=port)
    for rank in range(2):
        ranks.append(place.engine("kv@a@m", connect=connect, replay_port=port + rank))
    if not connect:
        place.listen(
            TargetSource([PodEndpoint(each.endpoint) for each in ranks]),
            bind=None,
            replay_port=port,
        )
    for engine in ranks:
        place.meet(engine)
    for rank, engine in enumerate(ranks):
        publish(engine, range(5), lost=range(4), rank=rank)
    place.until(lambda: ranks_have(place, PROMPT) == {0: 5} and ranks_have(place, OTHER) == {1: 5})
    assert [engine.asked for engine in ranks] == [[0], [0]]
    assert losses(place) == {}


def test_a_target_with_a_replay_address_is_replayed_from_there_for_any_rank(
    place: Station,
) -> None:
    engine = place.engine("kv@a@m", connect=False)
    place.listen(
        TargetSource([PodEndpoint(engine.endpoint, engine.replay)]), bind=None, replay_port=1
    )
    place.meet(engine)
    publish(engine, range(3), lost=range(2), rank=3)
    place.until(lambda: ranks_have(place, OTHER) == {3: 3})
    assert losses(place) == {}


def test_pods_on_one_host_do_not_get_the_blocks_of_other_pods(place: Station) -> None:
    """One port can be that of one of them only."""
    port = free_port()
    place.listen(replay_port=port)
    a = place.engine("kv@a@m", replay_port=port)
    b, c = place.engine("kv@b@m"), place.engine("kv@c@m")
    for engine in (a, b, c):
        place.meet(engine)
    publish(a, range(5), lost=range(4))
    for engine in (b, c):
        for number in range(3):
            engine.publish(other_block(number), lose=number == 0)
    place.until(lambda: place.matched(PROMPT) == {"a": 5} and losses(place).get("gap") == 2)
    assert place.matched(OTHER) == {}
    assert losses(place) == {"foreign_replay": 2, "gap": 2}


@pytest.mark.parametrize("topics", [True, False])
def test_a_replay_from_another_rank_is_rejected(place: Station, topics: bool) -> None:
    engine = place.engine(connect=False)
    other = place.engine(connect=False, topics=topics)
    publish(other, range(3), rank=1)
    payload = engine.pack(block(0))
    place.pool.put(PublishedMessage("a", "m", 5, payload, other.replay, topic=b"kv@a@m"))
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    assert place.index.backend.size().copies == 1
    assert losses(place) == {"foreign_replay": 1, "gap": 5} and place.ended_replays() == {
        "failed": 1
    }


@pytest.mark.parametrize("topic", [b"", b"kv@a@m"], ids=["no topic", "answers without"])
def test_a_replay_without_a_topic_is_accepted(place: Station, topic: bytes) -> None:
    engine = place.engine(topic.decode(), connect=False, topics=not topic)
    publish(engine, range(4), lost=range(4))
    place.pool.put(PublishedMessage("a", "m", 3, engine.kept[3], engine.replay, topic=topic))
    place.until(lambda: place.matched(PROMPT) == {"a": 4})
    place.settle()
    assert losses(place) == {}


@pytest.mark.parametrize("rank", [-3, 70_000])
def test_no_replay_is_requested_from_a_rank_without_a_port(place: Station, rank: int) -> None:
    engine = place.engine(connect=False)
    message = PublishedMessage(
        "a", "m", 2, engine.pack(block(0), rank=rank), engine.replay, True, b"kv@a@m"
    )
    place.pool.put(message)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    assert losses(place) == {"gap": 2} and place.pool.resources.replay_slots.counter == 8


@pytest.fixture
def silent(place: Station) -> FakeEngine:
    """An engine that answers nothing until it is among the place's again."""
    engine = place.engine(connect=False)
    place.engines.remove(engine)
    return engine


def test_malformed_replay_messages_are_ignored(place: Station, silent: FakeEngine) -> None:
    ask(place, silent, 1, block(1))
    place.until(lambda: silent._router.poll(0))
    client, *_ = silent._router.recv_multipart()
    for frames in (
        (b"",),
        (b"", b"payload"),
        (b"", END[:-1], b"payload"),
        (b"", END + b"\xff", b"payload"),
        (b"x", bytes(8), b"payload"),
        (b"x", b"topic", bytes(8), b"payload"),
        (b"", b"topic", bytes(8), b"payload", b""),
        (b"", silent.topic, bytes(8), silent.pack(block(0), ts=1000.0)),
        (b"", b"", END, b""),
        (b"", silent.topic, bytes(8), b"behind the end"),
    ):
        silent._router.send_multipart([client, *frames])
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    place.settle()
    assert losses(place) == {} and place.ended_replays() == {"complete": 1}
    silent.close()


@pytest.mark.parametrize(
    ("pause_s", "answers", "fails_s"), [(1.9, 3, 3 * 1.9 + 2), (1.5, 79, 120.0)]
)
def test_replays_without_an_answer_or_an_end_fail(
    place: Station, silent: FakeEngine, pause_s: float, answers: int, fails_s: float
) -> None:
    ask(place, silent, 200, block(0))
    place.until(lambda: silent._router.poll(0))
    client, *_ = silent._router.recv_multipart()
    for number in range(answers):
        place.now = (number + 1) * pause_s
        answer = silent.pack(stored([number + 50], [number] * 4), ts=1000.0 + number)
        silent._answer(client, b"", number.to_bytes(8, "big"), answer)
        place.until(lambda number=number: place.matched([number] * 4) == {"a": 1})  # type: ignore[misc]
    assert place.ended_replays() == {}
    place.now = fails_s - 0.01
    place.settle()
    assert place.matched(PROMPT) == {}
    place.now = fails_s
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    assert place.ended_replays() == {"failed": 1}
    silent.close()


@pytest.mark.parametrize("bound", ["max_waiting_bytes", "max_total_waiting_bytes"])
def test_memory_of_waiting_messages_is_bounded(
    place: Station, silent: FakeEngine, bound: str
) -> None:
    payload = silent.pack(block(0))
    size = 3 * PublishedMessage("a", "m", 5, payload).size_bytes
    place.pool = place.make_pool(**{bound: size})
    for number in range(3):
        ask(place, silent, 5 + number, block(number))
    place.settle()
    assert place.matched(PROMPT) == {} and place.pool.resources.waiting_bytes == size
    ask(place, silent, 8, block(3))
    place.settle()
    assert place.matched(PROMPT) == {"a": 4} and place.pool.resources.waiting_bytes == 0
    assert losses(place) == {"gap": 5} and place.ended_replays() == {"failed": 1}
    silent.close()


def test_removing_a_pod_drops_its_waiting_messages(place: Station, silent: FakeEngine) -> None:
    ask(place, silent, 5, block(0))
    place.settle()
    assert place.pool.resources.replay_slots.counter == 7 and place.pool.resources.waiting_bytes > 0
    (position,) = place.pool.positions()
    assert (position.sequence, position.lag_s) == (None, 0.0)
    place.pool.remove_pod("a")
    place.settle()
    assert (
        place.pool.resources.waiting_bytes == 0
        and place.pool.resources.replay_slots.counter == 8
        and place.pool.positions() == []
    )
    silent.close()


def test_after_a_failed_replay_the_next_one_starts_after_the_cool_down(
    place: Station, silent: FakeEngine
) -> None:
    ask(place, silent, 5, block(0))
    asked: list[int] = []
    for now, number, expected in ((0.0, 1, [0]), (2.0, 2, [0]), (31.9, 3, [0]), (32.0, 4, [0, 12])):
        place.now = now
        ask(place, silent, 5 + 2 * number, block(number))
        place.settle()
        while len(asked) < len(expected):
            asked.append(silent.hear())
        assert asked == expected and not silent._router.poll(0)
    assert place.matched(PROMPT) == {"a": 4} and losses(place) == {"gap": 5 + 1 + 1 + 1}
    silent.close()


@pytest.mark.parametrize(
    ("unread", "reason"), [(b"garbage", "unreadable"), (bytes(1 + (1 << 20)), "too_large")]
)
def test_an_unreadable_batch_of_a_replay_loses_only_itself(
    place: Station, silent: FakeEngine, unread: bytes, reason: str
) -> None:
    ask(place, silent, 3, block(1))
    silent.kept = {0: silent.pack(block(0), ts=1000.0), 1: unread, 2: silent.pack(ts=1002.0)}
    place.engines.append(silent)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert losses(place) == {reason: 1}


class Forgetful(MemoryBackend):
    """May lose all that it has, as a database that begins anew."""

    def lose(self) -> None:
        fresh = MemoryBackend()
        self.__dict__.update(fresh.__dict__)
        self.epoch = f"{self.epoch}again"


@pytest.mark.parametrize("waiting", [True, False], ids=["during a replay", "between replays"])
def test_all_batches_are_requested_again_after_a_loss_of_the_backends_data(waiting: bool) -> None:
    backend = Forgetful()
    backend.epoch = "first"
    with station(backend) as place:
        engine = place.engine(connect=False)
        for number in range(3):
            engine.publish(block(number), lose=True)
            place.pool.put(PublishedMessage("a", "m", number, engine.kept[number], engine.replay))
        place.until(lambda: place.matched(PROMPT) == {"a": 3})
        place.settle()
        engine.asked.clear()
        place.engines.clear()
        engine.publish(block(3), lose=True)
        if waiting:
            ask(place, engine, 4, block(4))
            place.settle()
            engine.asked.append(
                engine.hear()
            )  # else it may be lost with the socket that it left by
        backend.lose()
        ask(place, engine, 5 if waiting else 4, *([] if waiting else [block(4)]))
        place.settle()
        place.engines.append(engine)
        place.until(lambda: place.matched(PROMPT) == {"a": 5})
        place.settle()
        assert engine.asked == ([3, 0] if waiting else [0])
        assert losses(place) == {}
        assert (
            place.pool.resources.waiting_bytes == 0
            and place.pool.resources.replay_slots.counter == 8
        )


fates = st.lists(
    st.sampled_from(["comes", "comes", "comes twice", "is lost", "is lost on both ways"]),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(fates, st.integers(0, 3))
def test_lost_messages_are_replayed_in_order(lost: list[str], steps: int) -> None:
    """Each batch takes away the block of the one before it:

    in another order, others would be left.
    """
    with station() as place:
        engine = place.engine(connect=False)
        left: set[int] = set()
        for number, fate in enumerate([*lost, "comes"]):
            engine.publish(removed([number]), stored([number + 1], [number] * 4), lose=True)
            for _ in range(
                ("comes", "comes twice").index(fate) + 1 if fate.startswith("comes") else 0
            ):
                place.pool.put(
                    PublishedMessage("a", "m", number, engine.kept[number], engine.replay)
                )
            if fate == "is lost on both ways":
                del engine.kept[number]
            else:
                left = left - {number} | {number + 1}
            for _ in range(steps):
                place.step()
        shards = place.pool.shards
        place.until(lambda: not len(place.pool) and not place.pool.resources.waiting_bytes)
        assert [place.matched([number - 1] * 4) for number in left] == [{"a": 1}] * len(left)
        assert place.index.backend.size().copies == len(left)
        (position,) = place.pool.positions()
        assert position.sequence == len(lost) and position.lag_s == 2000.0 - 1000.0 - len(lost)
        found = place.index.metrics.skipped_messages
        assert found.get("gap", 0) == lost.count("is lost on both ways")
        assert set(found) <= {"gap", "duplicate"}  # a replay may bring what then comes by itself
        assert (
            place.pool.resources.waiting_bytes == 0
            and place.pool.resources.replay_slots.counter == 8
        )
        assert [shard.size_bytes for shard in shards] == [0] * len(shards)
