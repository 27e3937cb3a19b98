"""Real subscribers and clients of replays, that let the publisher's greenlets run while they wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import msgspec
import zmq.green as zmq

from app.core.engine.kvcache.events import BlockRemoved, EventBatch, KVEvent
from app.core.engine.kvcache.publisher import Publisher
from app.core.engine.kvcache.publishing import PublisherSettings

PATIENCE_S = 20.0
TOPIC = "kv@10.0.0.1:8000@tiny"
END = b"\xff" * 8


class Peers:
    def __init__(self) -> None:
        self.context = zmq.Context()
        self.sockets: list[Any] = []
        self.publishers: list[Publisher] = []

    def socket(self, kind: int) -> Any:
        socket = self.context.socket(kind)
        socket.linger = 0
        self.sockets.append(socket)
        return socket

    def subscriber(self, topic: str = "kv@") -> Any:
        socket = self.socket(zmq.SUB)
        socket.subscribe(topic)
        return socket

    def listening(self) -> tuple[Any, int]:
        """A subscriber that binds, as an index does, and its port."""
        socket = self.subscriber()
        return socket, socket.bind_to_random_port("tcp://127.0.0.1")

    def listening_at(self, port: int) -> Any:
        """A subscriber that binds a port that was used a moment ago."""
        socket = self.subscriber()

        def is_bound() -> bool:
            try:
                socket.bind(f"tcp://127.0.0.1:{port}")
            except zmq.ZMQError:
                return False
            return True

        until(is_bound)
        return socket

    def publisher(self, endpoint: str | None, **settings: Any) -> Publisher:
        wanted = {"topic": TOPIC, "flush_s": 0.0} | settings
        publisher = Publisher(PublisherSettings(endpoint=endpoint, **wanted), lambda: 1.5)
        self.publishers.append(publisher)
        return publisher

    def connected_to(self, address: str, kind: int = zmq.SUB) -> Any:
        socket = self.subscriber() if kind == zmq.SUB else self.socket(kind)
        socket.connect(address.replace("0.0.0.0", "127.0.0.1"))
        return socket

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
        for socket in self.sockets:
            socket.close()
        self.context.term()


@contextmanager
def patience() -> Iterator[None]:
    with gevent.Timeout(PATIENCE_S):
        yield


def until(happened: Callable[[], object]) -> None:
    with patience():
        while not happened():
            gevent.sleep(0.001)


def wait_until_sent(publisher: Publisher, count: int) -> None:
    """Waits until the publisher has sent `count` messages since its start."""
    until(lambda: publisher.next_sequence == count)


def removed(number: int) -> list[KVEvent]:
    return [BlockRemoved([number])]


def received(socket: Any) -> tuple[str, int, EventBatch]:
    with patience():
        topic, sequence, payload = socket.recv_multipart()
    return (
        topic.decode(),
        int.from_bytes(sequence, "big"),
        msgspec.msgpack.decode(payload, type=EventBatch),
    )


def meet(publisher: Publisher, subscriber: Any) -> int:
    """Publish until the subscriber has heard of it; the sequence number of the last batch."""
    with patience():
        while not subscriber.poll(20):
            publisher.put(removed(0))
    until(lambda: not publisher.queue)  # or both would go in one batch
    publisher.put(removed(99))
    while True:
        _, sequence, batch = received(subscriber)
        if batch.events == removed(99):
            return sequence
