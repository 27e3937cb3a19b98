"""From a published message to the index:

queues by pod, batches in order, gaps filled by replays.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import closing
from typing import NamedTuple

import gevent
import zmq
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from gevent.select import POLLIN, poll
from msgspec import Struct, field

from app.base.clock.pause import Pace, pause_if_possible
from app.engine.kvcache.events import is_ipv6, of_rank
from app.engine.kvcache.hashing import fnv1a_32
from app.engine.kvcache.replay import END
from app.engine.kvcache.sockets import affinity
from app.kvindex.backend import BackendUnavailable, IndexedEngine
from app.kvindex.decoding import PodBatch, Unreadable, decode
from app.kvindex.index import Index

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""Longest work before other greenlets run, in seconds; checked between messages."""
MOST_PODS = 10_240
"""Most pods of an index; one process cannot keep up with more."""
BACK_OFF_S = 0.1, 5.0
"""Seconds between two attempts while the backend does not answer: the first, and the longest."""
WAITING_S, PLACE_S = 0.02, 1.0
"""Longest waits for a replay's next message, and for a place, in seconds, before limits are
checked.
"""
REMEMBERED = 64
"""Most missing batches of an engine that are still applied when they come late."""
MESSAGE_BYTES = 400
"""Memory of a message besides its payload, in bytes, with a topic of usual length."""


class PublishedMessage(Struct, frozen=True, gc=False):
    """A published batch, and the address that replays earlier batches.

    `payload` is None where it was too large to keep. With `per_rank`, `replay` is the address of
    rank 0. `topic` is None for a message without a socket.
    """

    pod: str
    model: str
    sequence: int
    payload: bytes | None
    replay: str | None = None
    per_rank: bool = False
    topic: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES + len(self.payload or b"")


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Limits of the pool's queues, pods, engines and replays.

    `most_messages` limits each queue, `most_bytes` all queues together. Above `most_pods`, a new
    pod replaces the pod with the oldest latest message. Above `most_engines`, a new engine is
    refused. Payloads above `most_payload_bytes` are not read.

    At most `most_replays` run. A replay fails after `replay_idle_s` seconds without an answer,
    after `replay_total_s` seconds in total, and when messages held back meanwhile take more than
    `most_held_bytes` of one engine, or `most_all_held_bytes`. The engine is then asked for nothing
    for `cool_down_s` seconds. A batch above `most_answer_bytes` ends a replay's connection.
    """

    shards: int = 4
    most_messages: int = 10_000
    most_bytes: int = 1 << 30
    most_payload_bytes: int = 1 << 20
    most_pods: int = MOST_PODS
    most_engines: int = 1 << 16
    most_replays: int = 8
    replay_idle_s: float = 2.0
    replay_total_s: float = 120.0
    most_held_bytes: int = 32 << 20
    most_all_held_bytes: int = 256 << 20
    cool_down_s: float = 30.0
    most_answer_bytes: int = 128 << 20


class Position(Struct, frozen=True, rename={"sequence": "last_sequence", "lag_s": "lag_seconds"}):
    """Progress of an engine's stream; `lag_s` is the age of its latest batch when applied, in
    seconds.
    """

    pod: str
    model: str
    rank: int
    sequence: int | None
    lag_s: float


class Shard(Struct, eq=False):
    """A queue of messages, with one greenlet as its worker. A pod without a message is gone."""

    queue: deque[tuple[Pod, PublishedMessage | None]] = field(default_factory=deque)
    wake: Event = field(default_factory=Event)
    """Set when a message is added."""
    size_bytes: int = 0

    def add(self, pod: Pod, message: PublishedMessage | None) -> None:
        self.queue.append((pod, message))
        self.size_bytes += 0 if message is None else message.size_bytes
        self.wake.set()


class Pod(Struct, eq=False):
    name: str
    shard: Shard
    streams: dict[IndexedEngine, EngineStream] = {}


class Pool:
    """Applies messages to an index, in order for each pod; a hash of the pod's name chooses the
    shard.
    """

    def __init__(
        self,
        index: Index,
        settings: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`now` is monotonic, `wall` since 1970, and `clock` measures work, all in seconds."""
        self.index, self.settings, self.now, self.wall = index, settings, now, wall
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        """Context of sockets for replays; without one, no replay starts."""
        self.shards = [Shard() for _ in range(settings.shards)]
        self.held_bytes = 0
        """Memory of the messages held back during replays, in bytes."""
        self.places = BoundedSemaphore(settings.most_replays)
        """Places for replays; further streams wait."""
        self.pace = Pace(clock, SLICE_S, pause_if_possible)
        self._pods: OrderedDict[str, Pod] = OrderedDict()
        """Pods by name, in the order of their latest messages."""
        self._engines = 0

    def __len__(self) -> int:
        return sum(len(shard.queue) for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Memory of waiting messages, in bytes: in queues, and held back during replays."""
        return sum(shard.size_bytes for shard in self.shards) + self.held_bytes

    @property
    def limit_bytes(self) -> int:
        return self.settings.most_bytes + self.settings.most_all_held_bytes

    @property
    def full(self) -> bool:
        """True if any queue has no room; messages should then stay in the sockets."""
        most, most_bytes = self.settings.most_messages, self.settings.most_bytes // len(self.shards)
        return any(
            [len(shard.queue) >= most or shard.size_bytes >= most_bytes for shard in self.shards]
        )

    def put(self, message: PublishedMessage) -> str | None:
        """Queues a message; returns the pod that is forgotten to make room, if any."""
        self.index.metrics.received.inc()
        name = message.pod
        pod = self._pods.get(name)
        if pod is not None:
            self._pods.move_to_end(name)
            pod.shard.add(pod, message)
            return None
        pod = self._pods[name] = Pod(name, self.shards[fnv1a_32(name.encode()) % len(self.shards)])
        pod.shard.add(pod, message)
        if len(self._pods) <= self.settings.most_pods:
            return None
        longest_silent = next(iter(self._pods))
        self.gone(longest_silent)
        self.index.metrics.crowded_out.inc()
        return longest_silent

    def gone(self, name: str) -> None:
        """Forgets a pod, after its queued messages."""
        pod = self._pods.pop(name, None)
        if pod is not None:
            pod.shard.add(pod, None)

    def run(self, shard: Shard) -> None:
        while True:
            shard.wake.wait()
            self.work(shard)

    def work(self, shard: Shard) -> None:
        """Handles all messages of a shard; waits while the backend does not answer."""
        shard.wake.clear()
        wait_s = BACK_OFF_S[0]
        while shard.queue:
            pod, message = shard.queue[0]
            try:
                if message is None:
                    self._forget(pod)
                else:
                    self._apply(pod, message)
            except BackendUnavailable as error:
                wait_s = self.back_off(error, wait_s)
                continue
            except Exception:  # only this message is lost
                log.exception("a message of pod %s is left out", pod.name)
                self.index.metrics.skip_message("failed")
            shard.queue.popleft()
            shard.size_bytes -= 0 if message is None else message.size_bytes
            wait_s = BACK_OFF_S[0]
            if shard.queue:
                self.pace()

    def back_off(self, error: BackendUnavailable, wait_s: float) -> float:
        """Waits for the backend; returns the next wait, in seconds. A step may then be repeated."""
        if wait_s == BACK_OFF_S[0]:  # once for each outage
            log.warning("KV events wait, and scores are 503: %s", error)
        gevent.sleep(wait_s)
        return min(2 * wait_s, BACK_OFF_S[1])

    def positions(self) -> list[Position]:
        return [
            Position(source.pod, source.model, source.rank, stream.applied, stream.lag_s)
            for pod in self._pods.values()
            for source, stream in pod.streams.items()
        ]

    def close(self) -> None:
        """Ends all replays."""
        leaving = [pod for shard in self.shards for pod, _ in shard.queue]
        for pod in (*self._pods.values(), *leaving):
            for stream in pod.streams.values():
                stream.close()

    def _forget(self, pod: Pod) -> None:
        for stream in pod.streams.values():
            stream.close()
        self._engines -= len(pod.streams)
        pod.streams.clear()
        self.index.clear(pod.name)

    def _apply(self, pod: Pod, message: PublishedMessage) -> None:
        try:
            batch = decode(message.payload)
            source = IndexedEngine(message.pod, message.model, batch.rank)
            stream = pod.streams.get(source)
            if stream is None:
                if self._engines >= self.settings.most_engines:
                    self.index.metrics.skip_message("too_many_pods")
                    return
                stream = pod.streams[source] = EngineStream(self, source)
                self._engines += 1
            stream.receive(message, batch)
        except Unreadable as error:
            self.index.metrics.skip_message(error.reason)
            # Its number is skipped for the pod's first engine that awaits this number.
            awaiting = (
                it for it in pod.streams.values() if not it.held and it.next == message.sequence
            )
            if (stream := next(awaiting, None)) is not None:
                stream.skip(message.sequence)


class EngineStream:
    """The stream of one engine; holds messages back while a replay brings earlier batches.

    A number at or below the last one is late if its batch was missing, and a repetition if its time
    is not new. Otherwise the engine has restarted its numbers.

    A step that raises BackendUnavailable may be repeated: no batch is applied twice or lost.
    """

    def __init__(self, pool: Pool, source: IndexedEngine) -> None:
        """May raise BackendUnavailable."""
        self._pool, self._source, self._index = pool, source, pool.index
        self._epoch = self._index.backend.epoch
        known = self._index.backend.position(source)
        self.applied = None if known is None else known.sequence
        """The highest number applied, by any indexer."""
        self._last_ts = 0.0 if known is None else known.ts
        self._missing: tuple[int, ...] = ()
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch; the two clocks may differ.
        """
        self.held: list[tuple[PublishedMessage, float]] = []
        """Messages that wait for a replay, with their time.

        A list: an empty deque takes 700 bytes.
        """
        self._held_bytes = 0
        self._catching_up: gevent.Greenlet[..., None] | None = None
        self._asked: int | None = None
        """The first number of the latest replay; a replay from there is not asked for again."""
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def next(self) -> int:
        """The next expected number. An engine's first number is 0."""
        return 0 if self.applied is None else self.applied + 1

    def receive(self, message: PublishedMessage, batch: PodBatch) -> None:
        """Applies a message, or holds the message back until a replay has brought earlier batches."""
        self._notice_loss()
        if not self.held:
            if self._is_repeated(message.sequence, batch.ts):
                self._index.metrics.skip_message("duplicate")
                return
            if message.sequence <= self.next or not self._can_ask(message):
                self._apply(message.sequence, batch)
                return
            self._asked = None
            if self._catching_up is None or self._catching_up.dead:
                self._catching_up = gevent.spawn(self._catch_up)
        self.held.append((message, batch.ts))
        self._hold(message.size_bytes)

    def skip(self, sequence: int) -> None:
        """Skips the next number if its message cannot be used."""
        if self.applied is not None and sequence == self.next:
            self.applied = sequence

    def close(self) -> None:
        """Ends a replay, and drops the messages held back."""
        if self._catching_up is not None:
            self._catching_up.kill()
        self.held.clear()
        self._hold(-self._held_bytes)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._pool.held_bytes += size

    def _notice_loss(self) -> None:
        """After a loss of the backend's data, starts anew: all batches are asked for again."""
        epoch, self._epoch = self._epoch, self._index.backend.epoch
        if epoch and epoch != self._epoch:
            self._restart()

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
        self.applied, self._last_ts, self._missing, self._asked = None, 0.0, (), None

    def _can_ask(self, message: PublishedMessage) -> bool:
        possible = self._pool.context is not None and self._pool.now() >= self._cool_until
        return possible and self._address(message) is not None

    def _address(self, message: PublishedMessage) -> str | None:
        address, rank = message.replay, self._source.rank
        if address is None or not message.per_rank or not rank:
            return address
        try:
            return of_rank(address, rank) if rank > 0 else None
        except ValueError:
            return None

    def _apply(self, sequence: int, batch: PodBatch) -> None:
        self._index.ingest(self._source, batch, sequence, self._restarting)
        self._restarting = False
        if sequence < self.next:
            self._missing = tuple(number for number in self._missing if number != sequence)
        else:
            if missing := sequence - self.next:
                self._index.metrics.skip_message("gap", missing)
                if self.applied is not None:
                    late = range(max(self.next, sequence - REMEMBERED), sequence)
                    self._missing = (*self._missing, *late)[-REMEMBERED:]
            self.applied = sequence
        self._last_ts = max(self._last_ts, batch.ts)
        self.lag_s = self._pool.wall() - batch.ts

    def _catch_up(self) -> None:
        """Greenlet:

        applies the messages held back, each after a replay of the missing batches before it.
        """
        wait_s = BACK_OFF_S[0]
        while self.held:
            try:
                self._take_held()
                wait_s = BACK_OFF_S[0]
            except BackendUnavailable as error:
                wait_s = self._pool.back_off(error, wait_s)
            except Exception:
                log.exception("a message of pod %s is left out", self._source.pod)
                self._index.metrics.skip_message("failed")
                self._hold(-self.held.pop(0)[0].size_bytes)
            self._pool.pace()

    def _take_held(self) -> None:
        """Asks for batches missing before the first message held back; applies the message if none
        are.
        """
        self._notice_loss()
        message, ts = self.held[0]
        repeated = self._is_repeated(message.sequence, ts)
        start, epoch = self.next, self._epoch
        if message.sequence > start and start != self._asked and self._can_ask(message):
            is_complete = self._replay(message)
            if epoch == self._epoch:  # otherwise all is asked for again
                self._asked = start
                self._index.metrics.replayed(is_complete)
                if not is_complete:
                    self._cool_until = self._pool.now() + self._pool.settings.cool_down_s
            return
        if not repeated:
            self._apply(message.sequence, decode(message.payload))
        del self.held[0]
        self._hold(-message.size_bytes)

    def _replay(self, message: PublishedMessage) -> bool:
        """Applies what a replay brings; True if complete. `message` has the address, and waits."""
        pool, epoch = self._pool, self._epoch
        while not pool.places.acquire(timeout=PLACE_S):
            if self._holds_too_much:
                return False
        address = self._address(message) or ""
        try:
            with closing(replayed(pool, address, self.next)) as batches:
                for batch in batches:
                    if self._holds_too_much or epoch != self._epoch:
                        return False
                    if batch is not None:
                        self._take_replayed(batch, message.topic)
                        pool.pace()
            return True
        except (zmq.ZMQError, TimeoutError):
            return False
        except ForeignReplay:
            self._index.metrics.skip_message("foreign_replay")
            text = "KV events: %s is not the replay address of %s, or not of its rank %d"
            log.warning(text, address, self._source.pod, self._source.rank)
            return False
        finally:
            pool.places.release()

    @property
    def _holds_too_much(self) -> bool:
        pool, limits = self._pool, self._pool.settings
        return (
            self._held_bytes > limits.most_held_bytes
            or pool.held_bytes > limits.most_all_held_bytes
        )

    def _take_replayed(self, replayed: Replayed, topic: bytes | None) -> None:
        if topic and replayed.topic and replayed.topic != topic:
            raise ForeignReplay
        if replayed.sequence < self.next:
            return
        try:
            batch = decode(replayed.payload)
        except Unreadable as error:
            self._index.metrics.skip_message(error.reason)
            self.skip(replayed.sequence)
            return
        if batch.rank != self._source.rank:
            raise ForeignReplay
        self._apply(replayed.sequence, batch)


class ForeignReplay(Exception):
    """Raised for a batch of a replay from another pod or rank."""


class Replayed(NamedTuple):
    """A batch of a replay; vLLM up to 0.25 sends no topic."""

    sequence: int
    payload: bytes | None
    topic: bytes = b""


def replayed(pool: Pool, endpoint: str, start: int) -> Generator[Replayed | None, None, None]:
    """Asks vLLM's replay socket for all batches from number `start` on; yields None before each
    wait.

    Raises ZMQError for an invalid endpoint, and TimeoutError.
    """
    assert pool.context is not None
    limits, begun_s = pool.settings, pool.now()
    idle_until_s = begun_s + limits.replay_idle_s
    with pool.context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.maxmsgsize = limits.most_answer_bytes
        socket.ipv6 = is_ipv6(endpoint)
        socket.affinity = affinity(pool.context, endpoint)
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        readable = poll()
        readable.register(socket.fileno(), POLLIN)
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if pool.now() >= min(idle_until_s, begun_s + limits.replay_total_s):
                    raise TimeoutError from None
                yield None
                readable.poll(WAITING_S * 1000)
                continue
            idle_until_s = pool.now() + limits.replay_idle_s
            if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != len(END):
                continue
            if frames[-2] == END:
                return
            payload = frames[-1] if len(frames[-1]) <= limits.most_payload_bytes else None
            topic = frames[1] if len(frames) == 4 else b""
            yield Replayed(int.from_bytes(frames[-2], "big"), payload, topic)
