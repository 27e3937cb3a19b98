"""Streams of batches: the order of batches, gaps, and the replays that fill them."""

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
from tests.extensions.kv_index.publisher import FakeEngine, SteppedIndexer, stepped_indexer
from tests.running_server import free_port

OTHER = list(range(500, 540))


def put(
    indexer: SteppedIndexer,
    engine: FakeEngine,
    sequence: int,
    *events: KVEvent,
    ts: float | None = None,
    **fields: object,
) -> PublishedMessage:
    """A message, past the sockets."""
    payload = engine.pack(*events, ts=1000.0 + sequence if ts is None else ts)
    message = PublishedMessage("a", "m", sequence, payload, **fields)
    indexer.pool.put(message)
    return message


def ask(
    indexer: SteppedIndexer, engine: FakeEngine, sequence: int, *events: KVEvent
) -> PublishedMessage:
    """A message of an engine that can be asked for what was before."""
    return put(indexer, engine, sequence, *events, replay=engine.replay)


def losses(indexer: SteppedIndexer) -> dict[str, int]:
    return dict(indexer.index.metrics.skipped_messages)


def test_out_of_order_batches_are_all_applied(indexer: SteppedIndexer) -> None:
    engine = indexer.engine(connect=False)
    for sequence, number in ((3, 0), (4, 1), (6, 3), (5, 2)):
        put(indexer, engine, sequence, block(number) if number != 3 else stored([9], [1, 2, 3, 4]))
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 3}
    assert losses(indexer) == {"gap": 3 + 1}


def test_batches_missed_before_the_first_message_of_a_pod_count_as_a_gap(
    indexer: SteppedIndexer,
) -> None:
    engine = indexer.engine(connect=False)
    put(indexer, engine, 41, block(0))
    put(indexer, engine, 42, block(1))
    put(indexer, engine, 7, block(0), ts=5000.0)  # begins anew
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 1}
    assert losses(indexer) == {"gap": 41 + 7}


def test_a_jump_of_the_numbers_counts_as_one_lost_batch(indexer: SteppedIndexer) -> None:
    engine = indexer.engine(connect=False)
    for number in (0, 1 << 20, (1 << 39) + 5, (1 << 39) + 9):
        put(indexer, engine, number, block(0))
    indexer.settle()
    assert losses(indexer) == {"gap": (1 << 20) - 1 + 1 + 3}


@pytest.mark.parametrize("topics", [True, False])
def test_replay_fills_a_gap_before_later_batches_are_applied(
    indexer: SteppedIndexer, topics: bool
) -> None:
    engine = indexer.engine(connect=False, topics=topics)
    for numbers, lost in (([0, 1], []), ([2, 3, 4, 5], [2, 3]), ([6, 7], [6])):
        for number in numbers:
            engine.publish(block(number), lose=True)
            if number not in lost:
                indexer.pool.put(
                    PublishedMessage("a", "m", number, engine.batches[number], replay=engine.replay)
                )
        indexer.wait_for_matches(PROMPT, {"a": numbers[-1] + 1})
    assert losses(indexer) == {}
    assert engine.replay_starts == [2, 6]

    def are_replays_complete() -> bool:
        return indexer.ended_replays() == {"complete": 2}

    # The end of a replay comes after its batches.
    indexer.wait_until(are_replays_complete)


def test_invalid_replay_address_fails_at_once(indexer: SteppedIndexer) -> None:
    engine = indexer.engine(connect=False)
    put(indexer, engine, 3, block(0), replay="nonsense")
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 1}


def test_engine_restart_replays_the_first_batches_of_the_new_engine(
    indexer: SteppedIndexer,
) -> None:
    engine = indexer.engine(connect=False)
    for number in range(3):
        put(indexer, engine, number, block(number))
    engine.batches = {n: engine.pack(block(n), ts=5000.0 + n) for n in range(2)}
    put(indexer, engine, 1, block(1), ts=5001.0, replay=engine.replay)
    indexer.wait_for_matches(PROMPT, {"a": 2})
    assert losses(indexer) == {}
    assert indexer.index.backend.size().copies == 2


def test_number_of_concurrent_event_replays_is_limited(indexer: SteppedIndexer) -> None:
    engines = [indexer.engine(connect=False) for _ in range(12)]
    for number, engine in enumerate(engines):
        for block_number in range(2):
            engine.publish(block(block_number), lose=True)
        indexer.pool.put(
            PublishedMessage(f"pod{number}", "m", 1, engine.batches[1], replay=engine.replay)
        )
    indexer.engines.clear()
    indexer.settle()
    assert indexer.pool.resources.replay_slots.counter == 0
    indexer.engines.extend(engines)
    indexer.wait_for_matches(PROMPT, {f"pod{number}": 2 for number in range(12)})


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


def wait_for_ranks(indexer: SteppedIndexer, tokens: list[int], counts: dict[int, int]) -> None:
    """Steps until the ranks of the pods have these counts of matched blocks."""

    def are_ranks_matched() -> bool:
        scores = indexer.index.score("m", tokens)
        return {score.rank: score.matched for score in scores} == counts

    indexer.wait_until(are_ranks_matched)


@pytest.mark.parametrize("connect", [True, False], ids=["engines connect", "indexer connects"])
def test_events_of_each_rank_are_replayed_from_the_port_of_that_rank(
    indexer: SteppedIndexer, connect: bool
) -> None:
    port = free_port(2)
    ranks = []
    if connect:
        indexer.listen(replay_port=port)
    for rank in range(2):
        ranks.append(indexer.engine("kv@a@m", connect=connect, replay_port=port + rank))
    if not connect:
        indexer.listen(
            TargetSource([PodEndpoint(engine.endpoint) for engine in ranks]),
            bind=None,
            replay_port=port,
        )
    for engine in ranks:
        indexer.meet(engine)
    for rank, engine in enumerate(ranks):
        publish(engine, range(5), lost=range(4), rank=rank)
    wait_for_ranks(indexer, PROMPT, {0: 5})
    wait_for_ranks(indexer, OTHER, {1: 5})
    assert [engine.replay_starts for engine in ranks] == [[0], [0]]
    assert losses(indexer) == {}


def test_replay_address_given_for_a_pod_is_used_for_every_rank_of_the_pod(
    indexer: SteppedIndexer,
) -> None:
    engine = indexer.engine("kv@a@m", connect=False)
    indexer.listen(
        TargetSource([PodEndpoint(engine.endpoint, engine.replay)]), bind=None, replay_port=1
    )
    indexer.meet(engine)
    publish(engine, range(3), lost=range(2), rank=3)
    wait_for_ranks(indexer, OTHER, {3: 3})
    assert losses(indexer) == {}


def test_pods_on_one_host_do_not_get_the_blocks_of_other_pods(indexer: SteppedIndexer) -> None:
    """One port can be that of one of them only."""
    port = free_port()
    indexer.listen(replay_port=port)
    a = indexer.engine("kv@a@m", replay_port=port)
    b = indexer.engine("kv@b@m")
    c = indexer.engine("kv@c@m")
    for engine in (a, b, c):
        indexer.meet(engine)
    publish(a, range(5), lost=range(4))
    for engine in (b, c):
        for number in range(3):
            engine.publish(other_block(number), lose=number == 0)
    indexer.wait_for_matches(PROMPT, {"a": 5})
    indexer.wait_for_losses("gap", 2)
    assert indexer.matched(OTHER) == {}
    assert losses(indexer) == {"foreign_replay": 2, "gap": 2}


@pytest.mark.parametrize("topics", [True, False])
def test_events_that_another_rank_replays_are_rejected(
    indexer: SteppedIndexer, topics: bool
) -> None:
    engine = indexer.engine(connect=False)
    other = indexer.engine(connect=False, topics=topics)
    publish(other, range(3), rank=1)
    payload = engine.pack(block(0))
    indexer.pool.put(PublishedMessage("a", "m", 5, payload, replay=other.replay, topic=b"kv@a@m"))
    indexer.wait_for_matches(PROMPT, {"a": 1})
    assert indexer.index.backend.size().copies == 1
    assert losses(indexer) == {"foreign_replay": 1, "gap": 5} and indexer.ended_replays() == {
        "failed": 1
    }


@pytest.mark.parametrize("topic", [b"", b"kv@a@m"], ids=["no topic", "answers without"])
def test_event_replay_without_a_topic_is_accepted(indexer: SteppedIndexer, topic: bytes) -> None:
    engine = indexer.engine(topic.decode(), connect=False, topics=not topic)
    publish(engine, range(4), lost=range(4))
    indexer.pool.put(
        PublishedMessage("a", "m", 3, engine.batches[3], replay=engine.replay, topic=topic)
    )
    indexer.wait_for_matches(PROMPT, {"a": 4})
    indexer.settle()
    assert losses(indexer) == {}


@pytest.mark.parametrize("rank", [-3, 70_000])
def test_no_replay_is_requested_from_a_rank_without_a_port(
    indexer: SteppedIndexer, rank: int
) -> None:
    engine = indexer.engine(connect=False)
    message = PublishedMessage(
        "a",
        "m",
        2,
        engine.pack(block(0), rank=rank),
        replay=engine.replay,
        per_rank=True,
        topic=b"kv@a@m",
    )
    indexer.pool.put(message)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    assert losses(indexer) == {"gap": 2} and indexer.pool.resources.replay_slots.counter == 8


@pytest.fixture
def silent(indexer: SteppedIndexer) -> FakeEngine:
    """An engine that answers nothing until it is among the engines of the indexer again."""
    engine = indexer.engine(connect=False)
    indexer.engines.remove(engine)
    return engine


def test_malformed_replay_messages_are_ignored(indexer: SteppedIndexer, silent: FakeEngine) -> None:
    ask(indexer, silent, 1, block(1))
    indexer.wait_for_replay_request(silent)
    client = silent.receive_client()
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
        silent.reply(client, *frames)
    indexer.wait_for_matches(PROMPT, {"a": 2})
    indexer.settle()
    assert losses(indexer) == {} and indexer.ended_replays() == {"complete": 1}
    silent.close()


@pytest.mark.parametrize(
    ("pause_s", "answers", "fails_s"), [(1.9, 3, 3 * 1.9 + 2), (1.5, 79, 120.0)]
)
def test_event_replay_that_stalls_or_does_not_end_in_time_fails(
    indexer: SteppedIndexer, silent: FakeEngine, pause_s: float, answers: int, fails_s: float
) -> None:
    ask(indexer, silent, 200, block(0))
    indexer.wait_for_replay_request(silent)
    client = silent.receive_client()
    for number in range(answers):
        indexer.now = (number + 1) * pause_s
        answer = silent.pack(stored([number + 50], [number] * 4), ts=1000.0 + number)
        silent.reply_batch(client, number.to_bytes(8, "big"), answer)
        indexer.wait_for_matches([number] * 4, {"a": 1})
    assert indexer.ended_replays() == {}
    indexer.now = fails_s - 0.01
    indexer.settle()
    assert indexer.matched(PROMPT) == {}
    indexer.now = fails_s
    indexer.wait_for_matches(PROMPT, {"a": 1})
    assert indexer.ended_replays() == {"failed": 1}
    silent.close()


@pytest.mark.parametrize("bound", ["max_waiting_bytes", "max_total_waiting_bytes"])
def test_memory_of_event_messages_that_wait_for_a_replay_is_limited(
    indexer: SteppedIndexer, silent: FakeEngine, bound: str
) -> None:
    payload = silent.pack(block(0))
    size = 3 * PublishedMessage("a", "m", 5, payload).size_bytes
    indexer.pool = indexer.make_pool(**{bound: size})
    for number in range(3):
        ask(indexer, silent, 5 + number, block(number))
    indexer.settle()
    assert indexer.matched(PROMPT) == {} and indexer.pool.resources.waiting_bytes == size
    ask(indexer, silent, 8, block(3))
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 4} and indexer.pool.resources.waiting_bytes == 0
    assert losses(indexer) == {"gap": 5} and indexer.ended_replays() == {"failed": 1}
    silent.close()


def test_removing_a_pod_drops_its_event_messages_that_wait_for_a_replay(
    indexer: SteppedIndexer, silent: FakeEngine
) -> None:
    ask(indexer, silent, 5, block(0))
    indexer.settle()
    assert (
        indexer.pool.resources.replay_slots.counter == 7
        and indexer.pool.resources.waiting_bytes > 0
    )
    (position,) = indexer.pool.positions()
    assert (position.sequence, position.lag_s) == (None, 0.0)
    indexer.pool.remove_pod("a")
    indexer.settle()
    assert (
        indexer.pool.resources.waiting_bytes == 0
        and indexer.pool.resources.replay_slots.counter == 8
        and indexer.pool.positions() == []
    )
    silent.close()


def test_event_replay_after_a_failed_replay_starts_only_after_the_cooldown(
    indexer: SteppedIndexer, silent: FakeEngine
) -> None:
    ask(indexer, silent, 5, block(0))
    replay_starts: list[int] = []
    for now, number, expected in ((0.0, 1, [0]), (2.0, 2, [0]), (31.9, 3, [0]), (32.0, 4, [0, 12])):
        indexer.now = now
        ask(indexer, silent, 5 + 2 * number, block(number))
        indexer.settle()
        while len(replay_starts) < len(expected):
            replay_starts.append(silent.receive_start())
        assert replay_starts == expected and not silent.has_replay_request()
    assert indexer.matched(PROMPT) == {"a": 4} and losses(indexer) == {"gap": 5 + 1 + 1 + 1}
    silent.close()


@pytest.mark.parametrize(
    ("unread", "reason"), [(b"garbage", "unreadable"), (bytes(1 + (1 << 20)), "too_large")]
)
def test_unreadable_batch_of_a_replay_does_not_affect_other_batches(
    indexer: SteppedIndexer, silent: FakeEngine, unread: bytes, reason: str
) -> None:
    ask(indexer, silent, 3, block(1))
    silent.batches = {0: silent.pack(block(0), ts=1000.0), 1: unread, 2: silent.pack(ts=1002.0)}
    indexer.engines.append(silent)
    indexer.wait_for_matches(PROMPT, {"a": 2})
    assert losses(indexer) == {reason: 1}


class Forgetful(MemoryBackend):
    """May lose all that it has, as a database that begins anew."""

    def lose(self) -> None:
        fresh = MemoryBackend()
        self.__dict__.update(fresh.__dict__)
        self.epoch = f"{self.epoch}again"


@pytest.mark.parametrize("waiting", [True, False], ids=["during a replay", "between replays"])
def test_all_batches_are_requested_again_after_the_backend_lost_its_data(waiting: bool) -> None:
    backend = Forgetful()
    backend.epoch = "first"
    with stepped_indexer(backend) as indexer:
        engine = indexer.engine(connect=False)
        for number in range(3):
            engine.publish(block(number), lose=True)
            indexer.pool.put(
                PublishedMessage("a", "m", number, engine.batches[number], replay=engine.replay)
            )
        indexer.wait_for_matches(PROMPT, {"a": 3})
        indexer.settle()
        engine.replay_starts.clear()
        indexer.engines.clear()
        engine.publish(block(3), lose=True)
        if waiting:
            ask(indexer, engine, 4, block(4))
            indexer.settle()
            engine.replay_starts.append(
                engine.receive_start()
            )  # else it may be lost with the socket that it left by
        backend.lose()
        ask(indexer, engine, 5 if waiting else 4, *([] if waiting else [block(4)]))
        indexer.settle()
        indexer.engines.append(engine)
        indexer.wait_for_matches(PROMPT, {"a": 5})
        indexer.settle()
        assert engine.replay_starts == ([3, 0] if waiting else [0])
        assert losses(indexer) == {}
        assert (
            indexer.pool.resources.waiting_bytes == 0
            and indexer.pool.resources.replay_slots.counter == 8
        )


fates = st.lists(
    st.sampled_from(["comes", "comes", "comes twice", "is lost", "is lost on both ways"]),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(fates, st.integers(0, 3))
def test_event_batches_that_were_lost_are_replayed_in_order(lost: list[str], steps: int) -> None:
    """Each batch takes away the block of the one before it:

    in another order, others would be left.
    """
    with stepped_indexer() as indexer:
        engine = indexer.engine(connect=False)
        left: set[int] = set()
        for number, fate in enumerate([*lost, "comes"]):
            engine.publish(removed([number]), stored([number + 1], [number] * 4), lose=True)
            for _ in range(
                ("comes", "comes twice").index(fate) + 1 if fate.startswith("comes") else 0
            ):
                indexer.pool.put(
                    PublishedMessage("a", "m", number, engine.batches[number], replay=engine.replay)
                )
            if fate == "is lost on both ways":
                del engine.batches[number]
            else:
                left = left - {number} | {number + 1}
            for _ in range(steps):
                indexer.step()
        shards = indexer.pool.shards
        indexer.wait_until_idle()
        assert [indexer.matched([number - 1] * 4) for number in left] == [{"a": 1}] * len(left)
        assert indexer.index.backend.size().copies == len(left)
        (position,) = indexer.pool.positions()
        assert position.sequence == len(lost) and position.lag_s == 2000.0 - 1000.0 - len(lost)
        losses_by_reason = indexer.index.metrics.skipped_messages
        assert losses_by_reason.get("gap", 0) == lost.count("is lost on both ways")
        assert set(losses_by_reason) <= {
            "gap",
            "duplicate",
        }  # a replay may bring what then comes by itself
        assert (
            indexer.pool.resources.waiting_bytes == 0
            and indexer.pool.resources.replay_slots.counter == 8
        )
        assert [shard.size_bytes for shard in shards] == [0] * len(shards)
