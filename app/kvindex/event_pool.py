"""The event pool: messages in queues by pod, so that pods go on side by side and each one in its order."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from app.kvindex.backend import BackendUnavailable, Steps, with_pauses
from app.kvindex.batches import Unreadable, decode_whole, decoding
from app.kvindex.feed import FEED_BYTES, Feed, Message
from app.kvindex.holders import Source
from app.kvindex.index import Index
from app.kvindex.keys import fnv1a_32
from app.kvindex.replay_client import Replays
from app.kvindex.stream import Stream

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""After so long a step ends, as soon as it can."""
MOST_A_ROUND = 64
"""Messages between two looks at replays."""
MOST_PODS = 10_240
"""More than one process keeps up with: each is 3 KB here and in the index."""
POD_BYTES = 2200
"""What is remembered of a pod, with the longest name that a topic may have."""
BACK_OFF_S = 0.1, 5.0
"""Between two attempts while the backend does not answer: the first time, and at most."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Queues of the pool, what they may hold, and how many pods' and engines' streams it follows.

    `most_messages` is for each queue, `most_bytes` for all of them. A pod more than `most_pods` takes the
    place of the one that was silent for longest; an engine more than `most_engines` is refused. Payloads
    above `most_payload_bytes` are not decoded.
    """

    shards: int = 4
    most_messages: int = 10_000
    most_bytes: int = 1 << 30
    most_payload_bytes: int = 16 << 20
    most_pods: int = MOST_PODS
    most_engines: int = 1 << 16


class Gone(Struct, frozen=True):
    """A pod is no more."""

    pod: str


class TooLarge(Struct, frozen=True):
    """A message that is not kept."""

    pod: str
    sequence: int


Task: TypeAlias = Message | Gone | TooLarge


class Position(Struct, frozen=True, rename={"sequence": "last_sequence", "lag_s": "lag_seconds"}):
    """How far an engine's events have come: the last number, and how old the batch was on its arrival.

    In JSON, by the names of `GET /kv/index`.
    """

    pod: str
    model: str
    rank: int
    sequence: int | None
    lag_s: float


class Shard:
    """One queue, worked off by one thread or greenlet."""

    def __init__(
        self,
        index: Index,
        replays: Replays,
        settings: PoolSettings,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.wake = threading.Event()
        """Set when there is something to do."""
        self.size_bytes = 0
        self.limit_bytes = settings.most_bytes // settings.shards
        self._index, self._replays, self._settings = index, replays, settings
        self._wall, self._clock = wall, clock
        self._queue: deque[Task] = deque()
        self._feeds: dict[Source, Feed] = {}
        self._by_pod: dict[str, dict[Source, Feed]] = {}
        self._busy: dict[Source, Feed] = {}
        self._round: Iterator[None] | None = None
        self._replayed = 0
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
        """Whether there is something to do later: a replay runs, or the backend is away."""
        return bool(self._queue or self._busy)

    @property
    def engines(self) -> int:
        """How many engines' streams are followed."""
        return len(self._feeds)

    def put(self, task: Task) -> None:
        """Queue a message; the caller has looked whether there is room."""
        if isinstance(task, Message) and len(task.payload) > self._settings.most_payload_bytes:
            task = TooLarge(task.pod, task.sequence)
        self._queue.append(task)
        self.size_bytes += task.size_bytes if isinstance(task, Message) else 0
        self.wake.set()

    def step(self, now: float) -> bool:
        """Work for about `SLICE_S`; whether there is more to do at once. `now` is monotonic, in seconds."""
        self.wake.clear()
        if now < self._rest_until:
            return False
        until = self._clock() + SLICE_S
        work = self._round = self._round or self._work(now)
        try:
            for _ in work:
                if self._clock() >= until:
                    return True
        except BackendUnavailable as error:
            if self._rest_s == BACK_OFF_S[0]:  # once for each time that it is away
                log.warning("KV events wait, and scores are 503: %s", error)
            self._round = None
            self._rest_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, BACK_OFF_S[1])
            return False
        self._round = None
        self._rest_s = BACK_OFF_S[0]
        return bool(self._queue or self._replayed)

    def positions(self) -> list[Position]:
        return [
            Position(source.pod, source.model, source.rank, feed.stream.applied, feed.lag_s)
            for source, feed in with_pauses(list(self._feeds.items()))
        ]

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _work(self, now: float) -> Steps[None]:
        """A look at replays, and then some of what waits."""
        self._notice_loss()
        self._replayed = 0
        for source, feed in list(self._busy.items()):
            self._replayed += yield from feed.stepping(now)
            if not feed.busy:
                self._busy.pop(source, None)
        for _ in range(min(len(self._queue), MOST_A_ROUND)):
            if self._epoch != self._index.backend.epoch:
                self._notice_loss()
            task = self._queue[0]
            match task:
                case Message():
                    yield from self._message(task, now)
                    self.size_bytes -= task.size_bytes
                case Gone():
                    yield from self._gone(task.pod)
                case TooLarge():
                    self._index.losses.message("too_large")
                    self._skip(task)
            self._queue.popleft()
            yield

    def _notice_loss(self) -> None:
        """When the backend has lost everything, all streams begin anew."""
        epoch = self._index.backend.epoch
        if self._epoch not in ("", epoch):
            for feed in self._feeds.values():
                feed.forget()
        self._epoch = epoch

    def _message(self, message: Message, now: float) -> Steps[None]:
        """A message that cannot be dealt with must not keep the others from theirs."""
        try:
            batch = decode_whole(message.payload) or (yield from decoding(message.payload))
            source = Source(message.pod, message.model, batch.rank)
            feed = self._feed(source)
            if feed is not None:
                yield from feed.receive(message, batch, now)
                if feed.busy:
                    self._busy[source] = feed
        except Unreadable:
            self._index.losses.message("unreadable")
            self._skip(message)
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a message of pod %s is left out", message.pod)
            self._index.losses.message("failed")

    def _feed(self, source: Source) -> Feed | None:
        feed = self._feeds.get(source)
        if feed is None and len(self._feeds) >= self._settings.most_engines // self._settings.shards:
            self._index.losses.message("too_many_pods")
        elif feed is None:
            known = self._index.backend.position(source)
            stream = Stream() if known is None else Stream(known.sequence, known.ts)
            feed = self._feeds[source] = Feed(self._index, source, stream, self._replays, self._wall)
            self._by_pod.setdefault(source.pod, {})[source] = feed
        return feed

    def _skip(self, message: Message | TooLarge) -> None:
        """A message that cannot be read does not tell its rank: it belongs to whoever awaits its number."""
        for feed in self._by_pod.get(message.pod, {}).values():
            if not feed.busy and feed.stream.applied == message.sequence - 1:
                feed.stream.skip(message.sequence)
                return

    def _gone(self, pod: str) -> Steps[None]:
        yield from self._index.clearing(pod)
        for source, feed in self._by_pod.pop(pod, {}).items():
            feed.close()
            del self._feeds[source]
            self._busy.pop(source, None)


class Pool:
    """Shards, chosen by pod."""

    def __init__(
        self,
        index: Index,
        replays: Replays,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`wall` gives seconds since 1970, `clock` those that work takes. ValueError without shards."""
        if settings.shards < 1:
            raise ValueError("the pool needs a queue")
        self.replays = replays
        self.shards = [Shard(index, replays, settings, wall, clock) for _ in range(settings.shards)]
        self._metrics, self._settings = index.metrics, settings
        self._pods: OrderedDict[str, Shard] = OrderedDict()

    def __len__(self) -> int:
        """Messages that wait."""
        return sum(map(len, self.shards))

    @property
    def size_bytes(self) -> int:
        """What waits, here and for replays, and what is remembered of pods and engines."""
        waits = sum(shard.size_bytes for shard in self.shards) + self.replays.size_bytes
        engines = sum(shard.engines for shard in self.shards)
        return waits + POD_BYTES * len(self._pods) + FEED_BYTES * engines

    @property
    def limit_bytes(self) -> int:
        settings = self._settings
        known = POD_BYTES * settings.most_pods + FEED_BYTES * settings.most_engines
        return settings.most_bytes + self.replays.limit_bytes + known

    @property
    def full(self) -> bool:
        """Whether a queue has no room: messages should wait where they are."""
        return any([shard.full for shard in self.shards])

    def put(self, message: Message) -> str | None:
        """Queue a message; the pod that is forgotten to make room for this one, if any."""
        self._metrics.received()
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
        self._metrics.crowded_out()
        return longest_silent

    def gone(self, pod: str) -> None:
        """Forget a pod, after what it has published."""
        self._pods.pop(pod, None)
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
        return self.shards[fnv1a_32(pod.encode()) % len(self.shards)]
