"""The event pool: messages in queues by pod, so that pods go on side by side and each one in its order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from app.kvcache.fnv import fnv1a_32
from app.kvcache.memo import Memo
from app.kvindex.backend import BackendUnavailable
from app.kvindex.decoding import Unreadable, decode
from app.kvindex.feed import Arrived, Feed, Message
from app.kvindex.holders import Source
from app.kvindex.index import Index
from app.kvindex.replay import Replays
from app.kvindex.sequence import Stream

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 16
"""Payload that a shard applies in one go, about 2 ms of work."""
REMEMBERED_PODS = 1 << 16
BACK_OFF_S = 0.1, 5.0
"""Between two attempts while the backend does not answer: the first time, and at most."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Queues of the pool, what each may hold, and how many engines' streams it follows.

    Payloads above `most_payload_bytes` are not decoded.
    """

    shards: int = 4
    most_messages: int = 10_000
    most_bytes: int = 256 << 20
    most_payload_bytes: int = 16 << 20
    most_engines: int = 1 << 16


class Gone(Struct, frozen=True):
    """A pod is no more."""

    pod: str


Task: TypeAlias = Message | Gone


class Position(Struct, frozen=True):
    """How far an engine's events have come: the last number, and how old the batch was on its arrival."""

    pod: str
    model: str
    rank: int
    sequence: int | None
    lag_s: float


class Shard:
    """One queue, worked off by one thread or greenlet."""

    def __init__(
        self, index: Index, replays: Replays, settings: PoolSettings, wall: Callable[[], float] = time.time
    ) -> None:
        self.wake = threading.Event()
        """Set when there is something to do."""
        self._index, self._replays, self._settings, self._wall = index, replays, settings, wall
        self._queue: deque[Task] = deque()
        self._bytes = 0
        self._feeds: dict[Source, Feed] = {}
        self._by_pod: dict[str, dict[Source, Feed]] = {}
        self._epoch = index.backend.epoch
        self._rest_until = float("-inf")
        self._rest_s = BACK_OFF_S[0]

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= self._settings.most_messages or self._bytes >= self._settings.most_bytes

    @property
    def waiting(self) -> bool:
        """Whether there is something to do later: a replay runs, or the backend is away."""
        return bool(self._queue) or any(feed.busy for feed in self._feeds.values())

    def put(self, task: Task) -> None:
        """Queue a message; the caller has looked whether there is room."""
        self._queue.append(task)
        self._bytes += len(task.payload) if isinstance(task, Message) else 0
        self.wake.set()

    def step(self, now: float) -> bool:
        """Apply some of what waits; whether there is more to do at once. `now` is monotonic, in seconds."""
        if now < self._rest_until:
            self.wake.clear()
            return False
        try:
            busy = self._go_on(now)
        except BackendUnavailable:
            self._rest_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, BACK_OFF_S[1])
            return False
        self._rest_s = BACK_OFF_S[0]
        return busy

    def positions(self) -> list[Position]:
        return [
            Position(source.pod, source.model, source.rank, feed.stream.applied, feed.lag_s)
            for source, feed in list(self._feeds.items())
        ]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _go_on(self, now: float) -> bool:
        self.wake.clear()
        self._notice_loss()
        moved = sum([feed.step(now) for feed in list(self._feeds.values()) if feed.busy])
        done = 0
        while self._queue and done < STEP_BYTES:
            task = self._queue[0]
            if isinstance(task, Message):
                self._try(task, now)
                done += len(task.payload)
                self._bytes -= len(task.payload)
            else:
                self._gone(task.pod)
            self._queue.popleft()
        return bool(self._queue or moved)

    def _notice_loss(self) -> None:
        """When the backend has lost everything, all streams begin anew."""
        epoch = self._index.backend.epoch
        if self._epoch not in ("", epoch):
            for feed in self._feeds.values():
                feed.forget()
        self._epoch = epoch

    def _try(self, message: Message, now: float) -> None:
        """A message that cannot be dealt with must not keep the others from theirs."""
        try:
            self._message(message, now)
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a message of pod %s is left out", message.pod)
            self._index.losses.message("failed")

    def _message(self, message: Message, now: float) -> None:
        if len(message.payload) > self._settings.most_payload_bytes:
            self._index.losses.message("too_large")
            self._skip(message)
            return
        try:
            batch = decode(message.payload)
        except Unreadable:
            self._index.losses.message("unreadable")
            self._skip(message)
            return
        feed = self._feed(Source(message.pod, message.model, batch.rank))
        if feed is not None:
            feed.receive(Arrived(message, batch), now)

    def _feed(self, source: Source) -> Feed | None:
        feed = self._feeds.get(source)
        if feed is None and len(self._feeds) >= self._settings.most_engines:
            self._index.losses.message("too_many_pods")
        elif feed is None:
            known = self._index.backend.position(source)
            stream = Stream() if known is None else Stream(known.sequence, known.ts)
            feed = self._feeds[source] = Feed(self._index, stream, self._replays, self._wall)
            self._by_pod.setdefault(source.pod, {})[source] = feed
        return feed

    def _skip(self, message: Message) -> None:
        """A message that cannot be read does not tell its rank: it belongs to whoever awaits its number."""
        for feed in self._by_pod.get(message.pod, {}).values():
            if not feed.busy and feed.stream.applied == message.sequence - 1:
                feed.stream.skip(message.sequence)
                return

    def _gone(self, pod: str) -> None:
        self._index.clear(pod)
        for source, feed in self._by_pod.pop(pod, {}).items():
            feed.close()
            del self._feeds[source]


class Pool:
    """Shards, chosen by pod."""

    def __init__(
        self,
        index: Index,
        replays: Replays,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall` gives seconds since 1970. ValueError without shards."""
        if settings.shards < 1:
            raise ValueError("the pool needs a queue")
        self._metrics = index.metrics
        self._known: Memo[str, Shard] = Memo(REMEMBERED_PODS)
        self.shards = [Shard(index, replays, settings, wall) for _ in range(settings.shards)]

    def __len__(self) -> int:
        """Messages that wait."""
        return sum(map(len, self.shards))

    @property
    def full(self) -> bool:
        """Whether a queue has no room: messages should wait where they are."""
        return any(shard.full for shard in self.shards)

    def put(self, message: Message) -> None:
        self._metrics.received()
        self._shard(message.pod).put(message)

    def gone(self, pod: str) -> None:
        """Forget a pod, after what it has published."""
        self._shard(pod).put(Gone(pod))

    def step(self, now: float) -> bool:
        """A step of every shard, for callers that have one thread."""
        return any([shard.step(now) for shard in self.shards])

    def positions(self) -> list[Position]:
        return [position for shard in self.shards for position in shard.positions()]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    def _shard(self, pod: str) -> Shard:
        shard = self._known.get(pod)
        if shard is None:
            shard = self.shards[fnv1a_32(pod.encode()) % len(self.shards)]
            self._known.put([pod], [shard])
        return shard
