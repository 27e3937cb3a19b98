"""Streams of engines' batches into the index: in order, each batch once, gaps filled by a replay."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

import zmq
from msgspec import Struct

from app.engine.kvcache.endpoints import is_ipv6, of_rank
from app.engine.kvcache.publisher import END, affinity
from app.kvindex.decoding import Data, PodBatch, Unreadable, decode
from app.kvindex.holders import IndexedEngine
from app.kvindex.index import Index

log = logging.getLogger(__name__)

REMEMBERED = 64
"""Most missing batches of an engine that are still applied when they come late."""
MOST_HELD_BYTES, MOST_ALL_HELD_BYTES = 32 << 20, 256 << 20
"""Most bytes that an engine, and all engines, hold back during replays; above, the replay fails."""
MOST_A_STEP, MOST_BYTES_A_STEP = 256, 1 << 20
"""Most batches, and bytes, of a replay that are read in one go."""
MESSAGE_BYTES = 400
"""Memory of a message besides its payload, in bytes, with a topic of usual length."""


class PublishedMessage(Struct, frozen=True, gc=False):
    """A published batch, and the address that replays earlier batches.

    `payload` is None where it was too large to keep. With `per_rank`, `replay` is the address of rank 0.
    `topic` is None for a message without a socket.
    """

    pod: str
    model: str
    sequence: int
    payload: Data | None
    replay: str | None = None
    per_rank: bool = False
    topic: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES + len(self.payload or b"")


class Replayed(NamedTuple):
    """A batch of a replay; vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes | None
    topic: bytes = b""


class ReplayLimits(Struct, frozen=True, kw_only=True):
    """Limits of replays, in seconds: without an answer, in total, and the pause after a failure.

    At most `at_once` replays run. A batch above `most_bytes` ends the connection; above `payload_bytes` only
    its number is kept.
    """

    idle_s: float = 2.0
    total_s: float = 120.0
    cool_down_s: float = 30.0
    at_once: int = 8
    most_bytes: int = 128 << 20
    payload_bytes: int = 1 << 20


class ReplayRequest:
    """A request to vLLM's replay socket for all batches from number `start` on. `now` is in seconds."""

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
        self.batches: deque[Replayed] = deque()
        """Received batches, until they are applied."""
        self._idle_until, self._until = now + limits.idle_s, now + limits.total_s
        self._limits = limits
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

    def receive(self, now: float) -> None:
        """Adds received batches to `batches`; `state` is "running" while more may come."""
        size = 0
        while self.state == "running" and len(self.batches) < MOST_A_STEP and size < MOST_BYTES_A_STEP:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._idle_until = now + self._limits.idle_s
            size += len(frames[-1])
            if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
                continue
            if frames[-2] == END:
                self.state = "complete"
            else:
                payload = frames[-1] if len(frames[-1]) <= self._limits.payload_bytes else None
                topic = frames[1] if len(frames) == 4 else b""
                self.batches.append(Replayed(int.from_bytes(frames[-2], "big"), payload, topic))
        if self.state == "running" and not self.batches and now >= min(self._idle_until, self._until):
            self.state = "failed"

    def close(self) -> None:
        self._socket.close(linger=0)


class Replays:
    """Starts replays, a few at once, and counts the memory of messages held back meanwhile."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        limits: ReplayLimits = ReplayLimits(),  # noqa: B008 (immutable)
    ) -> None:
        """Without a `context`, no replay starts."""
        self.context, self.limits = context, limits
        self.limit_bytes = MOST_ALL_HELD_BYTES
        self.size_bytes = 0
        """Memory of the messages held back, in bytes."""
        self.running = 0

    def begin(self, endpoint: str, start: int, now: float) -> ReplayRequest | None:
        """Starts a replay; None while too many run. Raises ZMQError for an invalid endpoint."""
        if self.context is None or self.running >= self.limits.at_once:
            return None
        replay = ReplayRequest(self.context, endpoint, start, now, self.limits)
        self.running += 1
        return replay

    def end(self, replay: ReplayRequest) -> None:
        replay.close()
        self.running -= 1


class ForeignReplay(Exception):
    """Raised for a batch of a replay from another pod or rank."""


class EngineStream:
    """The stream of one engine; holds messages back while a replay runs or is due.

    A number at or below the last one is late if its batch was missing, and a repetition if its time is not
    new. Otherwise the engine has restarted its numbers.

    Every method may raise BackendUnavailable. The caller may then repeat the call: no batch is applied twice
    or lost.
    """

    def __init__(
        self,
        index: Index,
        source: IndexedEngine,
        replays: Replays,
        wall: Callable[[], float],
        pace: Callable[[], None],
    ) -> None:
        """`wall` gives seconds since 1970; `pace` runs after each batch, and may pause."""
        self._source, self._index = source, index
        self._replays, self._wall, self._pace = replays, wall, pace
        self._epoch = index.backend.epoch
        known = index.backend.position(source)
        self.applied = None if known is None else known.sequence
        """The highest number applied, by any indexer."""
        self._last_ts = 0.0 if known is None else known.ts
        self._missing: tuple[int, ...] = ()
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch; the two clocks may differ."""
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
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def next(self) -> int:
        """The next expected number. An engine's first number is 0."""
        return 0 if self.applied is None else self.applied + 1

    def receive(self, message: PublishedMessage, batch: PodBatch, now: float) -> None:
        """Applies a message, or holds the message back until a replay has brought earlier batches."""
        self._notice_loss()
        if not self.held:
            if self._is_repeated(message.sequence, batch.ts):
                self._index.losses.message("duplicate")
                return
            if message.sequence <= self.next or not self._can_ask(message, now):
                self._apply(message.sequence, batch)
                return
            self._wanted, self._asked = self.next, None
        self.held.append((message, batch.ts))
        self._count(message.size_bytes)

    def step(self, now: float) -> int:
        """Continues a replay, then applies messages held back; returns the number of batches applied."""
        self._notice_loss()
        applied = 0
        # So much is held back that the replay counts as failed.
        full = self._held_bytes > MOST_HELD_BYTES or self._replays.size_bytes > self._replays.limit_bytes
        if self._wanted is not None and self.held:
            endpoint, wanted = self._address(self.held[0][0]), self._wanted
            try:
                self._replay = self._replays.begin(endpoint or "", wanted, now)
            except zmq.ZMQError:
                self._end_replay(False, now)
            if self._replay is not None or full:  # else too many run, and this one waits
                self._asked, self._wanted = wanted, None
        if self._replay is not None:
            applied += self._apply_replay(self._replay, now)
        if self._replay is not None and (full or self._replay.state != "running"):
            self._end_replay(self._replay.state == "complete", now)
        while self.held and self._replay is None and self._wanted is None:
            applied += self._release(now)
        return applied

    def skip(self, sequence: int) -> None:
        """Skips the next number if its message cannot be used."""
        if self.applied is not None and sequence == self.next:
            self.applied = sequence

    def close(self) -> None:
        self._close_replay()
        self.held.clear()
        self._count(-self._held_bytes)

    def _notice_loss(self) -> None:
        """After a loss of the index, forgets all batches; messages held back then want a full replay."""
        epoch, self._epoch = self._epoch, self._index.backend.epoch
        if epoch and epoch != self._epoch:
            self._restart()
            if self.held:
                self._close_replay()
                self._wanted = None if self._address(self.held[0][0]) is None else 0

    def _is_repeated(self, sequence: int, ts: float) -> bool:
        """Returns True for a batch that was applied before; notices a restart of the engine."""
        if sequence >= self.next or sequence in self._missing:
            return False
        if ts <= self._last_ts:
            return True
        self._index.metrics.restarts.inc()
        self._restart()
        self._restarting = True
        return False

    def _restart(self) -> None:
        self.applied, self._last_ts, self._missing = None, 0.0, ()

    def _count(self, size: int) -> None:
        self._held_bytes += size
        self._replays.size_bytes += size

    def _can_ask(self, message: PublishedMessage, now: float) -> bool:
        possible = self._replays.context is not None and now >= self._cool_until
        return possible and self._address(message) is not None

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
        self._wanted = None
        if self._replay is not None:
            self._replays.end(self._replay)
            self._replay = None

    def _apply_replay(self, replay: ReplayRequest, now: float) -> int:
        applied = 0
        replay.receive(now)
        while replay.batches:
            replayed = replay.batches[0]
            try:
                batch = self._own_batch(replayed)
                if batch is not None:
                    self._apply(replayed.sequence, batch)
                    applied += 1
                    self._pace()
            except Unreadable as error:
                self._index.losses.message(error.reason)
                self.skip(replayed.sequence)
            except ForeignReplay:
                self._index.losses.message("foreign_replay")
                log.warning(
                    "KV events: %s is not the replay address of %s, or not of its rank %d",
                    *(self._address(self.held[0][0]), self._source.pod, self._source.rank),
                )
                replay.batches.clear()
                self._end_replay(False, now)
                break
            replay.batches.popleft()
        return applied

    def _own_batch(self, replayed: Replayed) -> PodBatch | None:
        """Decodes a batch; None for one applied before. Raises ForeignReplay and Unreadable."""
        topic = self.held[0][0].topic
        if replayed.topic and topic and replayed.topic != topic:
            raise ForeignReplay
        if replayed.sequence < self.next:
            return None
        batch = decode(replayed.payload)
        if batch.rank != self._source.rank:
            raise ForeignReplay
        return batch

    def _release(self, now: float) -> int:
        """Applies the first message held back, unless a replay contained it, or another replay is due."""
        message, ts = self.held[0]
        repeated = self._is_repeated(message.sequence, ts)
        if message.sequence > self.next and self.next != self._asked and self._can_ask(message, now):
            self._wanted = self.next
            return 0
        if not repeated:
            self._apply(message.sequence, decode(message.payload))
        del self.held[0]
        self._count(-message.size_bytes)
        self._pace()
        return int(not repeated)

    def _apply(self, sequence: int, batch: PodBatch) -> None:
        self._index.ingest(self._source, batch, sequence, self._restarting)
        self._restarting = False
        if sequence < self.next:
            self._missing = tuple(number for number in self._missing if number != sequence)
        else:
            if missing := sequence - self.next:
                self._index.losses.message("gap", missing)
                if self.applied is not None:
                    late = range(max(self.next, sequence - REMEMBERED), sequence)
                    self._missing = (*self._missing, *late)[-REMEMBERED:]
            self.applied = sequence
        self._last_ts = max(self._last_ts, batch.ts)
        self.lag_s = self._wall() - batch.ts
