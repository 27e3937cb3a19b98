"""The pool: queues of published messages, spread over shards by pod, applied in order."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from gevent.event import Event
from msgspec import Struct, field

from app.core.base.clock.pause import pause_if_possible
from app.extensions.kv_index.backend import BackendUnavailableError
from app.extensions.kv_index.decoding import UnreadableBatchError, decode
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.resources import PoolSettings, StreamResources, wait_for_backend
from app.extensions.kv_index.streams import EngineStream

FNV_BYTES = 1 << 15
"""Bytes hashed by FNV without a pause, about 3 ms."""


def fnv1a_32(data: bytes) -> int:
    """Returns the 32-bit FNV-1a of `data`, as llm-d uses it for queues; with pauses.

    There is no maintained package for FNV.
    """
    value = 0x811C9DC5
    for position, byte in enumerate(data, 1):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        if position % FNV_BYTES == 0:
            pause_if_possible()
    return value


class Position(Struct, frozen=True, rename={"sequence": "last_sequence", "lag_s": "lag_seconds"}):
    """Progress of an engine's stream.

    `lag_s` is the age of its latest batch when applied, in seconds.
    """

    pod: str
    model: str
    rank: int
    sequence: int | None
    lag_s: float


class Shard(Struct, eq=False):
    """A queue of messages, with one greenlet as its worker. A pod without a message is removed."""

    queue: deque[tuple[Pod, PublishedMessage | None]] = field(default_factory=deque)
    wake: Event = field(default_factory=Event)
    """Set when a message is added."""
    size_bytes: int = 0

    def append(self, pod: Pod, message: PublishedMessage | None) -> None:
        """Queues a message of a pod, or with None the pod's removal."""
        self.queue.append((pod, message))
        self.size_bytes += 0 if message is None else message.size_bytes
        self.wake.set()


class Pod(Struct, eq=False):
    """A pod with the streams of its engines."""

    name: str
    shard: Shard
    streams: dict[IndexedEngine, EngineStream] = {}

    def close_streams(self) -> None:
        """Ends all replays."""
        for stream in self.streams.values():
            stream.close()


class Pool:
    """Applies messages to an index, in order for each pod.

    A hash of the pod's name chooses the shard.
    """

    def __init__(
        self,
        index: Index,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`now` is monotonic, `wall` since 1970, and `clock` measures work, all in seconds."""
        self.index = index
        self.settings = settings
        self.resources = StreamResources(index, settings, now=now, wall=wall, clock=clock)
        self.pace = self.resources.pace
        self.shards = [Shard() for _ in range(settings.shards)]
        self._pods: OrderedDict[str, Pod] = OrderedDict()
        """Pods by name, in the order of their latest messages."""
        self._engine_count = 0

    def __len__(self) -> int:
        return sum(len(shard.queue) for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Memory of queued messages, and of messages that wait for replays, in bytes."""
        return sum(shard.size_bytes for shard in self.shards) + self.resources.waiting_bytes

    @property
    def limit_bytes(self) -> int:
        """Memory limit of all messages, in bytes."""
        return self.settings.max_bytes + self.settings.max_total_waiting_bytes

    @property
    def full(self) -> bool:
        """True if any queue has no room; messages should then stay in the sockets."""
        max_messages = self.settings.max_messages
        max_bytes = self.settings.max_bytes // len(self.shards)
        return any(
            [
                len(shard.queue) >= max_messages or shard.size_bytes >= max_bytes
                for shard in self.shards
            ]
        )

    def put(self, message: PublishedMessage) -> str | None:
        """Queues a message; returns the name of a pod removed to make room, if any."""
        self.index.metrics.received.inc()
        name = message.pod
        pod = self._pods.get(name)
        if pod is not None:
            self._pods.move_to_end(name)
            pod.shard.append(pod, message)
            return None
        shard = self.shards[fnv1a_32(name.encode()) % len(self.shards)]
        pod = self._pods[name] = Pod(name, shard)
        shard.append(pod, message)
        if len(self._pods) <= self.settings.max_pods:
            return None
        longest_silent = next(iter(self._pods))
        self.remove_pod(longest_silent)
        self.index.metrics.evicted_pods.inc()
        return longest_silent

    def remove_pod(self, name: str) -> None:
        """Removes a pod, after its queued messages."""
        pod = self._pods.pop(name, None)
        if pod is not None:
            pod.shard.append(pod, None)

    def run(self, shard: Shard) -> None:
        """Processes the messages of a shard; never returns."""
        while True:
            shard.wake.wait()
            self.process(shard)

    def process(self, shard: Shard) -> None:
        """Processes all messages of a shard; waits while the backend does not answer."""
        shard.wake.clear()
        wait_s: float | None = None
        while shard.queue:
            pod, message = shard.queue[0]
            try:
                if message is None:
                    self._clear(pod)
                else:
                    self._apply(pod, message)
            except BackendUnavailableError as error:
                wait_s = wait_for_backend(error, wait_s)
                continue
            except Exception:  # only this message is lost
                self.resources.warnings.warning(
                    "skipped a message from pod %s", pod.name, exc_info=True
                )
                self.index.metrics.skip_message("failed")
            shard.queue.popleft()
            shard.size_bytes -= 0 if message is None else message.size_bytes
            wait_s = None
            if shard.queue:
                self.pace()

    def positions(self) -> list[Position]:
        """Returns the progress of all streams."""
        return [
            Position(
                pod=source.pod,
                model=source.model,
                rank=source.rank,
                sequence=stream.last_sequence,
                lag_s=stream.lag_s,
            )
            for pod in self._pods.values()
            for source, stream in pod.streams.items()
        ]

    def close(self) -> None:
        """Ends all replays."""
        queued_pods = [pod for shard in self.shards for pod, _ in shard.queue]
        for pod in (*self._pods.values(), *queued_pods):
            pod.close_streams()

    def _clear(self, pod: Pod) -> None:
        pod.close_streams()
        self._engine_count -= len(pod.streams)
        pod.streams.clear()
        self.index.clear(pod.name)

    def _apply(self, pod: Pod, message: PublishedMessage) -> None:
        try:
            batch = decode(message.payload)
        except UnreadableBatchError as error:
            self.index.metrics.skip_message(error.reason)
            self._skip_number(pod, message.sequence)
            return
        source = IndexedEngine(message.pod, message.model, batch.rank)
        stream = pod.streams.get(source)
        if stream is None:
            if self._engine_count >= self.settings.max_engines:
                self.index.metrics.skip_message("too_many_pods")
                return
            stream = pod.streams[source] = EngineStream(self.resources, source)
            self._engine_count += 1
        stream.receive(message, batch)

    def _skip_number(self, pod: Pod, sequence: int) -> None:
        """Skips the number of an unreadable message for the first engine that expects it."""
        for stream in pod.streams.values():
            if not stream.waiting and stream.next_sequence == sequence:
                stream.skip(sequence)
                return
