"""The event pool: messages in queues by pod; pods run side by side, each pod's messages in order."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from gevent.event import Event
from msgspec import Struct

from app.base.clock.pause import Pace, pause_if_possible
from app.kvindex.backend import BackendUnavailable
from app.kvindex.decoding import Unreadable, decode
from app.kvindex.holders import Engine
from app.kvindex.index import Index
from app.kvindex.keys import fnv1a_32
from app.kvindex.streams import EngineStream, Message, Replays, SequenceTracker

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
    `most_payload_bytes` are not decoded, in messages and in replays.
    """

    shards: int = 4
    most_messages: int = 10_000
    most_bytes: int = 1 << 30
    most_payload_bytes: int = 1 << 20
    most_pods: int = MOST_PODS
    most_engines: int = 1 << 16


class Gone(Struct, frozen=True):
    """Task: forget a pod that is gone."""

    pod: str


class UnreadMessage(Struct, frozen=True):
    """Task: count a message that is too large to keep."""

    pod: str
    sequence: int


Task: TypeAlias = Message | Gone | UnreadMessage


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
    """A queue of messages, with one greenlet as its worker."""

    def __init__(
        self,
        index: Index,
        replays: Replays,
        settings: PoolSettings,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.wake = Event()
        """Set when a task is added."""
        self.size_bytes = 0
        self.limit_bytes = settings.most_bytes // settings.shards
        self._index, self._replays, self._settings = index, replays, settings
        self._wall = wall
        self._queue: deque[Task] = deque()
        self._streams: dict[Engine, EngineStream] = {}
        self._by_pod: dict[str, dict[Engine, EngineStream]] = {}
        self._busy: dict[Engine, EngineStream] = {}
        self._pace = Pace(clock, SLICE_S, pause_if_possible)
        self._epoch = index.backend.epoch
        self._rest_until = float("-inf")
        self._rest_s = BACK_OFF_S[0]

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= self._settings.most_messages or self.size_bytes >= self.limit_bytes

    @property
    def waiting(self) -> bool:
        """True while a replay runs, or tasks wait for the backend."""
        return bool(self._queue or self._busy)

    def put(self, task: Task) -> None:
        """Adds a task; the caller has checked for room."""
        if isinstance(task, Message) and len(task.payload) > self._settings.most_payload_bytes:
            task = UnreadMessage(task.pod, task.sequence)
        self._queue.append(task)
        self.size_bytes += task.size_bytes if isinstance(task, Message) else 0
        self.wake.set()

    def step(self, now: float) -> bool:
        """Continues replays, and handles some of the queued tasks; pauses in between.

        Returns True if more work is ready. `now` is monotonic, in seconds.
        """
        self.wake.clear()
        if now < self._rest_until:
            return False
        try:
            replayed = self._replay(now) if self._busy else 0
            for _ in range(min(len(self._queue), MOST_A_STEP)):
                self._notice_loss()
                self._work(self._queue[0], now)
                self._queue.popleft()
                self._pace()
        except BackendUnavailable as error:
            if self._rest_s == BACK_OFF_S[0]:  # once for each outage
                log.warning("KV events wait, and scores are 503: %s", error)
            self._rest_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, BACK_OFF_S[1])
            return False
        self._rest_s = BACK_OFF_S[0]
        return bool(self._queue or replayed)

    def positions(self) -> list[Position]:
        return [
            Position(source.pod, source.model, source.rank, stream.tracker.applied, stream.lag_s)
            for source, stream in self._streams.items()
        ]

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _replay(self, now: float) -> int:
        """Continues replays; returns the number of batches applied."""
        self._notice_loss()
        replayed = 0
        for source, stream in list(self._busy.items()):
            replayed += stream.step(now)
            if not stream.busy:
                self._busy.pop(source, None)
        return replayed

    def _work(self, task: Task, now: float) -> None:
        match task:
            case Message():
                self._message(task, now)
                self.size_bytes -= task.size_bytes
            case Gone():
                self._gone(task.pod)
            case UnreadMessage():
                self._index.losses.message("too_large")
                self._skip(task)

    def _notice_loss(self) -> None:
        """Restarts all streams after the backend has lost all data."""
        epoch = self._index.backend.epoch
        if self._epoch != epoch and self._epoch:
            for stream in self._streams.values():
                stream.forget()
        self._epoch = epoch

    def _message(self, message: Message, now: float) -> None:
        """Applies a message. After an error, only this message is lost."""
        try:
            batch = decode(message.payload)
            source = Engine(message.pod, message.model, batch.rank)
            stream = self._stream(source)
            if stream is not None:
                stream.receive(message, batch, now)
                if stream.busy:
                    self._busy[source] = stream
        except Unreadable as error:
            self._index.losses.message(error.reason)
            self._skip(message)
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a message of pod %s is left out", message.pod)
            self._index.losses.message("failed")

    def _stream(self, source: Engine) -> EngineStream | None:
        """Returns the stream of an engine; None, and a loss, with too many engines."""
        stream = self._streams.get(source)
        if stream is None and len(self._streams) >= self._settings.most_engines // self._settings.shards:
            self._index.losses.message("too_many_pods")
        elif stream is None:
            known = self._index.backend.position(source)
            tracker = SequenceTracker() if known is None else SequenceTracker(known.sequence, known.ts)
            most, pace = self._settings.most_payload_bytes, self._pace
            stream = EngineStream(self._index, source, tracker, self._replays, self._wall, pace, most)
            self._streams[source] = stream
            self._by_pod.setdefault(source.pod, {})[source] = stream
        return stream

    def _skip(self, message: Message | UnreadMessage) -> None:
        """Skips the number of an undecoded message, for the pod's first engine that awaits this number."""
        for stream in self._by_pod.get(message.pod, {}).values():
            if not stream.busy and stream.tracker.next == message.sequence:
                stream.tracker.skip(message.sequence)
                return

    def _gone(self, pod: str) -> None:
        self._index.clear(pod)
        for source, stream in self._by_pod.pop(pod, {}).items():
            stream.close()
            del self._streams[source]
            self._busy.pop(source, None)


class Pool:
    """All shards; a hash of the pod's name chooses the shard."""

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
        self.replays = replays
        self.shards = [Shard(index, replays, settings, wall, clock) for _ in range(settings.shards)]
        self._metrics, self._settings = index.metrics, settings
        self._pods: OrderedDict[str, Shard] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self.shards))

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
        return any([shard.full for shard in self.shards])

    def put(self, message: Message) -> str | None:
        """Queues a message; returns the pod that is forgotten to make room, if any."""
        self._metrics.received.inc()
        pods, pod = self._pods, message.pod
        shard = pods.get(pod)
        if shard is not None:
            pods.move_to_end(pod)
            shard.put(message)
            return None
        shard = pods[pod] = self._shard(pod)
        shard.put(message)
        if len(pods) <= self._settings.most_pods:
            return None
        longest_silent, its_shard = pods.popitem(last=False)
        its_shard.put(Gone(longest_silent))
        self._metrics.crowded_out.inc()
        return longest_silent

    def gone(self, pod: str) -> None:
        """Forgets a pod, after its queued messages."""
        self._pods.pop(pod, None)
        self._shard(pod).put(Gone(pod))

    def step(self, now: float) -> bool:
        """Runs a step of every shard, for callers with one thread."""
        return any([shard.step(now) for shard in self.shards])

    def positions(self) -> list[Position]:
        return [position for shard in self.shards for position in shard.positions()]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    def _shard(self, pod: str) -> Shard:
        return self.shards[fnv1a_32(pod.encode()) % len(self.shards)]
