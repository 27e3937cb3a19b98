"""The pool: messages wait in queues by pod, and pods run side by side."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from gevent.event import Event
from msgspec import Struct
from msgspec.structs import replace

from app.base.clock.pause import Pace, pause_if_possible
from app.kvindex.backend import BackendUnavailable
from app.kvindex.decoding import Unreadable, decode
from app.kvindex.holders import IndexedEngine
from app.kvindex.index import Index
from app.kvindex.keys import fnv1a_32
from app.kvindex.streams import EngineStream, PublishedMessage, Replays

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""Longest work before other greenlets run, in seconds; checked between messages."""
MOST_A_STEP = 64
"""Most messages between two checks of replays."""
MOST_PODS = 10_240
"""Most pods of an index; one process cannot keep up with more."""
BACK_OFF_S = 0.1, 5.0
"""Seconds between two attempts while the backend does not answer: the first, and the longest."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Limits of the pool's queues, pods and engines.

    `most_messages` limits each queue, `most_bytes` all queues together. Above `most_pods`, a new pod replaces
    the pod with the oldest latest message. Above `most_engines`, a new engine is refused. Payloads above
    `most_payload_bytes` are not kept.
    """

    shards: int = 4
    most_messages: int = 10_000
    most_bytes: int = 1 << 30
    most_payload_bytes: int = 1 << 20
    most_pods: int = MOST_PODS
    most_engines: int = 1 << 16


class Position(Struct, frozen=True, rename={"sequence": "last_sequence", "lag_s": "lag_seconds"}):
    """Progress of an engine's stream: latest sequence number, and age of that batch when applied, in seconds.

    In JSON, the fields have the names of `GET /kv/index`.
    """

    pod: str
    model: str
    rank: int
    sequence: int | None
    lag_s: float


class Shard:
    """A queue of messages, with one greenlet as its worker. A pod without a message is gone."""

    __slots__ = ("queue", "rest_s", "rest_until_s", "size_bytes", "waiting", "wake")

    def __init__(self) -> None:
        self.queue: deque[tuple[Pod, PublishedMessage | None]] = deque()
        self.wake = Event()
        """Set when a message is added."""
        self.size_bytes = 0
        self.waiting: dict[EngineStream, None] = {}
        """Streams that hold messages back."""
        self.rest_until_s, self.rest_s = float("-inf"), BACK_OFF_S[0]

    @property
    def busy(self) -> bool:
        """True while a replay runs, or messages wait for the backend."""
        return bool(self.queue or self.waiting)

    def add(self, pod: Pod, message: PublishedMessage | None) -> None:
        self.queue.append((pod, message))
        self.size_bytes += 0 if message is None else message.size_bytes
        self.wake.set()


class Pod(Struct, eq=False):
    name: str
    shard: Shard
    streams: dict[IndexedEngine, EngineStream] = {}


class Pool:
    """Applies messages to an index, in order for each pod; a hash of the pod's name chooses the shard."""

    def __init__(
        self,
        index: Index,
        replays: Replays,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`wall` gives seconds since 1970; `clock` measures work, in seconds. ValueError without shards."""
        if settings.shards < 1:
            raise ValueError("the pool needs a queue")
        self.shards = [Shard() for _ in range(settings.shards)]
        self.replays = replays
        self._index, self._settings, self._wall = index, settings, wall
        self._pods: OrderedDict[str, Pod] = OrderedDict()
        """Pods by name, in the order of their latest messages."""
        self._engines = 0
        self._pace = Pace(clock, SLICE_S, pause_if_possible)

    def __len__(self) -> int:
        return sum(len(shard.queue) for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Memory of waiting messages, in bytes: in queues, and held back during replays."""
        return sum(shard.size_bytes for shard in self.shards) + self.replays.size_bytes

    @property
    def limit_bytes(self) -> int:
        return self._settings.most_bytes + self.replays.limit_bytes

    @property
    def full(self) -> bool:
        """True if any queue has no room; messages should then stay in the sockets."""
        most, most_bytes = self._settings.most_messages, self._settings.most_bytes // len(self.shards)
        return any([len(shard.queue) >= most or shard.size_bytes >= most_bytes for shard in self.shards])

    def put(self, message: PublishedMessage) -> str | None:
        """Queues a message; returns the pod that is forgotten to make room, if any."""
        self._index.metrics.received.inc()
        if len(message.payload or b"") > self._settings.most_payload_bytes:
            message = replace(message, payload=None)
        name = message.pod
        pod = self._pods.get(name)
        if pod is not None:
            self._pods.move_to_end(name)
            pod.shard.add(pod, message)
            return None
        pod = self._pods[name] = Pod(name, self.shards[fnv1a_32(name.encode()) % len(self.shards)])
        pod.shard.add(pod, message)
        if len(self._pods) <= self._settings.most_pods:
            return None
        longest_silent = next(iter(self._pods))
        self.gone(longest_silent)
        self._index.metrics.crowded_out.inc()
        return longest_silent

    def gone(self, name: str) -> None:
        """Forgets a pod, after its queued messages."""
        pod = self._pods.pop(name, None)
        if pod is not None:
            pod.shard.add(pod, None)

    def step(self, now: float) -> bool:
        """Runs a step of every shard, for callers with one thread."""
        return any([self.work(shard, now) for shard in self.shards])

    def work(self, shard: Shard, now: float) -> bool:
        """Continues replays, and handles some of a shard's messages; pauses in between.

        Returns True if more work is ready. `now` is monotonic, in seconds.
        """
        shard.wake.clear()
        if now < shard.rest_until_s:
            return False
        try:
            replayed = 0
            for stream in list(shard.waiting):
                replayed += stream.step(now)
                if not stream.held:
                    shard.waiting.pop(stream, None)
            for _ in range(min(len(shard.queue), MOST_A_STEP)):
                pod, message = shard.queue[0]
                if message is None:
                    self._forget(pod)
                else:
                    self._apply(pod, message, now)
                    shard.size_bytes -= message.size_bytes
                shard.queue.popleft()
                self._pace()
        except BackendUnavailable as error:
            if shard.rest_s == BACK_OFF_S[0]:  # once for each outage
                log.warning("KV events wait, and scores are 503: %s", error)
            shard.rest_until_s = now + shard.rest_s
            shard.rest_s = min(2 * shard.rest_s, BACK_OFF_S[1])
            return False
        shard.rest_s = BACK_OFF_S[0]
        return bool(shard.queue or replayed)

    def positions(self) -> list[Position]:
        return [
            Position(source.pod, source.model, source.rank, stream.applied, stream.lag_s)
            for pod in self._pods.values()
            for source, stream in pod.streams.items()
        ]

    def close(self) -> None:
        leaving = [pod for shard in self.shards for pod, _ in shard.queue]
        for pod in (*self._pods.values(), *leaving):
            for stream in pod.streams.values():
                stream.close()

    def _forget(self, pod: Pod) -> None:
        self._index.clear(pod.name)
        self._engines -= len(pod.streams)
        for stream in pod.streams.values():
            stream.close()
            pod.shard.waiting.pop(stream, None)
        pod.streams.clear()

    def _apply(self, pod: Pod, message: PublishedMessage, now: float) -> None:
        """Applies a message. After an error, only this message is lost."""
        losses = self._index.losses
        try:
            batch = decode(message.payload)
            source = IndexedEngine(message.pod, message.model, batch.rank)
            stream = pod.streams.get(source)
            if stream is None:
                if self._engines >= self._settings.most_engines:
                    losses.message("too_many_pods")
                    return
                stream = EngineStream(self._index, source, self.replays, self._wall, self._pace)
                pod.streams[source] = stream
                self._engines += 1
            stream.receive(message, batch, now)
            if stream.held:
                pod.shard.waiting[stream] = None
        except Unreadable as error:
            losses.message(error.reason)
            # Its number is skipped for the pod's first engine that awaits this number.
            awaiting = (it for it in pod.streams.values() if not it.held and it.next == message.sequence)
            if (stream := next(awaiting, None)) is not None:
                stream.skip(message.sequence)
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a message of pod %s is left out", message.pod)
            losses.message("failed")
