"""A sender of events by itself, on a clock that we move."""

import logging
import math

import pytest
import zmq

from app.core.engine.kvcache.event_queue import MAX_BATCHES, MESSAGE_BYTES, EventQueue
from app.core.engine.kvcache.events import BlockRemoved, KVEvent, event_bytes
from app.core.engine.kvcache.publisher import EventSender
from app.core.engine.kvcache.publishing import PublisherSettings, is_bound, is_ipv6, of_rank
from app.shared.virtual_clock import VirtualClock
from tests.core.kvcache.sockets import TOPIC, removed


def test_lost_events_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock(100.0)
    sender = EventSender(
        PublisherSettings(endpoint=None, topic=TOPIC, queue_events=1), now=clock.now
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(1 + 3 * 60):  # once a second; the first has room
            sender.put(removed(1))
            clock.advance(1)
    assert sender.dropped_events == 180
    assert [record.getMessage().split(",")[1] for record in caplog.records] == [
        " 1 are lost so far",
        " 61 are lost so far",
        " 121 are lost so far",
    ]


def publish_each_second(sender: EventSender, clock: VirtualClock, seconds: int) -> None:
    for number in range(seconds):
        sender.put(removed(number))
        sender.turn()
        clock.advance(1)


@pytest.mark.parametrize("is_subscribed", [True, False])
def test_events_without_a_subscriber_are_logged_once_after_a_minute(
    caplog: pytest.LogCaptureFixture, is_subscribed: bool
) -> None:
    clock = VirtualClock(100.0)
    settings = PublisherSettings(endpoint="tcp://*:0", topic=TOPIC, flush_s=0.0)
    sender = EventSender(settings, now=clock.now)
    with caplog.at_level(logging.WARNING), zmq.Context() as context:
        sender.open()
        clock.advance(1000)  # no events yet
        with context.socket(zmq.SUB) as subscriber:
            if is_subscribed:
                subscriber.subscribe("")
                subscriber.connect(sender.addresses["events"].replace("0.0.0.0", "127.0.0.1"))
                while not subscriber.poll(10):
                    sender.put(removed(0))
                    sender.turn()
            publish_each_second(sender, clock, 60)
        assert caplog.messages == []
        publish_each_second(sender, clock, 120)
        sender.close()
    expected = (
        f"KV events: no subscriber has connected to {sender.addresses['events']} within a minute"
    )
    assert caplog.messages == [expected] * (not is_subscribed)


def test_event_listeners_receive_numbered_batches_with_the_wall_clock_time() -> None:
    settings = PublisherSettings(endpoint=None, topic=TOPIC, batch_events=2, flush_s=5.0)
    clock = VirtualClock(100.0)
    sender = EventSender(settings, wall=lambda: 1.5, now=clock.now)
    heard: list[tuple[int, float, int]] = []
    sender.listen(
        lambda topic, sequence, batch: heard.append((sequence, batch.ts, len(batch.events)))
    )
    sender.put(removed(1))
    assert sender.turn() == math.inf and len(heard) == 1  # the first goes at once
    sender.put(removed(2))
    assert sender.turn() == 105.0 and len(heard) == 1
    sender.put(removed(3))
    sender.turn()
    assert heard == [(0, 1.5, 1), (1, 1.5, 2)]
    assert sender.next_sequence == 2


def events(count: int, first: int = 0) -> list[KVEvent]:
    return [BlockRemoved([number]) for number in range(first, first + count)]


def test_waiting_kv_events_are_sent_in_batches_of_limited_size() -> None:
    queue = EventQueue(100, 2, 1.0)
    queue.put(events(40))
    queue.put(events(10, 40))
    limit = 2 * MAX_BATCHES
    assert [queue.take(0.0), queue.take(0.0)] == [events(limit), events(50 - limit, limit)]


def test_events_of_each_step_are_sent_separately_without_a_flush_interval() -> None:
    queue = EventQueue(100, 2, 0.0)
    for step in (events(40), [], events(1, 40)):
        queue.put(step)
    assert [queue.take(0.0), queue.take(0.0)] == [events(40), events(1, 40)]
    assert queue.due_s() == math.inf


def test_events_are_split_into_messages_of_limited_size() -> None:
    def large(share: float) -> KVEvent:
        return BlockRemoved(
            [0] * int(share * MESSAGE_BYTES / event_bytes(BlockRemoved([0] * 1000)) * 1000)
        )

    queue = EventQueue(100, 4, 0.0)
    waiting = [large(0.4), large(0.4), large(0.4), large(2.0), large(0.9), large(0.05)]
    assert queue.put(waiting) == 0
    queue.put(events(1))
    parts = [waiting[:2], waiting[2:3], waiting[3:4], waiting[4:], events(1)]
    assert [queue.take(0.0) for _ in parts] == parts


def test_event_queue_is_limited_in_bytes() -> None:
    event_size = event_bytes(BlockRemoved([0]))
    queue = EventQueue(100, 1, 0.0, limit_bytes=3 * event_size)
    assert queue.put(events(4)) == 1
    assert (len(queue), queue.size_bytes) == (3, 3 * event_size)
    queue.take(0.0)
    assert (len(queue), queue.size_bytes) == (0, 0)
    assert queue.put(events(4)) == 1


ADDRESSES: list[tuple[str, int, str | None, bool, bool]] = [
    ("tcp://*:5557", 3, "tcp://*:5560", True, False),
    ("tcp://[::1]:5557", 1, "tcp://[::1]:5558", True, True),
    ("tcp://localhost:0", 4, "tcp://localhost:0", False, False),
    ("inproc://cache", 2, "inproc://cache_dp2", True, False),
    ("ipc:///tmp/kv", 1, None, True, False),
    ("tcp://localhost", 0, None, False, False),
    ("tcp://localhost:65535", 1, None, False, False),
]


@pytest.mark.parametrize(("endpoint", "rank", "rank_endpoint", "bound", "ipv6"), ADDRESSES)
def test_event_endpoint_determines_the_port_of_each_rank(
    endpoint: str, rank: int, rank_endpoint: str | None, bound: bool, ipv6: bool
) -> None:
    assert (is_bound(endpoint), is_ipv6(endpoint)) == (bound, ipv6)
    if rank_endpoint is not None:
        assert of_rank(endpoint, rank) == rank_endpoint
        return
    with pytest.raises(ValueError):
        of_rank(endpoint, rank)
