"""What the subscriber reads in one go, and what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gevent
import pytest
import zmq

from app.kvindex import subscriber as module
from app.kvindex.event_pool import Pool, PoolSettings
from app.kvindex.pods import FixedTargets, PodEndpoint
from app.kvindex.streams import Message
from app.kvindex.subscriber import Context, Subscriber, SubscriberSettings
from tests.kvindex.engines import block
from tests.kvindex.publisher import Engine, Station, ends

HERE = "inproc://here"
"""Within the process what was sent is there."""


@pytest.fixture
def place(place: Station) -> Station:
    """With one queue, which shows what was read in its order."""
    place.pool = Pool(place.index, place.replays, PoolSettings(shards=1))
    return place


def queued(place: Station) -> list[Message]:
    (shard,) = place.pool.shards
    return [task for task in shard._queue if isinstance(task, Message)]


def step(place: Station, now: float = 0.0) -> bool:
    """Read, and leave it in the queue."""
    assert place.subscriber is not None
    return place.subscriber.step(now)


def heard(place: Station, **settings: object) -> Engine:
    place.listen(**({"bind": HERE} | settings))  # type: ignore[arg-type]
    engine = place.engine()
    place.meet(engine)
    return engine


def test_so_many_messages_are_read_in_one_go(place: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = heard(place)
    monkeypatch.setattr(module, "MOST_A_STEP", 3)
    for _ in range(8):
        engine.publish()
    told = [(step(place), len(place.pool)) for _ in range(4)]
    assert told == [(True, 3), (True, 6), (True, 8), (False, 8)]
    assert [message.sequence for message in queued(place)] == list(range(8))


def test_so_many_bytes_are_read_in_one_go(place: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = heard(place)
    monkeypatch.setattr(module, "MOST_BYTES_A_STEP", 200)
    for size in (100, 100, 100, 99, 5, 300, 1):
        engine.send(bytes(size))
    told = [(step(place), len(place.pool)) for _ in range(5)]
    assert told == [(True, 2), (True, 5), (True, 6), (True, 7), (False, 7)]


def test_sockets_take_turns(place: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = []
    for pod in "ab":
        socket = place.engine(f"kv@{pod}@m", connect=False)
        socket._socket.bind(f"inproc://{pod}")
        engines.append(socket)
    place.listen(FixedTargets([PodEndpoint("inproc://a"), PodEndpoint("inproc://b")]), bind=None)
    for engine in engines:
        place.meet(engine)
    monkeypatch.setattr(module, "MOST_A_STEP", 2)
    for engine, count in zip(engines, (5, 3), strict=True):
        for _ in range(count):
            engine.publish()
    assert place.subscriber is not None
    place.subscriber._turn = 0
    counts = []
    while step(place):
        counts.append(len(place.pool))
    assert "".join(message.pod for message in queued(place)) == "bbaabaaa"
    assert counts == [2, 4, 7, 8]


def test_a_message_of_many_parts_is_read_in_several_goes(
    place: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = heard(place)
    monkeypatch.setattr(module, "MOST_A_STEP", 1)
    monkeypatch.setattr(module, "MOST_FRAMES", 5)
    engine.send_frames(b"kv@a@m", *[b"part"] * 11)
    engine.publish()
    assert place.subscriber is not None and place.subscriber._bound is not None
    for kept in (4, 4, 0):
        assert step(place) and len(place.subscriber._bound.frames) == kept
    assert place.index.losses.messages == {"bad_frames": 1} and len(place.pool) == 0
    assert step(place) and len(place.pool) == 1 and not step(place)


def test_a_large_payload_is_not_copied(place: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = heard(place)
    monkeypatch.setattr(module, "COPIED_BYTES", 100)
    for size in (100, 101):
        engine.send(bytes(size))
    step(place)
    assert [type(message.payload) for message in queued(place)] == [bytes, memoryview]
    assert [len(message.payload) for message in queued(place)] == [100, 101]


@pytest.mark.parametrize(
    ("bind", "replay"),
    [
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:77"),
        ("tcp://[::1]:*", "tcp://[::1]:77"),
        ("ipc", None),
        (HERE, None),
    ],
)
def test_replays_are_asked_of_the_host_at_the_other_end(
    place: Station, bind: str, replay: str | None, tmp_path: Path
) -> None:
    place.listen(bind=f"ipc://{tmp_path}/events" if bind == "ipc" else bind, replay_port=77)
    assert place.subscriber is not None
    engine = place.engine("kv@a@m", connect=False)
    engine._socket.ipv6 = True
    engine._socket.connect(str(place.subscriber.address))
    place.meet(engine)
    engine.publish()
    while not place.pool:
        step(place)
    (message,) = queued(place)
    assert (message.replay, message.per_rank) == (replay, replay is not None)
    assert (message.pod, message.model, message.sequence, message.topic) == ("a", "m", 0, b"kv@a@m")


@pytest.mark.parametrize(
    ("target", "topic", "expected"),
    [
        (PodEndpoint(HERE), b"kv@a@m", ("a", "m")),
        (PodEndpoint(HERE), b"kv@a", ("a", "ours")),
        (PodEndpoint(HERE), b"events", ("here", "ours")),
        (PodEndpoint(HERE), b"", ("here", "ours")),
        (PodEndpoint(HERE, pod="p"), b"kv@a@m", ("p", "m")),
        (PodEndpoint(HERE, model="n"), b"kv@a@m", ("a", "n")),
    ],
)
def test_a_target_tells_more_than_a_topic(
    place: Station, target: PodEndpoint, topic: bytes, expected: tuple[str, str]
) -> None:
    engine = place.engine(connect=False)
    engine._socket.bind(HERE)
    place.listen(FixedTargets([target]), bind=None, model="ours")
    place.meet(engine)
    engine.send_frames(topic, bytes(7) + b"\5", b"")
    step(place)
    (message,) = queued(place)
    assert (message.pod, message.model) == expected
    assert (message.sequence, message.topic, message.replay) == (5, topic, None)


def test_sources_are_looked_at_again_after_a_while_or_when_told(place: Station) -> None:
    source = FixedTargets([])
    subscriber = place.listen(source, look_again_s=5.0)
    step(place)
    for now, told, seen in ((4.9, False, 0), (5.0, False, 1), (6.0, False, 1), (6.1, True, 2)):
        source.targets = [PodEndpoint(f"inproc://{number}") for number in range(1 if now < 6 else 2)]
        if told:
            subscriber.look()
        step(place, now)
        assert len(subscriber.targets) == seen


def test_a_connection_that_begins_or_ends_is_something_to_do(place: Station) -> None:
    subscriber = place.listen()
    assert subscriber._bound is not None and not step(place)
    engine = place.engine("kv@a@m")
    for change in (lambda: None, engine.close):
        change()
        assert subscriber._bound.monitor.poll(10_000) and step(place) and not step(place)
    place.engines.clear()


def test_a_pod_that_goes_is_something_to_do(place: Station) -> None:
    engine = heard(place)
    engine.publish(block(0))
    place.settle()
    assert place.subscriber is not None
    place.subscriber._presence.closed("inproc", 0.0)
    assert not step(place, 29.9) and len(place.pool) == 0
    assert step(place, 30.0) and len(place.pool) == 1


def test_a_target_is_followed_though_nobody_can_tell_where_it_is(
    place: Station, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        if host != "::1":
            raise OSError("no answer")
        return [host]

    targets = [PodEndpoint("tcp://nobody.invalid:1"), PodEndpoint("tcp://[::1]:1"), PodEndpoint(HERE)]
    settings = SubscriberSettings(bind=None)
    made = Subscriber(
        place.pool, place.index.losses, place.context, settings, [FixedTargets(targets)], resolve
    )
    made.step(0.0)
    gevent.sleep(0)
    assert made.targets == targets and asked == ["nobody.invalid"]
    assert [record.args for record in caplog.records] == [("tcp://nobody.invalid:1",)]
    made.close()


def test_what_cannot_be_opened_leaves_nothing_open(place: Station) -> None:
    context: Context = zmq.Context()
    made = Subscriber(place.pool, place.index.losses, context, SubscriberSettings(bind="tcp://nobody"))
    for _ in range(2):
        with pytest.raises(zmq.ZMQError):
            made.open()
    assert made.address is None
    assert ends(context)


def test_what_is_closed_may_be_opened_again() -> None:
    context: Context = zmq.Context()
    place = Station(context)
    subscriber = place.listen(FixedTargets([PodEndpoint("tcp://127.0.0.1:1")]))
    for _ in range(2):
        step(place)
        assert subscriber.address is not None and len(subscriber.targets) == 1
        subscriber.close()
        assert subscriber.address is None and subscriber.targets == []
        place.pool.close()
        subscriber._look_at = float("-inf")
    assert ends(context)
