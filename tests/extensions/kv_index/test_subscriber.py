"""Real sockets:

pods that connect, pods that are connected to, what is read in one go, what goes wrong.
"""

from pathlib import Path

import msgspec
import pytest
from msgspec import to_builtins

from app.extensions.kv_index import subscriber as module
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.pods import FileSource, PodEndpoint, TargetSource
from tests.extensions.kv_index.engines import stored
from tests.extensions.kv_index.publisher import LOCAL, FakeEngine, Station

PROMPT = list(range(100, 120))
FIRST = stored([1], PROMPT[:4])
SECOND = stored([2], PROMPT[4:8], 1)


def leaves(place: Station, engine: FakeEngine) -> dict[str, float]:
    """Close pod a's engine and wait until that is noticed:

    the pods that are to be forgotten, and when.
    """
    engine.close()
    place.engines.remove(engine)
    assert place.subscriber is not None
    due = place.subscriber._tracker.deadlines
    place.until(lambda: "a" in due)
    return due


def test_messages_with_other_topics_are_not_received(place: Station) -> None:
    place.listen()
    other, mine = place.engine("events"), place.engine("kv@a@m")
    place.meet(other)
    place.meet(mine)
    other.publish(FIRST)
    mine.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    place.settle()
    assert place.index.metrics.skipped_messages == {}
    assert place.matched(PROMPT) == {"a": 1}


def test_listed_pods_are_connected_and_may_use_any_topic(place: Station) -> None:
    plain = place.engine("", connect=False)
    named = place.engine("", connect=False)
    llmd = place.engine("kv@c@m", connect=False)
    targets = [
        PodEndpoint(plain.endpoint),
        PodEndpoint(named.endpoint, pod="b", model="n"),
        PodEndpoint(llmd.endpoint),
    ]
    place.listen(TargetSource(targets), bind=None, model="m")
    for engine in (plain, named, llmd):
        place.meet(engine)
        engine.publish(FIRST)
    address = plain.endpoint.removeprefix("tcp://")
    place.until(lambda: place.matched(PROMPT) == {address: 1, "c": 1})
    assert place.matched(PROMPT, "n") == {"b": 1}


def test_the_list_of_pods_may_change(place: Station, tmp_path: Path) -> None:
    path = tmp_path / "pods"
    a, b = place.engine("kv@a@m", connect=False), place.engine("kv@b@m", connect=False)
    path.write_text(a.endpoint)
    subscriber = place.listen(FileSource(path), bind=None, grace_s=30.0)
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


def test_a_pod_is_removed_some_time_after_its_connection_closed(place: Station) -> None:
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


def test_a_pod_that_reconnects_in_time_keeps_its_blocks(place: Station) -> None:
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


def test_malformed_messages_are_counted_and_the_next_is_read(place: Station) -> None:
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
    for topic in (
        b"kv@",
        b"kv@@m",
        b"kv@\xff\xfe@m",
        b"kv@a\n@m",
        b"kv@" + b"x" * 1000,
        b"kv@a\0b@m",
    ):
        a.send_frames(topic, number, b"")
    for payload in (b"", b"\xc1", b"garbage", a.pack(FIRST)[:-5]):
        a.send(payload)
    a.publish(FIRST)
    place.until(lambda: place.matched(PROMPT) == {"a": 1})
    before = {"gap": 4}  # nobody can tell whose numbers the four were
    assert (
        place.index.metrics.skipped_messages
        == {"bad_frames": 6, "bad_topic": 6, "unreadable": 4} | before
    )


def test_events_of_vllm_0_33_with_lookahead_tokens_are_read(place: Station) -> None:
    """Their session and the tokens behind each block are not read, in whatever shape they come."""
    place.listen()
    engine = place.engine("kv@a@m")
    place.meet(engine)
    events = []
    for event in (FIRST, SECOND):
        fields = {
            "session_id": "s-1",
            "lookahead_token_ids": [[7, 8]],
            "of_a_later_version": {"any": 1},
        }
        events.append(to_builtins(event) | fields)
    engine.send(msgspec.msgpack.encode([1000.0, events, 0]))
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert place.index.metrics.skipped_events == {}


def test_a_payload_of_100_megabytes_is_counted_as_too_large_and_the_next_is_read(
    place: Station,
) -> None:
    place.listen()
    a = place.engine("kv@a@m")
    place.meet(a)
    a.publish(FIRST)
    a.send(bytes(100_000_000))
    a.publish(SECOND)
    place.until(lambda: place.matched(PROMPT) == {"a": 2})
    assert place.index.metrics.skipped_messages == {"too_large": 1}


def test_a_subscriber_that_stopped_reading_detects_and_fills_the_gap(place: Station) -> None:
    """What neither side has room for is lost on the way, and asked for again."""
    place.pool = place.make_pool(max_messages=5)
    a = place.engine("kv@a@m", connect=False, hwm=2)
    place.listen(TargetSource([PodEndpoint(a.endpoint, a.replay)]), bind=None, hwm=2)
    place.meet(a)
    assert place.subscriber is not None
    tokens = list(range(4 * 4_000))
    for number in range(4_000):
        a.publish(stored([number + 1], tokens[number * 4 : number * 4 + 4], number or None))
        if number % 1000 == 0:
            place.subscriber.step(place.now)  # reads until the queue is full
    assert place.pool.full
    whole = {"a": 4_000}
    place.until(lambda: place.index.backend.size().copies > 0)
    a.publish(stored([9_000], [1, 2, 3, 4]))
    place.until(lambda: place.index.backend.size().copies == 4_001, lambda: a.publish())
    assert place.matched(tokens) == whole
    assert place.index.metrics.skipped_events == {}
    assert not place.index.metrics.skipped_messages.get("gap")


def test_a_target_with_an_address_that_zmq_rejects_is_skipped(place: Station) -> None:
    a = place.engine("kv@a@m", connect=False)
    place.listen(
        TargetSource([PodEndpoint("tcp://no such host:1"), PodEndpoint(a.endpoint)]), bind=None
    )
    place.meet(a)
    assert place.subscriber is not None
    assert [target.endpoint for target in place.subscriber.targets] == [a.endpoint]


def test_a_target_with_an_unknown_host_is_logged_once(
    place: Station, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [PodEndpoint("tcp://nobody.invalid:1"), PodEndpoint(f"{LOCAL}:1")]
    place.listen(TargetSource(targets), bind=None)
    place.until(lambda: caplog.records)
    place.now += 100
    place.settle()
    assert [record.getMessage() for record in caplog.records] == [
        "KV event sources: unknown host in tcp://nobody.invalid:1; retrying"
    ]


HERE = "inproc://here"
"""Within the process what was sent is there."""


@pytest.fixture
def place(place: Station) -> Station:
    """With one queue, which shows what was read in its order."""
    place.pool = place.make_pool(shards=1)
    return place


def queued(place: Station) -> list[PublishedMessage]:
    (shard,) = place.pool.shards
    return [message for _, message in shard.queue if message is not None]


def step(place: Station, now: float = 0.0) -> bool:
    """Read, and leave it in the queue."""
    assert place.subscriber is not None
    return place.subscriber.step(now)


def heard(place: Station, **settings: object) -> FakeEngine:
    place.listen(**({"bind": HERE} | settings))  # type: ignore[arg-type]
    engine = place.engine()
    place.meet(engine)
    return engine


def test_a_message_of_many_parts_is_read_with_pauses(
    place: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = heard(place)
    monkeypatch.setattr(module, "MAX_MESSAGES_PER_STEP", 1)
    monkeypatch.setattr(module, "FRAMES_PER_PAUSE", 5)
    pauses = list[None]()
    monkeypatch.setattr(module, "pause_if_possible", lambda: pauses.append(None))
    engine.send_frames(b"kv@a@m", *[b"part"] * 11)
    engine.publish()
    assert step(place) and len(pauses) == 2
    assert place.index.metrics.skipped_messages == {"bad_frames": 1} and len(place.pool) == 0
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
def test_replays_are_requested_from_the_host_of_the_connection(
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
