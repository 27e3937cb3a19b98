"""The batches of one engine on their way into the index: in order, each once, with gaps filled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import zmq
from msgspec import Struct

from app.kvindex.decoding import Batch, Unreadable, decode
from app.kvindex.index import Index
from app.kvindex.replay import Replay, Replayed, Replays
from app.kvindex.sequence import Stream, Verdict

MOST_HELD, MOST_HELD_BYTES = 10_000, 32 << 20
"""Messages, and bytes of their payloads, that wait for the end of a replay; with more it has failed."""


class Message(Struct, frozen=True, gc=False):
    """What a pod has published, and where it can be asked for what came before."""

    pod: str
    model: str
    sequence: int
    payload: bytes
    replay: str | None = None


class Arrived(Struct, frozen=True):
    """A message, decoded."""

    message: Message
    batch: Batch


class Feed:
    """One engine's stream. While a replay runs, what arrives is held back behind it.

    Every method may raise BackendUnavailable and can then be called again: nothing is applied twice or lost.
    """

    def __init__(
        self,
        index: Index,
        stream: Stream,
        replays: Replays,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.stream = stream
        self.lag_s = 0.0
        """From publication to application of the latest batch, by the clocks of both sides."""
        self._index, self._replays, self._wall = index, replays, wall
        self._held: deque[Arrived] = deque()
        self._held_bytes = 0
        self._replay: Replay | None = None
        self._replayed: deque[Replayed] = deque()
        self._wanted: int | None = None
        self._asked: int | None = None
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def busy(self) -> bool:
        """Whether there is something to do in `step`."""
        return bool(self._held)

    def receive(self, arrived: Arrived, now: float) -> None:
        """Apply a message, or hold it back until what comes before it is there."""
        if self._held:
            self._hold(arrived)
            return
        message, ts = arrived.message, arrived.batch.ts
        verdict = self.stream.judge(message.sequence, ts)
        if verdict is Verdict.DUPLICATE:
            self._index.losses.message("duplicate")
        elif verdict is Verdict.RESTART:
            self._begin_anew()
            self.receive(arrived, now)
        elif verdict in (Verdict.FIRST, Verdict.GAP) and self._can_ask(message, now):
            self._wanted = self._next()
            self._hold(arrived)
        else:
            self._apply(arrived)

    def step(self, now: float) -> int:
        """Go on with a replay and then with what was held back; how many batches were applied."""
        if not self._held:
            return 0
        if self._wanted is not None:
            self._ask(now)
        if self._replay is not None:
            self._replayed.extend(self._replay.step(now))
        applied = 0
        while self._replayed:
            applied += self._apply_replayed(self._replayed[0])
            self._replayed.popleft()
        if self._replay is not None and (self._replay.state != "running" or self._full):
            self._end(self._replay, now)
        while self._replay is None and self._wanted is None and self._held:
            applied += self._go_through(now)
        return applied

    def forget(self) -> None:
        """The index has lost everything: begin as if nothing had come before."""
        self.close()
        self._replayed.clear()
        self.stream.restart()
        self._wanted = 0 if self._held and self._held[0].message.replay is not None else None

    def close(self) -> None:
        if self._replay is not None:
            self._replays.end(self._replay)
            self._replay = None

    @property
    def _full(self) -> bool:
        return len(self._held) > MOST_HELD or self._held_bytes > MOST_HELD_BYTES

    def _hold(self, arrived: Arrived) -> None:
        self._held.append(arrived)
        self._held_bytes += len(arrived.message.payload)

    def _begin_anew(self) -> None:
        self._index.metrics.restarted()
        self.stream.restart()
        self._restarting = True

    def _can_ask(self, message: Message, now: float) -> bool:
        return message.replay is not None and self._replays.possible and now >= self._cool_until

    def _ask(self, now: float) -> None:
        """Begin the replay that is wanted, unless too many run."""
        endpoint, wanted = self._held[0].message.replay, self._wanted
        assert endpoint is not None and wanted is not None
        try:
            self._replay = self._replays.begin(endpoint, wanted, now)
        except zmq.ZMQError:
            self._failed(now)
        if self._replay is not None or self._full:
            self._asked, self._wanted = wanted, None

    def _end(self, replay: Replay, now: float) -> None:
        complete = replay.state == "complete"
        self._replays.end(replay)
        self._replay = None
        if complete:
            self._index.metrics.replayed("complete")
        else:
            self._failed(now)

    def _failed(self, now: float) -> None:
        self._index.metrics.replayed("failed")
        self._wanted = None
        self._cool_until = now + self._replays.limits.cool_down_s

    def _apply_replayed(self, replayed: Replayed) -> int:
        if self.stream.applied is not None and replayed.sequence <= self.stream.applied:
            return 0
        message = self._held[0].message
        try:
            batch = decode(replayed.payload)
        except Unreadable:
            self._index.losses.message("unreadable")
            self.stream.skip(replayed.sequence)
            return 0
        again = Message(message.pod, message.model, replayed.sequence, replayed.payload)
        self._apply(Arrived(again, batch), replayed=True)
        return 1

    def _go_through(self, now: float) -> int:
        """Apply the first message that was held back, unless a replay brought it, or it wants another."""
        arrived = self._held[0]
        sequence = arrived.message.sequence
        verdict = self.stream.judge(sequence, arrived.batch.ts)
        if verdict is Verdict.GAP and self._can_ask(arrived.message, now) and self._asked != self._next():
            self._wanted = self._next()
            return 0
        if verdict is Verdict.RESTART:
            self._begin_anew()
        if verdict is Verdict.DUPLICATE:
            self.stream.received = max(self.stream.received, sequence)
        else:
            self._apply(arrived)
        self._held.popleft()
        self._held_bytes -= len(arrived.message.payload)
        return int(verdict is not Verdict.DUPLICATE)

    def _next(self) -> int:
        """The number that should come next."""
        return 0 if self.stream.applied is None else self.stream.applied + 1

    def _apply(self, arrived: Arrived, replayed: bool = False) -> None:
        message, batch = arrived.message, arrived.batch
        self._index.ingest(batch, message.pod, message.model, message.sequence, restart=self._restarting)
        if missing := self.stream.missing(message.sequence):
            self._index.losses.message("gap", missing)
        self._restarting = False
        self.stream.apply(message.sequence, batch.ts, replayed)
        self.lag_s = self._wall() - batch.ts
