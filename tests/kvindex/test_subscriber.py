"""Real sockets: pods that connect, pods that are connected to, and what goes wrong between."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from app.kvindex.event_pool import Pool, PoolSettings
from app.kvindex.pods import FileTargets, FixedTargets, PodEndpoint
from tests.kvindex.engines import stored
from tests.kvindex.publisher import LOCAL, Engine, Station, station
from tests.running_server import free_port

PROMPT = list(range(100, 120))
FIRST = stored([1], PROMPT[:4])
SECOND = stored([2], PROMPT[4:8], 1)


def leaves(place: Station, engine: Engine) -> dict[str, float]:
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
    subscriber = place.listen(FileTargets(path), bind=None, grace_s=30.0, look_again_s=5.0)
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


def test_a_target_that_cannot_be_reached_for_a_while_is_forgotten(place: Station) -> None:
    a = place.engine("kv@a@m", connect=False)
    place.listen(FixedTargets([PodEndpoint(a.endpoint)]), bind=None, grace_s=30.0)
    place.meet(a)
    a.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    leaves(place, a)
    place.now += 30
    place.until(lambda: place.matched(PROMPT) == {})


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


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:*", "tcp://[::1]:*", "inproc://here", "ipc"])
def test_pods_may_come_over_any_transport(place: Station, bind: str, tmp_path: Path) -> None:
    place.listen(bind=f"ipc://{tmp_path}/events" if bind == "ipc" else bind, replay_port=1)
    assert place.subscriber is not None
    socket = place.context.socket(zmq.PUB)
    socket.ipv6, socket.linger = True, 0
    socket.connect(str(place.subscriber.address))
    place.until(lambda: place.received() > 0, lambda: socket.send_multipart([b"kv@a@m", b"?"]))
    spare = place.engine("kv@a@m", connect=False)
    socket.send_multipart([b"kv@a@m", bytes(8), spare.pack(FIRST)])

    def pass_time() -> None:
        place.now += 1

    place.until(lambda: place.matched(PROMPT) == {"a": 1}, pass_time)  # nobody answers, where one is asked
    socket.close()


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


@pytest.mark.slow
def test_a_subscriber_that_stops_reading_finds_the_gap_and_fills_it(place: Station) -> None:
    """What neither side has room for is lost on the way, and asked for again."""
    place.pool = type(place.pool)(place.index, place.replays, PoolSettings(most_messages=5))
    a = place.engine("kv@a@m", connect=False, hwm=2)
    place.listen(FixedTargets([PodEndpoint(a.endpoint, a.replay)]), bind=None, hwm=2)
    place.meet(a)
    assert place.subscriber is not None
    tokens = list(range(4 * 20_000))
    for number in range(20_000):
        a.publish(stored([number + 1], tokens[number * 4 : number * 4 + 4], number or None))
        if number % 1000 == 0:
            place.subscriber.step(place.now)  # reads until the queue is full
    assert place.pool.full
    whole = {"a": 20_000}
    place.until(lambda: place.pool.step(place.now) or place.index.size().copies > 0)
    a.publish(stored([30_000], [1, 2, 3, 4]))
    place.until(lambda: place.index.size().copies == 20_001, lambda: a.publish())
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


def test_a_wait_is_short_while_the_queues_are_full(place: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber = place.listen()
    waited_ms: list[float] = []

    class Waits:
        def register(self, descriptor: int, events: int) -> None:
            assert descriptor >= 0

        def poll(self, timeout_ms: float) -> None:
            waited_ms.append(timeout_ms)

    with monkeypatch.context() as patch:
        patch.setattr("app.kvindex.subscriber.poll", Waits)
        subscriber.wait(0.5)
        patch.setattr(Pool, "full", True)
        subscriber.wait(0.5)
        subscriber.wait(0.001)
    assert waited_ms == [500, 10, 1]
