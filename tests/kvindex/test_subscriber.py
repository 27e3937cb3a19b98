"""Real sockets: pods that connect, pods that are connected to, what is read in one go, what goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from app.kvindex import subscriber as module
from app.kvindex.pods import FileTargets, FixedTargets, PodEndpoint
from app.kvindex.streams import Message, Pool, PoolSettings
from app.kvindex.subscriber import Context, Subscriber, SubscriberSettings
from tests.kvindex.engines import stored
from tests.kvindex.publisher import LOCAL, FakeEngine, Station, ends, station
from tests.running_server import free_port

PROMPT = list(range(100, 120))
FIRST = stored([1], PROMPT[:4])
SECOND = stored([2], PROMPT[4:8], 1)


def leaves(place: Station, engine: FakeEngine) -> dict[str, float]:
    """Close pod a's engine and wait until that is noticed: the pods that are to be forgotten, and when."""
    engine.close()
    place.engines.remove(engine)
    assert place.subscriber is not None
    due = place.subscriber._presence._due
    place.until(lambda: "a" in due)
    return due


def test_pods_connect_and_are_heard(place: Station) -> None:
    place.listen()
    a, b = place.engine("kv@a@m"), place.engine("kv@b@org/m@v1")
    place.meet(a)
    place.meet(b)
    a.publish(FIRST, SECOND)
    b.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 2} and place.matched(PROMPT, "org/m@v1") == {"b": 1})
    assert place.index.losses.messages == {}


def test_topics_of_others_do_not_arrive(place: Station) -> None:
    place.listen()
    other, mine = place.engine("events"), place.engine("kv@a@m")
    place.meet(other)
    place.meet(mine)
    other.publish(FIRST)
    mine.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    place.settle()
    assert place.index.losses.messages == {}
    assert place.matched(PROMPT) == {"a": 1}


def test_pods_of_a_list_are_connected_to_and_may_have_any_topic(place: Station) -> None:
    plain = place.engine("", connect=False)
    named = place.engine("", connect=False)
    llmd = place.engine("kv@c@m", connect=False)
    targets = [
        PodEndpoint(plain.endpoint, model="m"),
        PodEndpoint(named.endpoint, pod="b", model="m"),
        PodEndpoint(llmd.endpoint),
    ]
    place.listen(FixedTargets(targets), bind=None)
    for engine in (plain, named, llmd):
        place.meet(engine)
        engine.publish(FIRST)
    address = plain.endpoint.removeprefix("tcp://")
    place.until(lambda: place.matched(PROMPT) == {address: 1, "b": 1, "c": 1})


def test_a_list_may_change(place: Station, tmp_path: Path) -> None:
    path = tmp_path / "pods"
    a, b = place.engine("kv@a@m", connect=False), place.engine("kv@b@m", connect=False)
    path.write_text(a.endpoint)
    subscriber = place.listen(FileTargets(path), bind=None, grace_s=30.0)
    place.meet(a)
    a.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    path.write_text(b.endpoint + "\n# nobody else")
    place.now += 5
    place.settle()
    assert [target.endpoint for target in subscriber.targets] == [b.endpoint]
    place.meet(b)
    b.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1, "b": 1})
    place.now += 30
    place.until(lambda: place.matched(PROMPT) == {"b": 1})


def test_a_pod_that_closes_its_connection_is_forgotten_after_a_while(place: Station) -> None:
    place.listen(grace_s=30.0)
    a, b = place.engine("kv@a@m"), place.engine("kv@b@m")
    for engine in (a, b):
        place.meet(engine)
        engine.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1, "b": 1})
    leaves(place, a)
    place.now += 29
    place.settle()
    assert place.matched(PROMPT) == {"a": 1, "b": 1}
    place.now += 1
    place.until(lambda: place.matched(PROMPT) == {"b": 1})
    assert [position.pod for position in place.pool.positions()] == ["b"]


def test_a_pod_that_comes_back_in_time_keeps_its_blocks(place: Station) -> None:
    place.listen(grace_s=30.0)
    a = place.engine("kv@a@m")
    place.meet(a)
    a.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    due = leaves(place, a)
    again = place.engine("kv@a@m", first=a.sequence)
    place.until(lambda: "a" not in due, lambda: again.publish(SECOND))
    place.now += 1_000
    place.settle()
    assert place.matched(PROMPT) == {"a": 2}


def test_gaps_are_replayed_by_the_host_that_the_messages_came_from(place: Station) -> None:
    port = free_port()
    place.listen(replay_port=port)
    a = place.engine("kv@anybody:1@m")
    a._router.bind(f"{LOCAL}:{port}")
    place.meet(a)
    a.publish(FIRST)
    a.publish(SECOND, lose=True)
    a.publish(stored([3], PROMPT[8:12], 2))
    place.until(lambda: place.matched(PROMPT) == {"anybody:1": 3})
    assert a.asked == [0, 1] or a.asked == [0]
    assert place.index.losses.messages == {}


def test_what_is_no_message_is_counted_and_the_next_is_read(place: Station) -> None:
    place.listen()
    a = place.engine("kv@a@m")
    place.meet(a)
    number = (0).to_bytes(8, "big")
    for frames in (
        (b"kv@a@m",),
        (b"kv@a@m", number),
        (b"kv@a@m", number, b"", b""),
        (b"kv@a@m", b"", b""),
        (b"kv@a@m", b"abc", b""),
        (b"kv@a@m", number + b"9", b""),
    ):
        a.send_frames(*frames)
    for topic in (b"kv@", b"kv@@m", b"kv@\xff\xfe@m", b"kv@a\n@m", b"kv@" + b"x" * 1000, b"kv@a\0b@m"):
        a.send_frames(topic, number, b"")
    for payload in (b"", b"\xc1", b"garbage", a.pack(FIRST)[:-5]):
        a.send(payload)
    a.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    before = {"gap": 4}  # nobody can tell whose numbers the four were
    assert place.index.losses.messages == {"bad_frames": 6, "bad_topic": 6, "unreadable": 4} | before


def test_a_payload_of_100_megabytes_is_refused_by_name_and_the_next_is_read(place: Station) -> None:
    place.listen()
    a = place.engine("kv@a@m")
    place.meet(a)
    a.publish(FIRST)
    a.send(bytes(100_000_000))
    a.publish(SECOND)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert place.index.losses.messages == {"too_large": 1}


def test_a_subscriber_that_stops_reading_finds_the_gap_and_fills_it(place: Station) -> None:
    """What neither side has room for is lost on the way, and asked for again."""
    place.pool = type(place.pool)(place.index, place.replays, PoolSettings(most_messages=5))
    a = place.engine("kv@a@m", connect=False, hwm=2)
    place.listen(FixedTargets([PodEndpoint(a.endpoint, a.replay)]), bind=None, hwm=2)
    place.meet(a)
    assert place.subscriber is not None
    tokens = list(range(4 * 4_000))
    for number in range(4_000):
        a.publish(stored([number + 1], tokens[number * 4 : number * 4 + 4], number or None))
        if number % 1000 == 0:
            place.subscriber.step(place.now)  # reads until the queue is full
    assert place.pool.full
    whole = {"a": 4_000}
    place.until(lambda: place.pool.step(place.now) or place.index.size().copies > 0)
    a.publish(stored([9_000], [1, 2, 3, 4]))
    place.until(lambda: place.index.size().copies == 4_001, lambda: a.publish())
    assert place.matched(tokens) == whole
    assert place.index.losses.events == {}
    assert not place.index.losses.messages.get("gap")


def test_an_address_that_is_taken_or_none_is_an_error(place: Station) -> None:
    place.listen()
    assert place.subscriber is not None
    taken = str(place.subscriber.address)
    for address in (taken, "nonsense"):
        with station() as other, pytest.raises(zmq.ZMQError):
            other.listen(bind=address)


def test_a_target_with_an_address_that_zmq_refuses_is_left_out(place: Station) -> None:
    a = place.engine("kv@a@m", connect=False)
    place.listen(FixedTargets([PodEndpoint("tcp://no such host:1"), PodEndpoint(a.endpoint)]), bind=None)
    place.meet(a)
    assert place.subscriber is not None
    assert [target.endpoint for target in place.subscriber.targets] == [a.endpoint]


def test_a_target_whose_host_nobody_knows_is_told_of_once(
    place: Station, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [PodEndpoint("tcp://nobody.invalid:1"), PodEndpoint(f"{LOCAL}:1")]
    place.listen(FixedTargets(targets), bind=None)
    place.until(lambda: caplog.records)
    place.now += 100
    place.settle()
    assert [record.getMessage() for record in caplog.records] == [
        "KV event sources: nobody knows the host of tcp://nobody.invalid:1, trying on"
    ]


def test_a_pod_that_is_crowded_out_is_not_followed_any_more(place: Station) -> None:
    place.pool = Pool(place.index, place.replays, PoolSettings(most_pods=1))
    subscriber = place.listen(grace_s=30.0)
    a, b = place.engine("kv@a@m"), place.engine("kv@b@m")
    for engine, pod in ((a, "a"), (b, "b")):
        place.meet(engine)
        engine.publish(FIRST)
        place.until(lambda pod=pod: place.matched(PROMPT) == {pod: 1})  # type: ignore[misc]
        assert list(subscriber._presence._connections) == [pod]


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


def heard(place: Station, **settings: object) -> FakeEngine:
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


def test_sources_are_looked_at_again_after_a_while(place: Station) -> None:
    source = FixedTargets([])
    subscriber = place.listen(source)
    step(place)
    source.targets = [PodEndpoint("inproc://1")]
    for now, seen in ((1.9, 0), (2.0, 1)):
        step(place, now)
        assert len(subscriber.targets) == seen


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
