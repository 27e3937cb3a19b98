"""The batches of one engine on their way into the index: in order, each once, with gaps filled."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

import zmq
from msgspec import Struct

from app.kvcache.endpoints import of_rank
from app.kvindex.backend import Steps
from app.kvindex.batches import Batch, Unreadable, decoding
from app.kvindex.holders import Source
from app.kvindex.index import Index
from app.kvindex.replay_client import Replay, Replayed, Replays
from app.kvindex.scanning import Data
from app.kvindex.stream import Stream, Verdict

log = logging.getLogger(__name__)

MOST_HELD = 10_000
MOST_HELD_BYTES = 32 << 20
"""Messages, and bytes of them, that wait for the end of a replay; with more it has failed."""
MESSAGE_BYTES = 400
"""What a message takes besides its payload, with a topic of usual length."""
FEED_BYTES = 2500
"""What an engine's stream takes that needs no replay."""


class Message(Struct, frozen=True, gc=False):
    """What a pod has published, and where it can be asked for what came before.

    With `per_rank`, `replay` is the address of its rank 0. `topic` is None for one that came over no socket.
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
        """What it takes in memory."""
        return len(self.payload) + MESSAGE_BYTES


class Recovery:
    """A replay that an engine's messages wait for: what arrives meanwhile is held back behind it.

    `wanted` is the first number to ask for, `asked` the last one that was. `foreign` is an answer of somebody
    else. `doubtful` is one of which nothing tells so far: no topic, nor the message itself that asked.
    """

    def __init__(self, replays: Replays, wanted: int) -> None:
        self.wanted: int | None = wanted
        self.asked: int | None = None
        self.foreign = self.doubtful = False
        self.replay: Replay | None = None
        self.replayed: deque[Replayed] = deque()
        self.held: deque[tuple[Message, float]] = deque()
        """Messages, and when they were published."""
        self._replays = replays
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether so much waits that the replay has failed."""
        replays = self._replays
        too_much = len(self.held) > MOST_HELD or self._bytes > MOST_HELD_BYTES
        return too_much or replays.size_bytes > replays.limit_bytes

    def check(self, replayed: Replayed) -> None:
        """Whether this batch tells whose answer it is."""
        message, _ = self.held[0]
        if replayed.topic and message.topic:
            self.foreign = replayed.topic != message.topic
        elif replayed.sequence == message.sequence:
            self.foreign = replayed.payload != message.payload
            self.doubtful = self.foreign and self.doubtful
        elif replayed.sequence < message.sequence and message.topic is not None:
            self.doubtful = True

    def hold(self, message: Message, ts: float) -> None:
        self.held.append((message, ts))
        self._count(message.size_bytes)

    def release(self) -> None:
        """The first message waits no longer."""
        self._count(-self.held.popleft()[0].size_bytes)

    def close(self) -> None:
        """Nothing waits any more."""
        self.stop()
        self.held.clear()
        self._count(-self._bytes)

    def stop(self) -> None:
        """End the replay."""
        self.replayed.clear()
        if self.replay is not None:
            self._replays.end(self.replay)
            self.replay = None

    def _count(self, size: int) -> None:
        self._bytes += size
        self._replays.size_bytes += size


class Feed:
    """One engine's stream.

    Every method may raise BackendUnavailable and can then be called again: nothing is applied twice or lost.
    """

    def __init__(
        self,
        index: Index,
        source: Source,
        stream: Stream,
        replays: Replays,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.stream = stream
        self.lag_s = 0.0
        """From publication to application of the latest batch, by the clocks of both sides."""
        self._source = source
        self._index, self._replays, self._wall = index, replays, wall
        self._recovery: Recovery | None = None
        self._cool_until = float("-inf")
        self._stranger: str | None = None
        """An address at which somebody else answers."""
        self._restarting = False

    @property
    def busy(self) -> bool:
        """Whether there is something to do in `stepping`."""
        return self._recovery is not None

    def receive(self, message: Message, batch: Batch, now: float) -> Iterable[None]:
        """Hold a message back until what comes before it is there, or else the steps to apply it."""
        if self._recovery is not None:
            self._recovery.hold(message, batch.ts)
            return ()
        verdict = self.stream.judge(message.sequence, batch.ts)
        if verdict is Verdict.RESTART:
            self._begin_anew()
            verdict = Verdict.FIRST
        if verdict is Verdict.DUPLICATE:
            self._index.losses.message("duplicate")
        elif verdict in (Verdict.FIRST, Verdict.GAP) and self._can_ask(message, now):
            self._recovery = Recovery(self._replays, self._next())
            self._recovery.hold(message, batch.ts)
        else:
            return self._apply(message, batch)
        return ()

    def stepping(self, now: float) -> Steps[int]:
        """Go on with a replay and then with what was held back; how many batches were applied."""
        recovery, applied = self._recovery, 0
        if recovery is None:
            return 0
        if recovery.wanted is not None:
            self._ask(recovery, now)
        if recovery.replay is not None:
            recovery.replayed.extend(recovery.replay.step(now))
        while recovery.replayed and not recovery.foreign:
            applied += yield from self._apply_replayed(recovery, recovery.replayed[0])
            recovery.replayed.popleft()
        if recovery.replay is not None and (
            recovery.foreign or recovery.full or recovery.replay.state != "running"
        ):
            self._end(recovery, recovery.replay.state == "complete", now)
        while recovery.replay is None and recovery.wanted is None and recovery.held:
            applied += yield from self._go_through(recovery, now)
        if not recovery.held:
            self._recovery = None
        return applied

    def forget(self) -> None:
        """The index has lost everything: begin as if nothing had come before."""
        self.stream.restart()
        recovery = self._recovery
        if recovery is not None:
            recovery.stop()
            recovery.wanted = 0 if self._address(recovery.held[0][0]) is not None else None

    def close(self) -> None:
        if self._recovery is not None:
            self._recovery.close()
            self._recovery = None

    def _begin_anew(self) -> None:
        self._index.metrics.restarted()
        self._stranger = None
        self._forget_engine()

    def _forget_engine(self) -> None:
        """With the next batch, all that was applied so far is no more."""
        self.stream.restart()
        self._restarting = True

    def _can_ask(self, message: Message, now: float) -> bool:
        return self._address(message) is not None and self._replays.possible and now >= self._cool_until

    def _address(self, message: Message) -> str | None:
        """Where this engine answers replays; None if nobody knows, or if it is somebody else who does."""
        address, rank = message.replay, self._source.rank
        if address is not None and message.per_rank and rank:
            try:
                address = of_rank(address, rank) if rank > 0 else None
            except ValueError:
                return None
        return None if address == self._stranger else address

    def _ask(self, recovery: Recovery, now: float) -> None:
        """Begin the replay that is wanted, unless too many run."""
        endpoint, wanted = self._address(recovery.held[0][0]), recovery.wanted
        assert endpoint is not None and wanted is not None
        try:
            recovery.replay = self._replays.begin(endpoint, wanted, now)
        except zmq.ZMQError:
            self._failed(recovery, now)
        if recovery.replay is not None or recovery.full:
            recovery.asked, recovery.wanted = wanted, None

    def _end(self, recovery: Recovery, complete: bool, now: float) -> None:
        recovery.stop()
        if recovery.foreign or complete and recovery.doubtful:
            self._refuse(recovery)
            complete = False
        if complete:
            self._index.metrics.replayed("complete")
        else:
            self._failed(recovery, now)

    def _refuse(self, recovery: Recovery) -> None:
        """Somebody else has answered: nothing of it stays, and nobody asks there again."""
        self._index.losses.message("foreign_replay")
        self._stranger = self._address(recovery.held[0][0])
        log.warning(
            "KV events: %s is not the replay address of %s, or not of its rank %d; it is asked no more",
            *(self._stranger, self._source.pod, self._source.rank),
        )
        if recovery.doubtful:
            self._forget_engine()

    def _failed(self, recovery: Recovery, now: float) -> None:
        self._index.metrics.replayed("failed")
        recovery.wanted = None
        self._cool_until = now + self._replays.limits.cool_down_s

    def _apply_replayed(self, recovery: Recovery, replayed: Replayed) -> Steps[int]:
        recovery.check(replayed)
        known = self.stream.applied is not None and replayed.sequence <= self.stream.applied
        if recovery.foreign or known:
            return 0
        message, _ = recovery.held[0]
        try:
            batch = yield from decoding(replayed.payload)
        except Unreadable:
            self._index.losses.message("unreadable")
            self.stream.skip(replayed.sequence)
            return 0
        if batch.rank != self._source.rank:
            recovery.foreign = True
            return 0
        again = Message(message.pod, message.model, replayed.sequence, replayed.payload)
        yield from self._apply(again, batch, replayed=True)
        return 1

    def _go_through(self, recovery: Recovery, now: float) -> Steps[int]:
        """Apply the first message that was held back, unless a replay brought it, or it wants another."""
        message, ts = recovery.held[0]
        verdict = self.stream.judge(message.sequence, ts)
        if verdict is Verdict.GAP and self._can_ask(message, now) and recovery.asked != self._next():
            recovery.wanted = self._next()
            return 0
        if verdict is Verdict.RESTART:
            self._begin_anew()
        if verdict is Verdict.DUPLICATE:
            self.stream.received = max(self.stream.received, message.sequence)
        else:
            yield from self._apply(message, (yield from decoding(message.payload)))
        recovery.release()
        return int(verdict is not Verdict.DUPLICATE)

    def _next(self) -> int:
        """The number that should come next."""
        return 0 if self.stream.applied is None else self.stream.applied + 1

    def _apply(self, message: Message, batch: Batch, replayed: bool = False) -> Steps[None]:
        yield from self._index.ingesting(
            batch, message.pod, message.model, message.sequence, restart=self._restarting
        )
        if missing := self.stream.missing(message.sequence):
            self._index.losses.message("gap", missing)
        self._restarting = False
        self.stream.apply(message.sequence, batch.ts, replayed)
        self.lag_s = self._wall() - batch.ts
