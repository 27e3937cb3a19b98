"""Replays are asked of the engine that has published, and what anybody else answers is left and counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.kvcache.events import BlockStored
from app.kvindex.pods import FixedTargets, PodEndpoint
from app.kvindex.streams import Message
from tests.kvindex.engines import PROMPT, block, stored
from tests.kvindex.publisher import Engine, Station
from tests.running_server import free_port

OTHER = list(range(500, 540))


def other_block(number: int) -> BlockStored:
    return stored([number + 51], OTHER[number * 4 : number * 4 + 4], number + 50 if number else None)


def publish(engine: Engine, numbers: Sequence[int], lost: Sequence[int] = (), rank: int = 0) -> None:
    """Blocks of the prompt, or of another one where the rank is not 0."""
    for number in numbers:
        event = other_block(number) if rank else block(number)
        engine.publish(event, lose=number in lost, rank=rank)


def ranks_have(place: Station, tokens: list[int]) -> dict[int, int]:
    return {score.rank: score.matched for score in place.index.score("m", tokens)}


def losses(place: Station) -> dict[str, int]:
    return dict(place.index.losses.messages)


@pytest.mark.parametrize("connect", [True, False], ids=["they connect", "they are connected to"])
def test_each_rank_answers_at_a_port_of_its_own(place: Station, connect: bool) -> None:
    port = free_port(2)
    ranks = []
    if connect:
        place.listen(replay_port=port)
    for rank in range(2):
        ranks.append(place.engine("kv@a@m", connect=connect, replay_port=port + rank))
    if not connect:
        place.listen(
            FixedTargets([PodEndpoint(each.endpoint) for each in ranks]), bind=None, replay_port=port
        )
    for engine in ranks:
        place.meet(engine)
    for rank, engine in enumerate(ranks):
        publish(engine, range(5), lost=range(4), rank=rank)
    place.until(lambda: ranks_have(place, PROMPT) == {0: 5} and ranks_have(place, OTHER) == {1: 5})
    assert [engine.asked for engine in ranks] == [[0], [0]]
    assert losses(place) == {}


def test_a_target_with_an_address_for_replays_is_asked_there_whatever_its_rank(place: Station) -> None:
    engine = place.engine("kv@a@m", connect=False)
    place.listen(FixedTargets([PodEndpoint(engine.endpoint, engine.replay)]), bind=None, replay_port=1)
    place.meet(engine)
    publish(engine, range(3), lost=range(2), rank=3)
    place.until(lambda: ranks_have(place, OTHER) == {3: 3})
    assert losses(place) == {}


def test_three_pods_on_one_host_do_not_get_one_anothers_blocks(place: Station) -> None:
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
def test_the_answer_of_another_rank_is_refused(place: Station, topics: bool) -> None:
    engine = place.engine(connect=False)
    other = place.engine(connect=False, topics=topics)
    publish(other, range(3), rank=1)
    payload = engine.pack(block(0))
    place.pool.put(Message("a", "m", 5, payload, other.replay, topic=b"kv@a@m"))
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    assert place.index.size().copies == 1
    assert losses(place) == {"foreign_replay": 1, "gap": 5}


@pytest.mark.parametrize("topic", [b"", b"kv@a@m"], ids=["no topic", "answers without"])
def test_ones_own_answer_without_a_topic_is_believed(place: Station, topic: bytes) -> None:
    engine = place.engine(topic.decode(), connect=False, topics=not topic)
    publish(engine, range(4), lost=range(4))
    place.pool.put(Message("a", "m", 3, engine.kept[3], engine.replay, topic=topic))
    place.until(lambda: place.matched(PROMPT) == {"a": 4})
    place.settle()
    assert losses(place) == {}


def test_it_is_believed_though_it_ends_before_the_last_message_that_waits(place: Station) -> None:
    engine = place.engine("", connect=False)
    publish(engine, range(4), lost=range(4))
    place.pool.put(Message("a", "m", 3, engine.kept[3], engine.replay, topic=b""))
    place.pool.put(Message("a", "m", 4, engine.pack(block(4)), engine.replay, topic=b""))
    place.until(lambda: place.matched(PROMPT) == {"a": 5})
    place.settle()
    assert losses(place) == {}


def test_after_a_foreign_answer_the_address_is_left_alone_for_a_while(place: Station) -> None:
    engine = place.engine("kv@a@m", connect=False)
    other = place.engine("kv@b@m", connect=False)
    publish(other, range(2))
    for now, sequence, asked in ((0.0, 1, [0]), (29.0, 3, [0]), (60.0, 5, [0, 4])):
        place.now = now
        payload = engine.pack(block(sequence // 2), ts=1000.0 + sequence)
        place.pool.put(Message("a", "m", sequence, payload, other.replay, topic=b"kv@a@m"))
        blocks = sequence // 2 + 1
        place.until(lambda blocks=blocks: place.matched(PROMPT) == {"a": blocks})  # type: ignore[misc]
        assert other.asked == asked
    assert losses(place) == {"foreign_replay": 1, "gap": 3}  # an answer of nothing is nobody's


@pytest.mark.parametrize("rank", [-3, 70_000])
def test_a_rank_that_has_no_port_is_asked_nothing(place: Station, rank: int) -> None:
    engine = place.engine(connect=False)
    message = Message("a", "m", 2, engine.pack(block(0), rank=rank), engine.replay, True, b"kv@a@m")
    place.pool.put(message)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    assert losses(place) == {"gap": 2} and not place.replays._running
