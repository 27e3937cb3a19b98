"""Batches once more, for those who ask on a real socket, rightly or wrongly."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq

from app.core.engine.kvcache import replay as module
from app.core.engine.kvcache import sockets
from app.core.engine.kvcache.publisher import EventSender, Publisher
from app.core.engine.kvcache.publishing import PublisherSettings
from app.core.engine.kvcache.replay import BATCH_BYTES, ReplayBuffer
from app.core.engine.kvcache.sockets import open_socket
from tests.core.kvcache.sockets import (
    END,
    TOPIC,
    Peers,
    meet,
    patience,
    removed,
    until,
    wait_until_sent,
)
from tests.running_server import free_port

PATIENCE_MS = 20_000


def published(peers: Peers, count: int, **settings: Any) -> Publisher:
    publisher = peers.publisher("tcp://*:0", replay_endpoint="tcp://*:0", **settings)
    publisher.start()
    for number in range(count):
        publisher.put(removed(number))
        wait_until_sent(publisher, number + 1)
    return publisher


def ask(client: Any, start: int) -> None:
    client.send_multipart([b"", start.to_bytes(8, "big")])


def answer(client: Any) -> list[list[bytes]]:
    """The messages up to the marker, without the empty frame that a DEALER sees."""
    messages = []
    with patience():
        while END not in (message := client.recv_multipart()[1:]):
            messages.append(message)
    return [*messages, message]


def sequences(messages: list[list[bytes]], frame: int = 1) -> list[int]:
    return [int.from_bytes(message[frame], "big") for message in messages[:-1]]


def test_late_subscriber_can_request_missed_batches(peers: Peers) -> None:
    publisher = published(peers, 3)
    met = meet(publisher, peers.connected_to(publisher.addresses["events"]))
    client = peers.connected_to(publisher.addresses["replay"], zmq.DEALER)
    ask(client, 0)
    messages = answer(client)
    assert sequences(messages) == list(range(met + 1))
    assert {message[0] for message in messages[:-1]} == {TOPIC.encode()}
    assert messages[-1] == [b"", END, b""]


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [2, 3, 4]), (3, [3, 4]), (5, []), (2**64 - 2, [])]
)
def test_replay_buffer_keeps_only_the_last_batches(
    peers: Peers, start: int, expected: list[int]
) -> None:
    publisher = published(peers, 5, replay_batches=3)
    client = peers.connected_to(publisher.addresses["replay"], zmq.DEALER)
    ask(client, start)
    assert sequences(answer(client)) == expected


def test_replay_buffer_is_limited_in_bytes() -> None:
    replay = ReplayBuffer(b"kv@", 100, limit_bytes=100 + 3 * BATCH_BYTES)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        server, address = open_socket(context, zmq.ROUTER, "inproc://replay", bind=True, hwm=0)
        client.connect(address)
        for sequence, size in enumerate((30, 30, 60, 10, 30)):
            replay.record(sequence, bytes(size))
        ask(client, 0)
        replay.serve(server)
        assert sequences(answer(client)) == [2, 3, 4]
        replay.record(5, bytes(101 + 2 * BATCH_BYTES))
        ask(client, 0)
        replay.serve(server)
        assert sequences(answer(client)) == []
        server.close()


def test_malformed_replay_requests_are_ignored(peers: Peers) -> None:
    publisher = published(peers, 1)
    client = peers.connected_to(publisher.addresses["replay"], zmq.DEALER)
    garbage = [
        [b""], [b"", b""], [b"", b"short"], [b"not empty", bytes(8)], [bytes(8)], [b"", bytes(8), b"more"],
        [b"x" * 100_000] * 5,
    ]  # fmt: skip
    for frames in garbage:
        client.send_multipart(frames)
    client.send_multipart([b"", bytes(8) + b"ignored"])
    assert sequences(answer(client)) == [0]


def test_slow_replay_clients_share_the_memory_of_sent_batches() -> None:
    """Each had a copy of its own: a few of them could fill the memory of a server."""
    replay = ReplayBuffer(b"kv@", 1000)
    for sequence in range(200):
        replay.record(sequence, bytes(50_000))
    with zmq.Context() as context, ExitStack() as clients:
        server, address = open_socket(context, zmq.ROUTER, "tcp://127.0.0.1:*", bind=True, hwm=0)
        memory_before = resident_bytes()
        for _ in range(20):
            client = clients.enter_context(context.socket(zmq.DEALER))
            client.rcvhwm = 1
            client.rcvbuf = 4096
            client.linger = 0
            client.connect(address)
            ask(client, 0)
        until(lambda: replay.serve(server) or replay.answered == 20)
        assert resident_bytes() - memory_before < 100 << 20, "of 200 MB"
        server.close(linger=0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_other_greenlets_run_during_a_long_event_replay() -> None:
    replay = ReplayBuffer(b"kv@", 1000)
    for sequence in range(100):
        replay.record(sequence, b"batch")
    ran: list[str] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        server, address = open_socket(context, zmq.ROUTER, "inproc://replay", bind=True, hwm=0)
        client.connect(address)
        ask(client, 0)
        other = gevent.spawn(ran.append, "other")
        replay.serve(server)
        assert ran == ["other"]
        other.join()
        server.close()


def test_few_requests_are_answered_before_events_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    replay = ReplayBuffer(b"kv@", 100)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        server, address = open_socket(context, zmq.ROUTER, "inproc://replay", bind=True, hwm=0)
        client.connect(address)
        for _ in range(3):
            ask(client, 0)
        replay.serve(server)
        assert replay.answered == 2
        replay.serve(server)
        assert replay.answered == 3
        server.close()


def test_peer_with_a_long_subscription_is_disconnected(peers: Peers) -> None:
    """ZMQ would take 64 MB for a subscription of 1 MB when the next batch is published."""
    publisher = published(peers, 1)
    context = zmq.Context.instance()
    with context.socket(zmq.SUB) as client:
        events = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        client.connect(publisher.addresses["events"])
        client.subscribe(b"a" * sockets.MAX_SUBSCRIPTION_BYTES)
        assert events.poll(PATIENCE_MS)
        client.disable_monitor()
        events.close()


def test_requests_of_many_frames_are_read_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(sockets, "FRAMES_PER_PAUSE", 5)
    monkeypatch.setattr(sockets, "pause_if_possible", lambda: pauses.append(1))
    replay = ReplayBuffer(b"kv@", 100)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        server, address = open_socket(context, zmq.ROUTER, "inproc://replay", bind=True, hwm=0)
        client.connect(address)
        client.send_multipart([b""] * 15)
        client.send_multipart([b"", bytes(8), b""])
        ask(client, 0)
        replay.serve(server)
        assert len(pauses) == 3
        assert replay.answered == 1
        server.close()


def test_batches_that_slow_clients_hold_are_bounded_in_all(peers: Peers) -> None:
    sender = EventSender(
        PublisherSettings(
            endpoint=None,
            topic=TOPIC,
            flush_s=0.0,
            replay_endpoint=f"tcp://127.0.0.1:{free_port()}",
            replay_batches=10,
            replay_bytes=20_000,
        )
    )
    replay = sender.replay
    sender.open()
    client = peers.connected_to(sender.addresses["replay"], zmq.DEALER)  # which reads nothing
    openings: list[object] = []
    lent_bytes: list[int] = []

    def is_opened_thrice() -> bool:
        sender.put(removed(0))
        sender.turn()
        ask(client, 0)
        lent_bytes.append(replay.lent_bytes)
        socket = sender._sockets.get("replay")
        if socket not in openings[-1:]:
            openings.append(socket)
        return len(openings) - openings.count(None) == 3

    until(is_opened_thrice)
    assert replay.answered > 3
    assert max(lent_bytes) <= replay.limit_bytes
    sender.close()
