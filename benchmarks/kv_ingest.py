"""Events of KV blocks on their way from a TCP socket, behind which is another process, into an
index.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import zmq

from app.core.engine.kvcache.events import BlockStored, EventBatch
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.pods import PodEndpoint, TargetSource
from app.extensions.kv_index.pool import Pool
from app.extensions.kv_index.resources import PoolSettings
from app.extensions.kv_index.subscriber import Subscriber, SubscriberSettings
from benchmarks.kv_naive import MODEL, Fleet, Naive

PUBLISHED = b"kv@pod%d@" + MODEL.encode()


Receive = Callable[[zmq.Context[zmq.Socket[bytes]], str, int], float]
"""Seconds of CPU time for so many messages from an endpoint."""


def blocks_per_s(receive: Receive, blocks: int, events: int, event_blocks: int, pods: int) -> float:
    """How many of about `blocks` go in each second, `events` of `event_blocks` a message."""
    messages = max(1, blocks // (events * event_blocks))
    arguments = map(str, (messages, events, event_blocks, pods))
    command = [sys.executable, "-m", "benchmarks.kv_ingest", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        endpoint = publisher.stdout.readline().decode().strip()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            seconds = receive(context, endpoint, messages)
        finally:
            publisher.kill()
            context.destroy(linger=0)
    return messages * events * event_blocks / seconds


def publish(messages: int, events: int, blocks: int, pods: int) -> None:
    """Publish that many messages to the first subscriber, all at once; its endpoint is printed
    before.
    """
    fleet = Fleet()
    encode = msgspec.msgpack.encode
    payloads = [
        encode(EventBatch(1.0, [fleet.event(fleet.tokens(blocks)) for _ in range(events)], 0))
        for _ in range(messages)
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = 0
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    socket.recv()
    for message_number, payload in enumerate(payloads):
        sequence = (message_number // pods).to_bytes(8, "big")
        socket.send_multipart([PUBLISHED % (message_number % pods), sequence, payload])
    context.destroy()


def into_index(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, messages: int) -> float:
    """As `Receive`, with our index."""
    index = Index(MemoryBackend())
    pool = Pool(index, PoolSettings(max_messages=1 << 30, max_bytes=1 << 40))
    settings = SubscriberSettings(bind=None, hwm=0)
    targets = TargetSource([PodEndpoint(endpoint)])
    subscriber = Subscriber(pool, settings, [targets])
    subscriber.open(context)
    took = _until_all(lambda: subscriber.step(0.0) | _work(pool), lambda: _applied(pool), messages)
    subscriber.close()
    lost = index.metrics.skipped_messages + index.metrics.skipped_events
    if lost:
        raise RuntimeError(f"not all was used: {lost}")
    return took


def _work(pool: Pool) -> bool:
    busy = len(pool) > 0
    for shard in pool.shards:
        pool.process(shard)
    return busy


def _applied(pool: Pool) -> int:
    return sum(
        position.sequence + 1 for position in pool.positions() if position.sequence is not None
    )


def into_naive(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, messages: int) -> float:
    """As `Receive`, with what it is compared with."""
    index = Naive()
    decode = msgspec.msgpack.Decoder(EventBatch).decode
    applied = 0
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.subscribe(b"")
    socket.connect(endpoint)

    def step() -> bool:
        nonlocal applied
        try:
            topic, _, payload = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        pod = topic.decode().split("@")[1]
        for event in decode(payload).events:
            assert isinstance(event, BlockStored)
            index.store(pod, event)
        applied += 1
        return True

    took = _until_all(step, lambda: applied, messages)
    socket.close()
    return took


def _until_all(step: Callable[[], bool], applied: Callable[[], int], messages: int) -> float:
    """Seconds of CPU time for steps until so many messages are applied, without those of waiting."""
    began = time.process_time()
    idle = 0.0
    while True:
        idle_from = time.process_time()
        if step():
            continue
        if applied() >= messages:
            return time.process_time() - began - idle
        time.sleep(0.0002)
        idle += time.process_time() - idle_from


if __name__ == "__main__":
    publish(*map(int, sys.argv[1:]))
