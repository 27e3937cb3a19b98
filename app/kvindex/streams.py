"""Streams of engines' batches into the index: in order, each batch once, gaps filled by a replay."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from enum import Enum, auto
from typing import Literal, NamedTuple

import zmq
from msgspec import Struct

from app.engine.kvcache.endpoints import is_ipv6, of_rank
from app.engine.kvcache.event_sender import END
from app.engine.kvcache.sockets import affinity
from app.kvindex.decoding import Batch, Data, TooLarge, Unreadable, decode
from app.kvindex.holders import Engine
from app.kvindex.index import Index

log = logging.getLogger(__name__)

REMEMBERED = 64
"""Latest batches of an engine that are recognized when repeated or late."""
MOST_HELD = 10_000
MOST_HELD_BYTES = 32 << 20
"""Most messages, and bytes, that an engine holds back during a replay; above, the replay fails."""
HELD_BYTES = 256 << 20
"""Most bytes of messages that all engines hold back during replays."""
MESSAGE_BYTES = 400
"""Memory of a message besides its payload, in bytes, with a topic of usual length."""
MOST_A_STEP, MOST_BYTES_A_STEP = 256, 1 << 20
"""Most batches, and bytes, of a replay that are read in one go."""
_MISSING = float("nan")


class Message(Struct, frozen=True, gc=False):
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


class Verdict(Enum):
    """Classification of a batch by its sequence number."""

    FIRST = auto()
    """The first batch of a stream: request a replay of earlier batches, and apply this one."""
    NEXT = auto()
    """Follows the last batch: apply."""
    GAP = auto()
    """Batches before this one are missing."""
    LATE = auto()
    """A batch counted as missing: apply."""
    DUPLICATE = auto()
    """Applied before: skip."""
    RESTART = auto()
    """The engine restarted: remove its blocks, then apply the batch."""


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


class Replayed(NamedTuple):
    """A batch of a replay; vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes
    topic: bytes = b""


class ReplayLimits(Struct, frozen=True, kw_only=True):
    """Limits of replays, in seconds: without an answer, in total, and the pause after a failure.

    At most `at_once` replays run. A batch above `most_bytes` ends the connection.
    """

    idle_s: float = 2.0
    total_s: float = 120.0
    cool_down_s: float = 30.0
    at_once: int = 8
    most_bytes: int = 128 << 20


class Replay:
    """A request to vLLM's replay socket for all batches from number `start` on.

    `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        start: int,
        now: float,
        limits: ReplayLimits,
    ) -> None:
        """Raises ZMQError for an invalid endpoint."""
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
        """Returns the batches received since the last step; `state` is "running" while more may come."""
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
    """Starts replays, a few at once, and bounds the memory of messages held back meanwhile."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        limits: ReplayLimits = ReplayLimits(),  # noqa: B008 (immutable)
    ) -> None:
        """Without a `context`, no replay starts."""
        self.limits = limits
        self.size_bytes = 0
        """Memory of the messages held back, in bytes."""
        self.limit_bytes = HELD_BYTES
        self._context = context
        self._running = 0

    @property
    def possible(self) -> bool:
        return self._context is not None

    def begin(self, endpoint: str, start: int, now: float) -> Replay | None:
        """Starts a replay; None while too many run. Raises ZMQError for an invalid endpoint."""
        if self._context is None or self._running >= self.limits.at_once:
            return None
        replay = Replay(self._context, endpoint, start, now, self.limits)
        self._running += 1
        return replay

    def end(self, replay: Replay) -> None:
        replay.close()
        self._running -= 1


class EngineStream:
    """The stream of one engine; holds messages back while a replay runs or is due.

    Every method may raise BackendUnavailable. The caller may then repeat the call: no batch is applied twice
    or lost.
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
        """`wall` gives seconds since 1970; `pace` runs after each batch, and may pause.

        Batches of a replay above `most_payload_bytes` are skipped.
        """
        self.tracker = tracker
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch; the two clocks may differ."""
        self._source, self._index = source, index
        self._replays, self._wall, self._pace = replays, wall, pace
        self._most_payload_bytes = most_payload_bytes
        self._held: list[tuple[Message, float]] = []
        """(message, publication time) pairs. A list, as an empty deque takes 700 bytes for each engine."""
        self._held_bytes = 0
        self._wanted: int | None = None
        """The first number of a replay that is due."""
        self._asked: int | None = None
        """The first number of the latest replay."""
        self._replay: Replay | None = None
        self._replayed: list[Replayed] = []
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def busy(self) -> bool:
        """True while messages are held back, so that `step` has work."""
        return bool(self._held)

    def receive(self, message: Message, batch: Batch, now: float) -> None:
        """Applies a message, or holds the message back until a replay has brought earlier batches."""
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
        """Continues a replay, then applies messages held back; returns the number of batches applied."""
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
        """Forgets all batches after a loss of the index; requests a full replay if messages are held back."""
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
        """True if so much is held back that the replay counts as failed."""
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
        """Returns the address that replays this engine's batches; None if unknown."""
        address, rank = message.replay, self._source.rank
        if address is None or not message.per_rank or not rank:
            return address
        try:
            return of_rank(address, rank) if rank > 0 else None
        except ValueError:
            return None

    def _ask(self, message: Message, now: float) -> None:
        """Starts the due replay, unless too many run."""
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
        """Applies a batch of a replay, unless applied before; returns the number of batches applied."""
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
        """Decodes a batch of a replay. Raises Unreadable."""
        if len(payload) > self._most_payload_bytes:
            raise TooLarge("a batch has too many bytes")
        return decode(payload)

    def _refuse(self, message: Message, now: float) -> None:
        """Ends a replay with batches of another pod or rank."""
        self._index.losses.message("foreign_replay")
        log.warning(
            "KV events: %s is not the replay address of %s, or not of its rank %d",
            *(self._address(message), self._source.pod, self._source.rank),
        )
        self._end_replay(False, now)

    def _release(self, now: float) -> int:
        """Applies the first message held back, unless a replay contained it, or another replay is due."""
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
