"""The batches of one engine on their way into the index: in order, each once, gaps filled by a replay."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from enum import Enum, auto
from typing import Literal, NamedTuple

import zmq
from msgspec import Struct

from app.kvcache.endpoints import is_ipv6, of_rank
from app.kvcache.event_sender import END
from app.kvcache.sockets import affinity
from app.kvindex.decoding import Batch, Data, TooLarge, Unreadable, decode
from app.kvindex.holders import Engine
from app.kvindex.index import Index

log = logging.getLogger(__name__)

REMEMBERED = 64
"""Latest batches of an engine that are recognised when they come twice, or late."""
MOST_HELD = 10_000
MOST_HELD_BYTES = 32 << 20
"""Messages of an engine, and bytes of them, that wait for the end of a replay; with more it has failed."""
HELD_BYTES = 256 << 20
"""Bytes of messages of all engines that wait for the ends of replays."""
MESSAGE_BYTES = 400
"""Memory of a message besides its payload, with a topic of usual length."""
MOST_A_STEP, MOST_BYTES_A_STEP = 256, 1 << 20
"""Batches of a replay, and bytes of them, that are read in one go."""
_MISSING = float("nan")


class Message(Struct, frozen=True, gc=False):
    """A batch as a pod has published it, and the address that replays earlier ones.

    With `per_rank`, `replay` is the address of rank 0. `topic` is None for a message from no socket.
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
        """Memory of the message."""
        return len(self.payload) + MESSAGE_BYTES


class Verdict(Enum):
    """What a batch is, by its number."""

    FIRST = auto()
    """Nothing came before it: apply it, and ask for the batches before."""
    NEXT = auto()
    """Apply it."""
    GAP = auto()
    """Some are missing before it."""
    LATE = auto()
    """It was missing and came after all: apply it."""
    DUPLICATE = auto()
    """It was applied: leave it."""
    RESTART = auto()
    """The engine began anew: forget its blocks, then apply the batch."""


class SequenceTracker:
    """Tells apart the batches of one data parallel rank of a pod, by number and time of publication.

    A number at or below the last one is a batch that came before if its time is the same, or if it was part
    of a replay; it was missing if its number was skipped. Otherwise the engine counts anew.
    """

    __slots__ = ("_recent", "applied", "last_ts", "received")

    def __init__(self, applied: int | None = None, last_ts: float = 0.0) -> None:
        """`applied` and `last_ts` are those of a batch that some indexer has applied before."""
        self.applied = applied
        """The highest number that was applied."""
        self.received = -1
        """The highest number that came by itself, not in a replay."""
        self.last_ts = last_ts
        self._recent = array("d")

    @property
    def next(self) -> int:
        """The number that should come next. An engine's first number is 0."""
        return 0 if self.applied is None else self.applied + 1

    def judge(self, sequence: int, ts: float) -> Verdict:
        """Decides what to do with a batch that came by itself."""
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
        """How many numbers are missing before this one."""
        return max(0, sequence - self.next)

    def apply(self, sequence: int, ts: float, replayed: bool = False) -> None:
        """Notes a batch as applied; numbers between the last one and it are missing."""
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
        """Begins anew, as the engine does."""
        self.applied, self.received, self.last_ts = None, -1, 0.0
        del self._recent[:]

    def skip(self, sequence: int) -> None:
        """Passes a number whose message cannot be used."""
        if self.applied is not None and sequence == self.applied + 1:
            self.apply(sequence, self.last_ts)


class Replayed(NamedTuple):
    """A batch that was published before; vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes
    topic: bytes = b""


class ReplayLimits(Struct, frozen=True, kw_only=True):
    """When a replay has failed, how long its publisher is then left alone, and how many may run at once.

    Batches above `most_bytes` end the connection.
    """

    idle_s: float = 2.0
    total_s: float = 120.0
    cool_down_s: float = 30.0
    at_once: int = 8
    most_bytes: int = 128 << 20


class Replay:
    """One request for all batches from `start` on, as vLLM's replay socket answers it.

    `now` is a monotonic clock's time in seconds.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        start: int,
        now: float,
        limits: ReplayLimits,
    ) -> None:
        """Raises ZMQError for an endpoint that is none."""
        self.state: Literal["running", "complete", "failed"] = "running"
        self._idle_until, self._until = now + limits.idle_s, now + limits.total_s
        self._idle_s = limits.idle_s
        self._socket = context.socket(zmq.DEALER)
        try:
            self._socket.linger = 0
            self._socket.maxmsgsize = limits.most_bytes
            self._socket.ipv6 = is_ipv6(endpoint)
            self._socket.affinity = affinity(context, endpoint)
            self._socket.connect(endpoint)
            self._socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.close()
            raise

    def step(self, now: float) -> list[Replayed]:
        """Returns the batches that have come since; `state` shows whether more may come."""
        batches: list[Replayed] = []
        size = 0
        while self.state == "running" and len(batches) < MOST_A_STEP and size < MOST_BYTES_A_STEP:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._idle_until = now + self._idle_s
            size += len(frames[-1])
            self._take(frames, batches)
        if self.state == "running" and not batches and now >= min(self._idle_until, self._until):
            self.state = "failed"
        return batches

    def close(self) -> None:
        self._socket.close(linger=0)

    def _take(self, frames: list[bytes], batches: list[Replayed]) -> None:
        if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
            return
        if frames[-2] == END:
            self.state = "complete"
        else:
            topic = frames[1] if len(frames) == 4 else b""
            batches.append(Replayed(int.from_bytes(frames[-2], "big"), frames[-1], topic))


class Replays:
    """Begins replays, a few at once, and bounds the messages that wait for their ends."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        limits: ReplayLimits = ReplayLimits(),  # noqa: B008 (immutable)
    ) -> None:
        """Without a `context` there are none."""
        self.limits = limits
        self.size_bytes = 0
        """Memory of the messages that wait."""
        self.limit_bytes = HELD_BYTES
        self._context = context
        self._running = 0

    @property
    def possible(self) -> bool:
        return self._context is not None

    def begin(self, endpoint: str, start: int, now: float) -> Replay | None:
        """Returns a replay, or None while too many run. Raises ZMQError for an endpoint that is none."""
        if self._context is None or self._running >= self.limits.at_once:
            return None
        replay = Replay(self._context, endpoint, start, now, self.limits)
        self._running += 1
        return replay

    def end(self, replay: Replay) -> None:
        replay.close()
        self._running -= 1


class EngineStream:
    """The stream of one engine. While a replay is awaited, messages are held back behind it.

    Every method may raise BackendUnavailable and can then be called again: no batch is applied twice or lost.
    """

    def __init__(
        self,
        index: Index,
        source: Engine,
        tracker: SequenceTracker,
        replays: Replays,
        wall: Callable[[], float] = time.time,
        pace: Callable[[], None] = lambda: None,
        most_payload_bytes: int = 1 << 20,
    ) -> None:
        """`wall` gives seconds since 1970; `pace` is called between two batches, and may pause.

        Batches of a replay above `most_payload_bytes` are not used.
        """
        self.tracker = tracker
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch, by the clocks of both sides."""
        self._source, self._index = source, index
        self._replays, self._wall, self._pace = replays, wall, pace
        self._most_payload_bytes = most_payload_bytes
        self._held: list[tuple[Message, float]] = []
        """Messages, and when they were published. A list: an empty deque takes 700 bytes for each engine."""
        self._held_bytes = 0
        self._wanted: int | None = None
        """The first number of a replay that is to begin."""
        self._asked: int | None = None
        """The first number of the latest replay."""
        self._replay: Replay | None = None
        self._replayed: list[Replayed] = []
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def busy(self) -> bool:
        """Whether messages are held back, so that `step` has something to do."""
        return bool(self._held)

    def receive(self, message: Message, batch: Batch, now: float) -> None:
        """Applies a message, or holds it back until a replay has brought the batches before it."""
        if self._held:
            self._hold(message, batch.ts)
            return
        verdict = self.tracker.judge(message.sequence, batch.ts)
        if verdict is Verdict.RESTART:
            self._begin_anew()
            verdict = Verdict.FIRST
        if verdict is Verdict.DUPLICATE:
            self._index.losses.message("duplicate")
        elif verdict in (Verdict.FIRST, Verdict.GAP) and self._can_ask(message, now):
            self._wanted, self._asked = self.tracker.next, None
            self._hold(message, batch.ts)
        else:
            self._apply(message, batch)

    def step(self, now: float) -> int:
        """Goes on with a replay, then with the messages held back; returns how many batches were applied."""
        applied = 0
        if self._wanted is not None and self._held:
            self._ask(self._held[0][0], now)
        if self._replay is not None:
            self._replayed.extend(self._replay.step(now))
        while self._replayed:
            applied += self._apply_replayed(self._replayed[0], now)
            if self._replayed:
                del self._replayed[0]
        if self._replay is not None and (self._full or self._replay.state != "running"):
            self._end_replay(self._replay.state == "complete", now)
        while self._held and self._replay is None and self._wanted is None:
            applied += self._release(now)
        return applied

    def forget(self) -> None:
        """Begins as if no batch had come: the index has lost everything."""
        self.tracker.restart()
        if self._held:
            self._close_replay()
            self._wanted = None if self._address(self._held[0][0]) is None else 0

    def close(self) -> None:
        self._close_replay()
        self._held.clear()
        self._count(-self._held_bytes)

    @property
    def _full(self) -> bool:
        """Whether so much waits that the replay has failed."""
        too_much = len(self._held) > MOST_HELD or self._held_bytes > MOST_HELD_BYTES
        return too_much or self._replays.size_bytes > self._replays.limit_bytes

    def _hold(self, message: Message, ts: float) -> None:
        self._held.append((message, ts))
        self._count(message.size_bytes)

    def _count(self, size: int) -> None:
        self._held_bytes += size
        self._replays.size_bytes += size

    def _begin_anew(self) -> None:
        self._index.metrics.restarts.inc()
        self.tracker.restart()
        self._restarting = True

    def _can_ask(self, message: Message, now: float) -> bool:
        return self._address(message) is not None and self._replays.possible and now >= self._cool_until

    def _address(self, message: Message) -> str | None:
        """The address that replays this engine's batches; None where it is not known."""
        address, rank = message.replay, self._source.rank
        if address is None or not message.per_rank or not rank:
            return address
        try:
            return of_rank(address, rank) if rank > 0 else None
        except ValueError:
            return None

    def _ask(self, message: Message, now: float) -> None:
        """Begins the replay that is wanted, unless too many run."""
        endpoint, wanted = self._address(message), self._wanted
        assert endpoint is not None and wanted is not None
        try:
            self._replay = self._replays.begin(endpoint, wanted, now)
        except zmq.ZMQError:
            self._end_replay(False, now)
        if self._replay is not None or self._full:
            self._asked, self._wanted = wanted, None

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
        """Applies a batch of a replay, unless it is known; returns how many were applied."""
        message, _ = self._held[0]
        other = bool(replayed.topic and message.topic and replayed.topic != message.topic)
        if not other and replayed.sequence < self.tracker.next:
            return 0
        try:
            batch = None if other else self._decode(replayed.payload)
        except Unreadable as error:
            self._index.losses.message(error.reason)
            self.tracker.skip(replayed.sequence)
            return 0
        if batch is None or batch.rank != self._source.rank:
            self._refuse(message, now)
            return 0
        again = Message(message.pod, message.model, replayed.sequence, replayed.payload)
        self._apply(again, batch, replayed=True)
        self._pace()
        return 1

    def _decode(self, payload: bytes) -> Batch:
        """The batch of a replay. Raises Unreadable."""
        if len(payload) > self._most_payload_bytes:
            raise TooLarge("a batch has too many bytes")
        return decode(payload)

    def _refuse(self, message: Message, now: float) -> None:
        """Ends a replay that another pod or rank has answered."""
        self._index.losses.message("foreign_replay")
        log.warning(
            "KV events: %s is not the replay address of %s, or not of its rank %d",
            *(self._address(message), self._source.pod, self._source.rank),
        )
        self._end_replay(False, now)

    def _release(self, now: float) -> int:
        """Applies the first message held back, unless a replay brought it, or another replay is due."""
        message, ts = self._held[0]
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
        del self._held[0]
        self._count(-message.size_bytes)
        self._pace()
        return int(verdict is not Verdict.DUPLICATE)

    def _apply(self, message: Message, batch: Batch, replayed: bool = False) -> None:
        self._index.ingest(batch, message.pod, message.model, message.sequence, restart=self._restarting)
        if missing := self.tracker.missing(message.sequence):
            self._index.losses.message("gap", missing)
        self._restarting = False
        self.tracker.apply(message.sequence, batch.ts, replayed)
        self.lag_s = self._wall() - batch.ts
