"""The stream of one engine: batches in order, gaps filled by replays."""

from __future__ import annotations

from contextlib import closing

import gevent
import zmq

from app.core.engine.kvcache.publishing import of_rank
from app.extensions.kv_index.backend import BackendUnavailableError
from app.extensions.kv_index.decoding import PodBatch, UnreadableBatchError, decode
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.replay import ForeignReplayError, ReplayedBatch, request_replay
from app.extensions.kv_index.resources import StreamResources, wait_for_backend

SLOT_WAIT_S = 1.0
"""Maximum wait for a replay slot, in seconds, before limits are checked."""
MAX_MISSING = 64
"""Maximum number of an engine's missing batches that are still applied when they arrive late."""

MAX_GAP = 1 << 20
"""Longest gap whose batches are counted one by one.

A longer one is a jump of the engine's numbers: publishers keep 10,000 batches, and this many take
17 minutes at a thousand a second.
"""


class EngineStream:
    """The stream of one engine; delays messages while a replay brings earlier batches.

    A number at or below the last one is late if its batch was missing, and a repetition if its time
    is not new. Otherwise the engine has restarted its numbers.

    A step that raises BackendUnavailableError may be repeated: no batch is applied twice or lost.
    """

    def __init__(self, resources: StreamResources, source: IndexedEngine) -> None:
        """May raise BackendUnavailableError."""
        self._resources = resources
        self._source = source
        self._index = resources.index
        self._epoch = self._index.backend.epoch
        self.last_sequence: int | None = None
        """The highest number applied, by any indexer."""
        self._last_ts = 0.0
        position = self._index.backend.position(source)
        if position is not None:
            self.last_sequence = position.sequence
            self._last_ts = position.ts
        self._missing: tuple[int, ...] = ()
        self.lag_s = 0.0
        """Seconds from publication to application of the latest batch.

        The two clocks may differ.
        """
        self.waiting: list[tuple[PublishedMessage, float]] = []
        """Messages that wait for a replay, with the time of their batches.

        A list: an empty deque takes 700 bytes.
        """
        self._waiting_bytes = 0
        self._catch_up_greenlet: gevent.Greenlet[..., None] | None = None
        self._replay_start: int | None = None
        """The first number of the latest replay, which is not requested a second time."""
        self._cool_until = float("-inf")
        self._restarting = False

    @property
    def next_sequence(self) -> int:
        """The next expected number. An engine's first number is 0."""
        return 0 if self.last_sequence is None else self.last_sequence + 1

    def receive(self, message: PublishedMessage, batch: PodBatch) -> None:
        """Applies a message, or delays it until a replay has brought earlier batches."""
        self._check_epoch()
        if not self.waiting:
            if self._is_repeated(message.sequence, batch.ts):
                self._index.metrics.skip_message("duplicate")
                return
            if message.sequence <= self.next_sequence or not self._can_replay(message):
                self._apply(message.sequence, batch)
                return
            self._replay_start = None
            if self._catch_up_greenlet is None or self._catch_up_greenlet.dead:
                self._catch_up_greenlet = gevent.spawn(self._catch_up)
        self.waiting.append((message, batch.ts))
        self._count_waiting(message.size_bytes)

    def skip(self, sequence: int) -> None:
        """Skips the next number if its message cannot be used."""
        if self.last_sequence is not None and sequence == self.next_sequence:
            self.last_sequence = sequence

    def close(self) -> None:
        """Ends a replay, and drops the messages that wait for it."""
        if self._catch_up_greenlet is not None:
            self._catch_up_greenlet.kill()
        self.waiting.clear()
        self._count_waiting(-self._waiting_bytes)

    def _count_waiting(self, size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self._resources.waiting_bytes += size_bytes

    def _check_epoch(self) -> None:
        """Restarts after a loss of the backend's data: all batches are requested again."""
        previous = self._epoch
        self._epoch = self._index.backend.epoch
        if previous and previous != self._epoch:
            self._restart()

    def _is_repeated(self, sequence: int, ts: float) -> bool:
        """Returns True for a batch that was applied before; detects a restart of the engine."""
        if sequence >= self.next_sequence or sequence in self._missing:
            return False
        if ts <= self._last_ts:
            return True
        self._index.metrics.restarts.inc()
        self._restart()
        self._restarting = True
        return False

    def _restart(self) -> None:
        self.last_sequence = None
        self._last_ts = 0.0
        self._missing = ()
        self._replay_start = None

    def _can_replay(self, message: PublishedMessage) -> bool:
        if self._resources.context is None or self._resources.now() < self._cool_until:
            return False
        return self._replay_address(message) is not None

    def _replay_address(self, message: PublishedMessage) -> str | None:
        address = message.replay
        rank = self._source.rank
        if address is None or not message.per_rank or not rank:
            return address
        if rank < 0:
            return None
        try:
            return of_rank(address, rank)
        except ValueError:
            return None

    def _apply(self, sequence: int, batch: PodBatch) -> None:
        self._index.ingest(self._source, batch, sequence, self._restarting)
        self._restarting = False
        next_sequence = self.next_sequence
        if sequence < next_sequence:
            self._missing = tuple(number for number in self._missing if number != sequence)
        else:
            if sequence > next_sequence:
                self._record_gap(next_sequence, sequence)
            self.last_sequence = sequence
        self._last_ts = max(self._last_ts, batch.ts)
        self.lag_s = self._resources.wall() - batch.ts

    def _record_gap(self, start: int, end: int) -> None:
        count = end - start
        self._index.metrics.skip_message("gap", count if count <= MAX_GAP else 1)
        if self.last_sequence is not None:
            latest = range(max(start, end - MAX_MISSING), end)
            self._missing = (*self._missing, *latest)[-MAX_MISSING:]

    def _catch_up(self) -> None:
        """Applies the waiting messages, each after a replay of the batches missing before it."""
        wait_s: float | None = None
        while self.waiting:
            try:
                self._process_waiting()
                wait_s = None
            except BackendUnavailableError as error:
                wait_s = wait_for_backend(error, wait_s)
            except Exception:
                self._resources.warnings.warning(
                    "skipped a message from pod %s", self._source.pod, exc_info=True
                )
                self._index.metrics.skip_message("failed")
                message, _ = self.waiting.pop(0)
                self._count_waiting(-message.size_bytes)
            self._resources.pace()

    def _process_waiting(self) -> None:
        """Requests the batches missing before the first waiting message, or applies the message."""
        self._check_epoch()
        message, ts = self.waiting[0]
        is_repeated = self._is_repeated(message.sequence, ts)
        start = self.next_sequence
        is_requested = start == self._replay_start
        if message.sequence > start and not is_requested and self._can_replay(message):
            self._fill_gap(start, message)
            return
        if not is_repeated:
            self._apply(message.sequence, decode(message.payload))
        del self.waiting[0]
        self._count_waiting(-message.size_bytes)

    def _fill_gap(self, start: int, message: PublishedMessage) -> None:
        epoch = self._epoch
        is_complete = self._replay(message)
        if epoch != self._epoch:  # all batches are requested again
            return
        self._replay_start = start
        self._index.metrics.record_replay(is_complete)
        if not is_complete:
            self._cool_until = self._resources.now() + self._resources.settings.cool_down_s

    def _replay(self, message: PublishedMessage) -> bool:
        """Applies the batches of a replay at the message's address; returns True if complete."""
        resources = self._resources
        epoch = self._epoch
        while not resources.replay_slots.acquire(timeout=SLOT_WAIT_S):
            if self._exceeds_limits:
                return False
        address = self._replay_address(message) or ""
        try:
            with closing(request_replay(resources, address, self.next_sequence)) as batches:
                for batch in batches:
                    if self._exceeds_limits or epoch != self._epoch:
                        return False
                    if batch is not None:
                        self._apply_replayed(batch, message.topic)
                        resources.pace()
            return True
        except (zmq.ZMQError, TimeoutError):
            return False
        except ForeignReplayError:
            self._index.metrics.skip_message("foreign_replay")
            resources.warnings.warning(
                "KV events: %s is not the replay address of %s for rank %d",
                address,
                self._source.pod,
                self._source.rank,
            )
            return False
        finally:
            resources.replay_slots.release()

    @property
    def _exceeds_limits(self) -> bool:
        """True if too many messages wait for replays."""
        settings = self._resources.settings
        return (
            self._waiting_bytes > settings.max_waiting_bytes
            or self._resources.waiting_bytes > settings.max_total_waiting_bytes
        )

    def _apply_replayed(self, replayed: ReplayedBatch, topic: bytes | None) -> None:
        if topic and replayed.topic and replayed.topic != topic:
            raise ForeignReplayError
        if replayed.sequence < self.next_sequence:
            return
        try:
            batch = decode(replayed.payload)
        except UnreadableBatchError as error:
            self._index.metrics.skip_message(error.reason)
            self.skip(replayed.sequence)
            return
        if batch.rank != self._source.rank:
            raise ForeignReplayError
        self._apply(replayed.sequence, batch)
