"""Streams of engines' batches into the index: in order, each batch once, gaps filled by a replay.

Messages wait in queues by pod. Pods run side by side.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import zmq
from gevent.event import Event
from msgspec import Struct

from app.base.clock.pause import Pace, pause_if_possible
from app.engine.kvcache.endpoints import of_rank
from app.kvindex.backend import BackendUnavailable
from app.kvindex.decoding import Data, PodBatch, TooLarge, Unreadable, decode
from app.kvindex.holders import IndexedEngine
from app.kvindex.index import Index
from app.kvindex.keys import fnv1a_32
from app.kvindex.replays import Replayed, ReplayRequest, Replays

log = logging.getLogger(__name__)

REMEMBERED = 64
"""Latest batches of an engine that are recognized when repeated or late."""
MOST_HELD, MOST_HELD_BYTES = 10_000, 32 << 20
"""Most messages, and bytes, that an engine holds back during a replay; above, the replay fails."""
MESSAGE_BYTES = 400
"""Memory of a message besides its payload, in bytes, with a topic of usual length."""
_MISSING = float("nan")
SLICE_S = 0.002
"""Longest work before other greenlets run, in seconds; checked between messages."""
MOST_A_STEP = 64
"""Most messages between two checks of replays."""
MOST_PODS = 10_240
"""Most pods of an index; one process cannot keep up with more."""
BACK_OFF_S = 0.1, 5.0
"""Seconds between two attempts while the backend does not answer: the first, and the longest."""


class PublishedMessage(Struct, frozen=True, gc=False):
    """A published batch, and the address that replays earlier batches.

    With `per_rank`, `replay` is the address of rank 0. `topic` is None for a message without a socket.
    """

    pod: str
    model: str
    sequence: int
    payload: Data
    replay: str | None = None
    per_rank: bool = False
    topic: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + MESSAGE_BYTES


Verdict = Enum("Verdict", ["FIRST", "NEXT", "GAP", "LATE", "DUPLICATE", "RESTART"])
"""Classification of a batch by its sequence number.

FIRST of a stream; NEXT after the last; GAP: behind missing batches; LATE: was missing; DUPLICATE: was applied
before; RESTART: the first of a restarted engine.
"""


class SequenceTracker:
    """Classifies the batches of one engine, by number and time of publication.

    A number at or below the last one is a duplicate if its time is the same, or if a replay has contained the
    batch. A skipped number is a late batch. Otherwise the engine has restarted its numbers.
    """

    __slots__ = ("_recent", "applied", "last_ts", "received")

    def __init__(self, applied: int | None = None, last_ts: float = 0.0) -> None:
        """`applied` and `last_ts` are of the latest batch that any indexer has applied."""
        self.applied = applied
        """The highest number applied."""
        self.received = -1
        """The highest number applied outside a replay."""
        self.last_ts = last_ts
        self._recent = array("d")

    @property
    def next(self) -> int:
        """The next expected number. An engine's first number is 0."""
        return 0 if self.applied is None else self.applied + 1

    def judge(self, sequence: int, ts: float) -> Verdict:
        """Classifies a batch that came outside a replay."""
        if self.applied is None:
            return Verdict.FIRST
        ahead = sequence - self.applied
        if ahead > 0:
            return Verdict.NEXT if ahead == 1 else Verdict.GAP
        if -ahead < len(self._recent):
            known = self._recent[ahead - 1]
            if known == ts:
                return Verdict.DUPLICATE
            if known != known:
                return Verdict.LATE
        if self.received < sequence and ts <= self.last_ts:
            return Verdict.DUPLICATE
        return Verdict.RESTART

    def missing(self, sequence: int) -> int:
        return max(0, sequence - self.next)

    def apply(self, sequence: int, ts: float, replayed: bool = False) -> None:
        """Notes a batch as applied; skipped numbers below are missing."""
        if self.applied is None or sequence > self.applied:
            skipped = 0 if self.applied is None else sequence - self.applied - 1
            self._recent.extend([_MISSING] * min(skipped, REMEMBERED))
            self._recent.append(ts)
            del self._recent[:-REMEMBERED]
            self.applied = sequence
        elif self.applied - sequence < len(self._recent):
            self._recent[sequence - self.applied - 1] = ts
        if not replayed:
            self.received = max(self.received, sequence)
        self.last_ts = max(self.last_ts, ts)

    def restart(self) -> None:
        """Forgets all batches, after a restart of the engine."""
        self.applied, self.received, self.last_ts = None, -1, 0.0
        del self._recent[:]

    def skip(self, sequence: int) -> None:
        """Skips the next number if its message cannot be used."""
        if self.applied is not None and sequence == self.applied + 1:
            self.apply(sequence, self.last_ts)


class EngineStream:
    """The stream of one engine; holds messages back while a replay runs or is due.

    Every method may raise BackendUnavailable. The caller may then repeat the call: no batch is applied twice
    or lost.
    """

    def __init__(
        self,
        index: Index,
        source: IndexedEngine,
        tracker: SequenceTracker,
        replays: Replays,
        wall: Callable[[], float],
        pace: Callable[[], None],
        most_payload_bytes: int,
    ) -> None:
        """`wall` gives seconds since 1970; `pace` runs after each batch, and may pause.

        Batches of a replay above `most_payload_bytes` are skipped.
        """
        self.tracker = tracker
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch; the two clocks may differ."""
        self._source, self._index = source, index
        self._replays, self._wall, self._pace = replays, wall, pace
        self._most_payload_bytes = most_payload_bytes
        self.held: list[tuple[PublishedMessage, float]] = []
        """Messages that wait for a replay, with their time of publication, and work for `step`.

        A list, as an empty deque takes 700 bytes for each engine.
        """
        self._held_bytes = 0
        self._wanted: int | None = None
        """The first number of a replay that is due."""
        self._asked: int | None = None
        """The first number of the latest replay."""
        self._replay: ReplayRequest | None = None
        self._replayed: list[Replayed] = []
        self._cool_until = float("-inf")
        self._restarting = False

    def receive(self, message: PublishedMessage, batch: PodBatch, now: float) -> None:
        """Applies a message, or holds the message back until a replay has brought earlier batches."""
        if not self.held:
            verdict = self.tracker.judge(message.sequence, batch.ts)
            if verdict is Verdict.NEXT:
                self._apply(message, batch)
                return
            if verdict is Verdict.DUPLICATE:
                self._index.losses.message("duplicate")
                return
            if verdict is Verdict.RESTART:
                self._begin_anew()
            if verdict is Verdict.LATE or not self._can_ask(message, now):
                self._apply(message, batch)
                return
            self._wanted, self._asked = self.tracker.next, None
        self.held.append((message, batch.ts))
        self._count(message.size_bytes)

    def step(self, now: float) -> int:
        """Continues a replay, then applies messages held back; returns the number of batches applied."""
        applied = 0
        # So much is held back that the replay counts as failed.
        full = len(self.held) > MOST_HELD or self._held_bytes > MOST_HELD_BYTES
        full = full or self._replays.size_bytes > self._replays.limit_bytes
        if self._wanted is not None and self.held:
            endpoint, wanted = self._address(self.held[0][0]), self._wanted
            try:
                self._replay = self._replays.begin(endpoint or "", wanted, now)
            except zmq.ZMQError:
                self._end_replay(False, now)
            if self._replay is not None or full:  # else too many run, and this one waits
                self._asked, self._wanted = wanted, None
        if self._replay is not None:
            self._replayed.extend(self._replay.step(now))
        while self._replayed:
            applied += self._apply_replayed(self._replayed[0], now)
            if self._replayed:
                del self._replayed[0]
        if self._replay is not None and (full or self._replay.state != "running"):
            self._end_replay(self._replay.state == "complete", now)
        while self.held and self._replay is None and self._wanted is None:
            applied += self._release(now)
        return applied

    def forget(self) -> None:
        """Forgets all batches after a loss of the index; requests a full replay if messages are held back."""
        self.tracker.restart()
        if self.held:
            self._close_replay()
            self._wanted = None if self._address(self.held[0][0]) is None else 0

    def close(self) -> None:
        self._close_replay()
        self.held.clear()
        self._count(-self._held_bytes)

    def _count(self, size: int) -> None:
        self._held_bytes += size
        self._replays.size_bytes += size

    def _begin_anew(self) -> None:
        self._index.metrics.restarts.inc()
        self.tracker.restart()
        self._restarting = True

    def _can_ask(self, message: PublishedMessage, now: float) -> bool:
        return self._address(message) is not None and self._replays.possible and now >= self._cool_until

    def _address(self, message: PublishedMessage) -> str | None:
        """Returns the address that replays this engine's batches; None if unknown."""
        address, rank = message.replay, self._source.rank
        if address is None or not message.per_rank or not rank:
            return address
        try:
            return of_rank(address, rank) if rank > 0 else None
        except ValueError:
            return None

    def _end_replay(self, complete: bool, now: float) -> None:
        self._close_replay()
        self._index.metrics.replayed("complete" if complete else "failed")
        if not complete:
            self._cool_until = now + self._replays.limits.cool_down_s

    def _close_replay(self) -> None:
        self._replayed.clear()
        self._wanted = None
        if self._replay is not None:
            self._replays.end(self._replay)
            self._replay = None

    def _apply_replayed(self, replayed: Replayed, now: float) -> int:
        """Applies a batch of a replay, unless applied before; returns the number of batches applied."""
        message, _ = self.held[0]
        other = bool(replayed.topic and message.topic and replayed.topic != message.topic)
        if not other and replayed.sequence < self.tracker.next:
            return 0
        try:
            if len(replayed.payload) > self._most_payload_bytes:
                raise TooLarge("a batch has too many bytes")
            batch = None if other else decode(replayed.payload)
        except Unreadable as error:
            self._index.losses.message(error.reason)
            self.tracker.skip(replayed.sequence)
            return 0
        if batch is None or batch.rank != self._source.rank:
            self._index.losses.message("foreign_replay")
            log.warning(
                "KV events: %s is not the replay address of %s, or not of its rank %d",
                *(self._address(message), self._source.pod, self._source.rank),
            )
            self._end_replay(False, now)
            return 0
        self._apply(
            PublishedMessage(message.pod, message.model, replayed.sequence, b""), batch, replayed=True
        )
        self._pace()
        return 1

    def _release(self, now: float) -> int:
        """Applies the first message held back, unless a replay contained it, or another replay is due."""
        message, ts = self.held[0]
        verdict = self.tracker.judge(message.sequence, ts)
        if verdict is Verdict.GAP and self._asked != self.tracker.next and self._can_ask(message, now):
            self._wanted = self.tracker.next
            return 0
        if verdict is Verdict.RESTART:
            self._begin_anew()
        if verdict is Verdict.DUPLICATE:
            self.tracker.received = max(self.tracker.received, message.sequence)
        else:
            self._apply(message, decode(message.payload))
        del self.held[0]
        self._count(-message.size_bytes)
        self._pace()
        return int(verdict is not Verdict.DUPLICATE)

    def _apply(self, message: PublishedMessage, batch: PodBatch, replayed: bool = False) -> None:
        self._index.ingest(batch, message.pod, message.model, message.sequence, restart=self._restarting)
        if missing := self.tracker.missing(message.sequence):
            self._index.losses.message("gap", missing)
        self._restarting = False
        self.tracker.apply(message.sequence, batch.ts, replayed)
        self.lag_s = self._wall() - batch.ts


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


class UnreadMessage(Struct, frozen=True):
    """Task: count a message that is too large to keep."""

    pod: str
    sequence: int


Task: TypeAlias = PublishedMessage | UnreadMessage | str
"""A message, or the name of a pod that is gone."""


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
        self._streams: dict[IndexedEngine, EngineStream] = {}
        self._by_pod: dict[str, dict[IndexedEngine, EngineStream]] = {}
        self._busy: dict[IndexedEngine, EngineStream] = {}
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
        if isinstance(task, PublishedMessage) and len(task.payload) > self._settings.most_payload_bytes:
            task = UnreadMessage(task.pod, task.sequence)
        self._queue.append(task)
        self.size_bytes += task.size_bytes if isinstance(task, PublishedMessage) else 0
        self.wake.set()

    def step(self, now: float) -> bool:
        """Continues replays, and handles some of the queued tasks; pauses in between.

        Returns True if more work is ready. `now` is monotonic, in seconds.
        """
        self.wake.clear()
        if now < self._rest_until:
            return False
        try:
            replayed = 0
            for source, stream in list(self._busy.items()):
                self._notice_loss()
                replayed += stream.step(now)
                if not stream.held:
                    self._busy.pop(source, None)
            for _ in range(min(len(self._queue), MOST_A_STEP)):
                self._notice_loss()
                match self._queue[0]:
                    case PublishedMessage() as message:
                        self._message(message, now)
                        self.size_bytes -= message.size_bytes
                    case UnreadMessage() as message:
                        self._index.losses.message("too_large")
                        self._skip(message)
                    case str() as pod:
                        self._index.clear(pod)
                        for source, stream in self._by_pod.pop(pod, {}).items():
                            stream.close()
                            del self._streams[source]
                            self._busy.pop(source, None)
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

    def _notice_loss(self) -> None:
        """Restarts all streams after the backend has lost all data."""
        epoch = self._index.backend.epoch
        if self._epoch != epoch and self._epoch:
            for stream in self._streams.values():
                stream.forget()
        self._epoch = epoch

    def _message(self, message: PublishedMessage, now: float) -> None:
        """Applies a message. After an error, only this message is lost."""
        try:
            batch = decode(message.payload)
            source = IndexedEngine(message.pod, message.model, batch.rank)
            stream = self._stream(source)
            if stream is not None:
                stream.receive(message, batch, now)
                if stream.held:
                    self._busy[source] = stream
        except Unreadable as error:
            self._index.losses.message(error.reason)
            self._skip(message)
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a message of pod %s is left out", message.pod)
            self._index.losses.message("failed")

    def _stream(self, source: IndexedEngine) -> EngineStream | None:
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

    def _skip(self, message: PublishedMessage | UnreadMessage) -> None:
        """Skips the number of an undecoded message, for the pod's first engine that awaits this number."""
        for stream in self._by_pod.get(message.pod, {}).values():
            if not stream.held and stream.tracker.next == message.sequence:
                stream.tracker.skip(message.sequence)
                return


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

    def put(self, message: PublishedMessage) -> str | None:
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
        its_shard.put(longest_silent)
        self._metrics.crowded_out.inc()
        return longest_silent

    def gone(self, pod: str) -> None:
        """Forgets a pod, after its queued messages."""
        self._pods.pop(pod, None)
        self._shard(pod).put(pod)

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
