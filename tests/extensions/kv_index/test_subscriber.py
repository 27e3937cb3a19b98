"""The subscriber on real sockets: pods that connect, configured pods, and malformed messages."""

import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec import to_builtins

from app.core.engine.kvcache import sockets
from app.extensions.kv_index import subscriber as module
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.pods import FileSource, PodEndpoint, TargetSource
from tests.extensions.kv_index.engines import stored
from tests.extensions.kv_index.publisher import LOCAL, FakeEngine, SteppedIndexer

PROMPT = list(range(100, 120))
FIRST = stored([1], PROMPT[:4])
SECOND = stored([2], PROMPT[4:8], 1)
HERE = "inproc://here"
"""Within the process what was sent is there."""


def leaves(indexer: SteppedIndexer, engine: FakeEngine) -> dict[str, float]:
    """Close pod a's engine and wait until that is noticed:

    the pods that are to be forgotten, and when.
    """
    engine.close()
    indexer.engines.remove(engine)
    assert indexer.subscriber is not None
    due = indexer.subscriber._tracker.deadlines

    def is_departure_noticed() -> bool:
        return "a" in due

    indexer.wait_until(is_departure_noticed)
    return due


def test_messages_whose_topic_names_no_pod_are_not_received(indexer: SteppedIndexer) -> None:
    indexer.listen()
    other = indexer.engine("events")
    mine = indexer.engine("kv@a@m")
    indexer.meet(other)
    indexer.meet(mine)
    other.publish(FIRST)
    mine.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    indexer.settle()
    assert indexer.index.metrics.skipped_messages == {}
    assert indexer.matched(PROMPT) == {"a": 1}


def test_blocks_of_listed_pods_are_indexed_regardless_of_their_event_topic(
    indexer: SteppedIndexer,
) -> None:
    plain = indexer.engine("", connect=False)
    named = indexer.engine("", connect=False)
    llmd = indexer.engine("kv@c@m", connect=False)
    targets = [
        PodEndpoint(plain.endpoint),
        PodEndpoint(named.endpoint, pod="b", model="n"),
        PodEndpoint(llmd.endpoint),
    ]
    indexer.listen(TargetSource(targets), bind=None, model="m")
    for engine in (plain, named, llmd):
        indexer.meet(engine)
        engine.publish(FIRST)
    address = plain.endpoint.removeprefix("tcp://")
    indexer.wait_for_matches(PROMPT, {address: 1, "c": 1})
    assert indexer.matched(PROMPT, "n") == {"b": 1}


def test_changed_pod_list_changes_the_connections(indexer: SteppedIndexer, tmp_path: Path) -> None:
    path = tmp_path / "pods"
    a = indexer.engine("kv@a@m", connect=False)
    b = indexer.engine("kv@b@m", connect=False)
    path.write_text(a.endpoint)
    subscriber = indexer.listen(FileSource(path), bind=None, grace_s=30.0)
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    path.write_text(b.endpoint + "\n# no other pod")
    indexer.now += 5
    indexer.settle()
    assert [target.endpoint for target in subscriber.targets] == [b.endpoint]
    indexer.meet(b)
    b.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1, "b": 1})
    indexer.now += 30
    indexer.wait_for_matches(PROMPT, {"b": 1})


def test_pod_is_removed_after_a_grace_period_without_a_connection(indexer: SteppedIndexer) -> None:
    indexer.listen(grace_s=30.0)
    a = indexer.engine("kv@a@m")
    b = indexer.engine("kv@b@m")
    for engine in (a, b):
        indexer.meet(engine)
        engine.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1, "b": 1})
    leaves(indexer, a)
    indexer.now += 29
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 1, "b": 1}
    indexer.now += 1
    indexer.wait_for_matches(PROMPT, {"b": 1})
    assert [position.pod for position in indexer.pool.positions()] == ["b"]


def test_pod_that_reconnects_within_the_grace_period_keeps_its_blocks(
    indexer: SteppedIndexer,
) -> None:
    indexer.listen(grace_s=30.0)
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    due = leaves(indexer, a)
    reconnected = indexer.engine("kv@a@m", first=a.sequence)

    def is_return_noticed() -> bool:
        return "a" not in due

    indexer.wait_until(is_return_noticed, partial(reconnected.publish, SECOND))
    indexer.now += 1_000
    indexer.settle()
    assert indexer.matched(PROMPT) == {"a": 2}


def test_malformed_messages_are_counted_and_skipped(indexer: SteppedIndexer) -> None:
    indexer.listen()
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
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
    indexer.wait_for_matches(PROMPT, {"a": 1})
    # The four unreadable messages have numbers, but no known rank: they also count as a gap.
    assert indexer.index.metrics.skipped_messages == {
        "bad_frames": 6,
        "bad_topic": 6,
        "unreadable": 4,
        "gap": 4,
    }


@pytest.mark.parametrize("number", [1 << 41, (1 << 63) + 5, (1 << 64) - 2, (1 << 64) - 1])
def test_impossible_sequence_number_moves_no_other_counter(
    indexer: SteppedIndexer, number: int
) -> None:
    indexer.listen()
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    a.send_frames(b"kv@a@m", number.to_bytes(8, "big"), a.pack(SECOND))
    a.publish(SECOND)
    indexer.wait_for_matches(PROMPT, {"a": 2})
    metrics = indexer.index.metrics
    assert metrics.skipped_messages == {"bad_sequence": 1}
    assert "kvcache_events_pod_restarts_total 0.0" in metrics.render({})


def test_garbage_costs_at_most_one_log_line_a_second(
    indexer: SteppedIndexer, caplog: pytest.LogCaptureFixture
) -> None:
    indexer.listen()
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    started_s = time.monotonic()
    for number in range(500):
        payload = bytearray(a.pack(FIRST, SECOND))
        payload[number % len(payload)] ^= 0xFF
        a.send(bytes(payload))

    def are_all_read() -> bool:
        return indexer.index.metrics.received.value == 500

    indexer.wait_until(are_all_read)
    indexer.settle()
    assert len(caplog.records) <= time.monotonic() - started_s + 1


def test_additional_event_fields_of_vllm_0_33_are_ignored(
    indexer: SteppedIndexer,
) -> None:
    """Their session and the tokens behind each block are not read, in whatever shape they come."""
    indexer.listen()
    engine = indexer.engine("kv@a@m")
    indexer.meet(engine)
    events = []
    for event in (FIRST, SECOND):
        fields = {
            "session_id": "s-1",
            "lookahead_token_ids": [[7, 8]],
            "of_a_later_version": {"any": 1},
        }
        events.append(to_builtins(event) | fields)
    engine.send(msgspec.msgpack.encode([1000.0, events, 0]))
    indexer.wait_for_matches(PROMPT, {"a": 2})
    assert indexer.index.metrics.skipped_events == {}


def test_payload_of_100_megabytes_is_skipped(
    indexer: SteppedIndexer,
) -> None:
    indexer.listen()
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    a.send(bytes(100_000_000))
    a.publish(SECOND)
    indexer.wait_for_matches(PROMPT, {"a": 2})
    assert indexer.index.metrics.skipped_messages == {"too_large": 1}


def test_subscriber_that_falls_behind_fills_the_gap_in_the_events(
    indexer: SteppedIndexer,
) -> None:
    """What neither side has room for is lost on the way, and asked for again."""
    indexer.pool = indexer.make_pool(max_messages=5)
    a = indexer.engine("kv@a@m", connect=False, hwm=2)
    indexer.listen(TargetSource([PodEndpoint(a.endpoint, a.replay)]), bind=None, hwm=2)
    indexer.meet(a)
    assert indexer.subscriber is not None
    tokens = list(range(4 * 4_000))
    for number in range(4_000):
        a.publish(stored([number + 1], tokens[number * 4 : number * 4 + 4], number or None))
        if number % 1000 == 0:
            indexer.subscriber.step(indexer.now)  # reads until the queue is full
    assert indexer.pool.full
    whole = {"a": 4_000}

    def has_copies() -> bool:
        return indexer.index.backend.size().copies > 0

    def has_all_copies() -> bool:
        return indexer.index.backend.size().copies == 4_001

    indexer.wait_until(has_copies)
    a.publish(stored([9_000], [1, 2, 3, 4]))
    indexer.wait_until(has_all_copies, a.publish)
    assert indexer.matched(tokens) == whole
    assert indexer.index.metrics.skipped_events == {}
    assert not indexer.index.metrics.skipped_messages.get("gap")


def test_pod_address_that_zmq_rejects_is_skipped(indexer: SteppedIndexer) -> None:
    a = indexer.engine("kv@a@m", connect=False)
    indexer.listen(
        TargetSource([PodEndpoint("tcp://no such host:1"), PodEndpoint(a.endpoint)]), bind=None
    )
    indexer.meet(a)
    assert indexer.subscriber is not None
    assert [target.endpoint for target in indexer.subscriber.targets] == [a.endpoint]


def test_pod_address_with_an_unknown_host_is_logged_once(
    indexer: SteppedIndexer, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [PodEndpoint("tcp://nobody.invalid:1"), PodEndpoint(f"{LOCAL}:1")]
    indexer.listen(TargetSource(targets), bind=None)

    def is_logged() -> bool:
        return bool(caplog.records)

    indexer.wait_until(is_logged)
    indexer.now += 100
    indexer.settle()
    assert [record.getMessage() for record in caplog.records] == [
        "KV event sources: unknown host in tcp://nobody.invalid:1; retrying"
    ]


@pytest.fixture
def indexer(indexer: SteppedIndexer) -> SteppedIndexer:
    """With one queue, which shows what was read in its order."""
    indexer.pool = indexer.make_pool(shards=1)
    return indexer


def queued(indexer: SteppedIndexer) -> list[PublishedMessage]:
    (shard,) = indexer.pool.shards
    return [message for _, message in shard.queue if message is not None]


def step(indexer: SteppedIndexer, now: float = 0.0) -> bool:
    """Read, and leave it in the queue."""
    assert indexer.subscriber is not None
    return indexer.subscriber.step(now)


def heard(indexer: SteppedIndexer, **settings: object) -> FakeEngine:
    indexer.listen(**({"bind": HERE} | settings))  # type: ignore[arg-type]
    engine = indexer.engine()
    indexer.meet(engine)
    return engine


def test_other_greenlets_run_while_an_event_message_of_many_parts_is_read(
    indexer: SteppedIndexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = heard(indexer)
    monkeypatch.setattr(module, "MAX_MESSAGES_PER_STEP", 1)
    monkeypatch.setattr(sockets, "FRAMES_PER_PAUSE", 5)
    pauses: list[None] = []
    monkeypatch.setattr(sockets, "pause_if_possible", partial(pauses.append, None))
    engine.send_frames(b"kv@a@m", *[b"part"] * 11)
    engine.publish()
    assert step(indexer) and len(pauses) == 2
    assert indexer.index.metrics.skipped_messages == {"bad_frames": 1} and len(indexer.pool) == 0
    assert step(indexer) and len(indexer.pool) == 1 and not step(indexer)


@pytest.mark.parametrize(
    ("bind", "replay"),
    [
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:77"),
        ("tcp://[::1]:*", "tcp://[::1]:77"),
        ("ipc", None),
        (HERE, None),
    ],
)
def test_replays_are_requested_from_the_host_of_the_event_connection(
    indexer: SteppedIndexer, bind: str, replay: str | None, tmp_path: Path
) -> None:
    indexer.listen(bind=f"ipc://{tmp_path}/events" if bind == "ipc" else bind, replay_port=77)
    assert indexer.subscriber is not None
    engine = indexer.engine("kv@a@m", connect=False)
    engine.connect(str(indexer.subscriber.address), ipv6=True)
    indexer.meet(engine)
    engine.publish()
    while not indexer.pool:
        step(indexer)
    (message,) = queued(indexer)
    assert (message.replay, message.per_rank) == (replay, replay is not None)
    assert (message.pod, message.model, message.sequence, message.topic) == ("a", "m", 0, b"kv@a@m")


def test_waiting_messages_are_discarded_while_the_memory_of_the_server_is_full(
    indexer: SteppedIndexer, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = indexer.listen(bind=HERE, max_resident_bytes=1_000)
    subscriber._resident = lambda: 0
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    a.publish(SECOND)
    subscriber._resident = lambda: 1_001
    indexer.step()
    assert indexer.index.metrics.skipped_messages == {"no_memory": 1}
    assert caplog.text.count("the memory of the server is full") == 1
    subscriber._resident = lambda: 1_000
    a.publish(SECOND)
    indexer.wait_for_matches(PROMPT, {"a": 2})


@pytest.mark.parametrize("limit", ["MAX_DISCARDED", "MAX_DISCARDED_BYTES"])
def test_connections_end_if_more_messages_wait_than_a_step_discards(
    indexer: SteppedIndexer, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(module, limit, 2)
    subscriber = indexer.listen(bind=HERE, max_resident_bytes=1_000)
    subscriber._resident = lambda: 0
    subscriber._has_disconnected = True
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    subscriber._resident = lambda: 1_001
    subscriber._has_disconnected = True
    indexer.step()
    assert subscriber.address is not None
    for _ in range(5):
        a.publish(SECOND)
    indexer.step()
    assert subscriber.address is None
    assert 1 <= indexer.index.metrics.skipped_messages["no_memory"] <= 2


def test_connections_are_noticed_while_the_memory_of_the_server_is_full(
    indexer: SteppedIndexer,
) -> None:
    """ZMQ's thread stops at a thousand unread events, and closing a socket then never ends."""
    subscriber = indexer.listen(max_resident_bytes=1_000)
    subscriber._resident = lambda: 0
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    subscriber._resident = lambda: 1_001
    subscriber._has_disconnected = True
    assert leaves(indexer, a) == {"a": indexer.now + subscriber._settings.grace_s}


def test_connections_end_once_if_discarded_messages_free_too_little_memory(
    indexer: SteppedIndexer,
) -> None:
    """Parts of messages are freed with their connections; pods connect again afterwards."""
    subscriber = indexer.listen(max_resident_bytes=1_000)
    address = subscriber.address
    subscriber._resident = lambda: 0
    a = indexer.engine("kv@a@m")
    indexer.meet(a)
    a.publish(FIRST)
    indexer.wait_for_matches(PROMPT, {"a": 1})
    subscriber._resident = lambda: 2_000

    def is_closed() -> bool:
        return subscriber.address is None

    def is_open() -> bool:
        indexer.now += module.REFRESH_S
        return subscriber.address == address

    indexer.wait_until(is_closed)
    indexer.wait_until(is_open)
    indexer.settle()
    assert subscriber.address == address
    subscriber._resident = lambda: 0
    b = indexer.engine("kv@b@m")
    indexer.meet(b)
    b.publish(FIRST)

    def is_indexed() -> bool:
        return indexer.matched(PROMPT).get("b") == 1

    indexer.wait_until(is_indexed)
