"""Batches on real sockets, to subscribers that are there, late, slow or gone."""

import logging

import gevent
import pytest
import zmq

from app.core.engine.kvcache import publisher as module
from app.core.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.core.engine.kvcache.publisher import MESSAGE_BYTES
from app.core.engine.kvcache.sockets import IO_THREADS, affinity
from tests.core.kvcache.sockets import (
    TOPIC,
    Peers,
    meet,
    received,
    removed,
    until,
    wait_until_sent,
)
from tests.running_server import free_port


def many(count: int) -> list[KVEvent]:
    return [BlockRemoved([number]) for number in range(count)]


def test_failing_listener_does_not_affect_publishing(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = peers.publisher(None)
    heard = list[int]()
    failed = list[int]()

    def fail(topic: str, sequence: int, batch: EventBatch) -> None:
        failed.append(sequence)
        raise LookupError("broken index")

    publisher.listen(fail)

    def hear(topic: str, sequence: int, batch: EventBatch) -> None:
        heard.append(sequence)

    publisher.listen(hear)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            publisher.put(removed(number))
            until(lambda number=number: len(heard) == number + 1)
    assert failed == heard == [0, 1, 2]
    assert len(caplog.records) == 1 and "broken index" in caplog.text


def test_events_after_close_are_dropped_and_counted(peers: Peers) -> None:
    publisher = peers.publisher("tcp://127.0.0.1:9")
    publisher.put(removed(1))
    publisher.close()
    publisher.close()
    publisher.put(many(2))
    assert publisher.next_sequence == 1
    assert publisher.dropped_events == 2


def test_subscriber_that_starts_after_the_publisher_receives_events(peers: Peers) -> None:
    first, port = peers.listening()
    first.close()
    publisher = peers.publisher(f"tcp://127.0.0.1:{port}")
    publisher.put(removed(1))
    wait_until_sent(publisher, 1)
    assert meet(publisher, peers.listening_at(port)) >= 1


def test_stalled_subscriber_loses_events_without_blocking_the_publisher(
    peers: Peers,
) -> None:
    publisher = peers.publisher("tcp://*:0", hwm=5, batch_events=1)
    publisher.start()
    stopped = peers.subscriber()
    stopped.rcvhwm = 5
    stopped.connect(publisher.addresses["events"].replace("0.0.0.0", "127.0.0.1"))
    meet(publisher, stopped)
    large: list[KVEvent] = [
        BlockStored([1], None, token_ids=[100_000] * 10_000, block_size=10_000, lora_id=None)
    ]
    for _ in range(600):
        publisher.put(large)
        while len(publisher.queue):
            gevent.sleep(0.0001)
    sequences = []
    while stopped.poll(200):
        sequences.append(received(stopped)[1])
    assert len(sequences) < 600


def test_occupied_endpoint_is_bound_once_it_is_free(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    occupant = peers.socket(zmq.PULL)
    port = occupant.bind_to_random_port("tcp://*")
    publisher = peers.publisher(f"tcp://*:{port}")
    with caplog.at_level(logging.WARNING):
        publisher.put(removed(1))
        wait_until_sent(publisher, 1)
    assert f"tcp://*:{port}" in caplog.text
    occupant.close()
    until(lambda: publisher.addresses)
    meet(publisher, peers.connected_to(publisher.addresses["events"]))


def test_endpoints_with_host_names_use_a_separate_io_thread() -> None:
    context = zmq.Context(io_threads=IO_THREADS)
    try:
        assert affinity(context, "tcp://127.0.0.1:9") == 0b01
        assert affinity(context, "tcp://events.example:9") == 0b10
    finally:
        context.term()


@pytest.mark.parametrize("topic", ["", "kv@", TOPIC])
def test_subscriptions_can_be_changed(peers: Peers, topic: str) -> None:
    publisher = peers.publisher("tcp://*:0")
    publisher.start()
    first = peers.subscriber(topic)
    second = peers.subscriber(topic)
    for subscriber in (first, second):
        subscriber.connect(publisher.addresses["events"].replace("0.0.0.0", "127.0.0.1"))
        meet(publisher, subscriber)
    while second.poll(0):
        received(second)
    first.unsubscribe(topic)
    meet(publisher, second)
    while first.poll(0):
        received(first)
    meet(publisher, second)
    assert not first.poll(0)
    first.subscribe(topic)
    meet(publisher, first)


def test_too_many_subscriptions_disconnect_all_and_others_return(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SUBSCRIPTIONS_BYTES", 10_000)
    publisher = peers.publisher(f"tcp://*:{free_port()}")
    publisher.start()
    address = publisher.addresses["events"]
    ordinary = peers.connected_to(address)
    meet(publisher, ordinary)
    assert publisher.subscribed_bytes == MESSAGE_BYTES + len("\1kv@")
    stranger = peers.socket(zmq.SUB)
    # It would reconnect and repeat its subscriptions.
    stranger.reconnect_ivl = -1
    stranger.connect(address.replace("0.0.0.0", "127.0.0.1"))
    for number in range(200):
        stranger.subscribe(f"{number:0100d}")

    def is_disconnected() -> bool:
        publisher.put(removed(0))
        return publisher.subscribed_bytes > 10_000

    until(is_disconnected)
    until(lambda: publisher.subscribed_bytes <= 10_000)
    while ordinary.poll(100):
        received(ordinary)
    meet(publisher, ordinary)
    assert publisher.addresses["events"] == address
    assert publisher.subscribed_bytes == MESSAGE_BYTES + len("\1kv@")


def test_subscribers_miss_no_batch_while_strangers_subscribe_without_end(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SUBSCRIPTIONS_BYTES", 10_000)
    monkeypatch.setattr(module, "RECONNECT_S", 2.0)  # also enough on a busy machine
    closed: list[str] = []
    close = module.EventSender._close

    def note_close(sender: module.EventSender, name: str) -> None:
        closed.append(name)
        close(sender, name)

    monkeypatch.setattr(module.EventSender, "_close", note_close)
    publisher = peers.publisher(f"tcp://*:{free_port()}")
    publisher.start()
    address = publisher.addresses["events"]
    ordinary = peers.connected_to(address)
    first = meet(publisher, ordinary)
    stranger = peers.socket(zmq.SUB)
    stranger.connect(address.replace("0.0.0.0", "127.0.0.1"))
    for number in range(200):  # ZMQ repeats them on each new connection
        stranger.subscribe(f"{number:0100d}")
    sequences: list[int] = []

    def is_closed_twice() -> bool:
        publisher.put(removed(0))
        gevent.sleep(0.01)
        while ordinary.poll(0):
            sequences.append(received(ordinary)[1])
        return len(closed) == 2

    until(is_closed_twice)
    last = publisher.next_sequence - 1
    while not sequences or sequences[-1] < last:
        sequences.append(received(ordinary)[1])
    assert sequences == list(range(first + 1, last + 1))
    assert publisher.dropped_events == 0
