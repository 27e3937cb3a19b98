"""The handoffs of one engine: it holds blocks for other engines, and reads theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from app.core.base.clock.timer_wheel import TimerWheel
from app.core.engine.engine import EngineParts
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.hashing import Prompt
from app.core.engine.kvcache.stores import ConnectorStore
from app.core.engine.request import EngineRequest
from app.core.engine.sequence import Sequence
from app.core.engine.sequence_pool import SequencePool
from app.core.engine.step_executor import StepExecutor
from app.core.engine.stepped_sequence import SteppedSequence
from app.extensions.handoff.counters import Counters, TransferCounters
from app.extensions.handoff.dialects import Dialect, EarlyDialect, NixlDialect
from app.extensions.handoff.early_reads import EarlyReads
from app.extensions.handoff.late_reads import LateReads
from app.extensions.handoff.leases import Leases
from app.extensions.handoff.links import Links
from app.extensions.handoff.lmcache import ChunkStore
from app.extensions.handoff.messages import (
    MAX_KEYS,
    Done,
    Heartbeat,
    LeaseMessage,
    Lookup,
    Question,
    Read,
    SendAnswer,
    Source,
    Store,
    source_of,
)
from app.extensions.handoff.reads import MAX_WAIT_S, Channel, ReadSettings, RemoteRead
from config.settings import KVCacheSettings

UNKNOWN_ENGINE = "the side channel belongs to another engine"
log = logging.getLogger(__name__)


class Peering(NamedTuple):
    """How other engines know and reach one engine."""

    channel: Channel
    name: Callable[[], str]
    """Returns the id of the engine."""
    model: str
    """Name of the model in the metrics."""
    rank: int = 0
    dialect: Dialect = NixlDialect()
    store: ConnectorStore | None = None
    """The connector's store, in place of that of the cache; None to keep it."""
    store_dialect: Dialect | None = None
    """The second part of a MultiConnector, which answers with figures of the store."""


class Handoffs:
    """The leases, the reads and the side channel of one engine."""

    def __init__(
        self,
        options: KVCacheSettings,
        executor: SequencePool | StepExecutor,
        wheel: TimerWheel,
        *,
        parts: EngineParts,
        peering: Peering,
    ) -> None:
        self.dialect = peering.dialect
        self.parts = [peering.dialect]
        """The connector, or the parts of a MultiConnector."""
        if peering.store_dialect is not None:
            self.parts.append(peering.store_dialect)
        hold_s = options.kv_lease_duration
        wait_s = MAX_WAIT_S
        if isinstance(self.dialect, EarlyDialect):
            hold_s = self.dialect.hold_s or hold_s
            wait_s = self.dialect.wait_s
        counters = Counters()
        if self.dialect.counts_transfers:
            counters = TransferCounters(parts.recorder, peering.model, peering.rank)
        self.executor = executor
        self.recomputes = options.kv_load_failure_policy == "recompute"
        self.name = peering.name
        self.leases = Leases(wheel, parts.clock.now, hold_s, counters)
        self.early_reads = EarlyReads()
        self.links = Links()
        """The links from the engines whose blocks this one reads."""
        self.reads = self.dialect.read_class(
            wheel,
            parts.clock.now,
            channel=peering.channel,
            counters=counters,
            settings=ReadSettings(options.kv_side_channel_timeout, hold_s, wait_s),
            name=peering.name,
        )
        self.block_size = options.block_size
        self._cache = parts.cache
        self._channel = peering.channel
        peering.channel.serve(self._respond, self.reads.answered)

    def announce(self, request: EngineRequest) -> None:
        """Writes into the answer of a prefill where this engine answers."""
        self._channel.open()
        self.dialect.announce(request, self.name(), self._channel.port)

    @property
    def _store(self) -> ConnectorStore | None:
        if self._cache is None:
            return None
        return self._cache.store

    def takes_part(self, request: EngineRequest) -> bool:
        """Returns whether the connector does anything with a request."""
        return any(part.takes_part(request) for part in self.parts)

    def problems(self, request: EngineRequest) -> list[str]:
        """Returns which parameters of a request have no effect."""
        problems = [part.problem(request) for part in self.parts]
        return [problem for problem in problems if problem]

    def expect(self, request: EngineRequest) -> RemoteRead:
        """Returns the read of a request's blocks, whose lease is extended from now on."""
        if isinstance(self.dialect, EarlyDialect) and isinstance(self.reads, LateReads):
            source = self.dialect.lease_source(request)
            if source is not None and source.engine_id == self.name():
                source = None  # a prompt that waits for room would keep its own blocks
            return self.reads.expect_at(partial(self.dialect.locate, request), source)
        return self.reads.expect(source_of(request.source or {}))

    def take_back(self, request: EngineRequest) -> EngineRequest:
        """Returns a request to read blocks, without the read if the blocks are here.

        They are released, and found in the prefix cache: a prompt that waited for room would
        otherwise keep its own blocks.
        """
        source = source_of(request.source or {})
        is_early = isinstance(self.dialect, EarlyDialect)
        if is_early or source is None or source.engine_id != self.name():
            return request
        if self.leases.release(Done(source.request_id, "")):
            return replace(request, source=None)  # the read will fail
        return replace(request, source=None, remote_prefill=False)

    def hold(self, sequence: Sequence, request_id: str) -> None:
        """Starts the lease of a sequence that ends, and takes its blocks."""
        release: Callable[[], None] = _release_nothing
        if self.dialect.holds_blocks:
            release = self._take_blocks(sequence)
        if self.early_reads.is_abandoned(request_id):
            release()
            return
        self.leases.hold(request_id, release)
        waiting = self.early_reads.take(request_id)
        if waiting is not None:
            waiting.reply(self.leases.respond(waiting.message))

    def _take_blocks(self, sequence: Sequence) -> Callable[[], None]:
        """Takes the blocks of a sequence that ends; returns the function that releases them."""
        held = CachedSequence(sequence.prompt_tokens)
        cache = self._cache
        if cache is not None and sequence in cache.running:
            del cache.running[sequence]
            cache.running[held] = None
            held.blocks = sequence.blocks
            sequence.blocks = []
            cache.release(sequence)
        release = partial(self._release, held, sequence.held)
        sequence.held = 0
        return release

    def resume(self, sequence: SteppedSequence, is_complete: bool) -> None:
        """Queues a sequence whose blocks have arrived, or one that computes missing tokens."""
        steps = cast("StepExecutor", self.executor)
        scheduler = steps.scheduler
        tokens = None
        if not is_complete:
            tokens = 0
            if sequence.fetched_tokens:
                tokens = sequence.cached_tokens + sequence.fetched_tokens
        # A read of parts has looked into the pod's own store.
        scheduler.fetched(sequence, tokens, looks_again=not self.dialect.loads_parts)
        steps.wake_now()

    def drop(self, sequence: SteppedSequence) -> None:
        """Frees the blocks of a sequence that was aborted after its last step."""
        if sequence.held:
            steps = cast("StepExecutor", self.executor)
            # The read was given up, so nothing writes into the blocks.
            steps.scheduler.fetched(sequence)
            steps.scheduler.release(sequence)
            steps.wake_now()

    def _release(self, held: CachedSequence, count: int) -> None:
        executor = self.executor
        if executor.blocks is not None:
            executor.blocks.release(cast("Any", held), count, 0)
        if isinstance(executor, StepExecutor):
            executor.wake_now()
        elif executor.queue.members:
            executor.fill()

    def _respond(self, question: Question, send: SendAnswer) -> str:
        if question.engine_id not in ("", self.name()):
            return UNKNOWN_ENGINE
        message = question.message
        if isinstance(message, Lookup):
            return str(self._stored_blocks(message.keys))
        if isinstance(message, Store):
            self._receive(message.keys)
            return ""
        is_early = isinstance(self.dialect, EarlyDialect) and not self._holds(message)
        if is_early and isinstance(message, Read):
            return self.early_reads.wait(message, send)
        if is_early and isinstance(message, Done):
            self.early_reads.abandon(message)
        return self.leases.respond(message)

    def send_chunks(self, receiver: Source, prompt: Prompt) -> None:
        """Copies a prompt into the store of another engine."""
        store = self._store
        if not isinstance(store, ChunkStore):
            return
        keys = store.keys(prompt)
        is_sent = True
        for start in range(0, len(keys), MAX_KEYS):
            part = Store(keys[start : start + MAX_KEYS])
            is_sent &= self._channel.send(receiver.host, receiver.port, Question(0, "", part))
        if not is_sent:
            log.warning("the LMCache receiver at %s cannot be reached", receiver)

    def _receive(self, keys: ListOf[bytes]) -> None:
        store = self._store
        if isinstance(store, ChunkStore):
            store.receive(keys)

    def _holds(self, message: LeaseMessage) -> bool:
        return not isinstance(message, Heartbeat) and message.request_id in self.leases

    def _stored_blocks(self, keys: ListOf[bytes]) -> int:
        """Returns the number of leading keys that the connector's store has."""
        store = self._store
        if store is None:
            return 0
        return store.count(keys)


def _release_nothing() -> None:
    """Releases the blocks of a prefill that were copied."""
