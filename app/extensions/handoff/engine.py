"""The simulated engine that hands over KV caches to other engines, and takes over theirs.

Start with `HandoffEngine`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from app.core.base.clock.timer_wheel import TimerWheel
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.outputs import Emit
from app.core.engine.profile import Profile
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sections import EngineSections
from app.core.engine.sequence import Handle
from app.core.engine.sequence_pool import SequencePool
from app.core.engine.step_cost import CostModel
from app.core.engine.step_executor import StepExecutor
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.counters import TransferCounters
from app.extensions.handoff.leases import Leases
from app.extensions.handoff.messages import Done, Question, source_of
from app.extensions.handoff.reads import Channel, Reads, ReadSettings
from app.extensions.handoff.sequences import HandoffPart, SteppedHandoff, TimedHandoff
from config.settings import KVCacheSettings

UNKNOWN_ENGINE = "the side channel belongs to another engine"


class Peering(NamedTuple):
    """How other engines know and reach one engine."""

    channel: Channel
    name: Callable[[], str]
    """Returns the id of the engine."""
    model: str
    """Name of the model in the metrics."""
    rank: int = 0


class Handoffs:
    """The leases, the reads and the side channel of one engine."""

    def __init__(
        self,
        options: KVCacheSettings,
        engine: HandoffEngine,
        parts: EngineParts,
        peering: Peering,
    ) -> None:
        wheel: TimerWheel = engine.wheel
        counters = TransferCounters(parts.recorder, peering.model, peering.rank)
        self.executor = engine.executor
        self.recomputes = options.kv_load_failure_policy == "recompute"
        self.name = peering.name
        self.leases = Leases(wheel, parts.clock.now, options.kv_lease_duration, counters)
        self.reads = Reads(
            wheel,
            parts.clock.now,
            channel=peering.channel,
            counters=counters,
            settings=ReadSettings(options.kv_side_channel_timeout, options.kv_lease_duration),
            name=peering.name,
        )
        self._cache = parts.cache
        self._channel = peering.channel
        peering.channel.serve(self._respond, self.reads.answered)

    def announce(self, address: KVTransferParams) -> None:
        """Writes into `address` where this engine answers."""
        self._channel.open()
        address.remote_engine_id = self.name()
        address.remote_port = self._channel.port

    def take_back(self, request: EngineRequest) -> EngineRequest:
        """Returns a request to read blocks, without the read if the blocks are here.

        They are released, and found in the prefix cache: a prompt that waited for room would
        otherwise keep its own blocks.
        """
        source = source_of(request.source or {})
        if source is None or source.engine_id != self.name():
            return request
        if self.leases.release(Done(source.request_id, "")):
            return replace(request, source=None)  # the read will fail
        return replace(request, source=None, remote_prefill=False)

    def hold(self, sequence: HandoffPart, request_id: str) -> None:
        """Starts the lease of a sequence that ends, and takes its blocks."""
        held = CachedSequence(sequence.prompt_tokens)
        cache = self._cache
        if cache is not None and sequence in cache.running:
            del cache.running[sequence]
            cache.running[held] = None
            held.blocks = sequence.blocks
            sequence.blocks = []
        self.leases.hold(request_id, partial(self._release, held, sequence.held))
        sequence.held = 0

    def resume(self, sequence: SteppedHandoff, is_complete: bool) -> None:
        """Queues a sequence whose blocks have arrived, or one that computes its prompt."""
        steps = cast("StepExecutor", self.executor)
        scheduler = steps.scheduler
        if is_complete:
            scheduler.fetched(sequence)
        else:
            scheduler.fetching.remove(sequence)
            sequence.computed = sequence.cached_tokens
            # The sequence holds blocks that sequences before it may need.
            scheduler.waiting.add(sequence, first=True)
        steps.wake_now()

    def drop(self, sequence: SteppedHandoff) -> None:
        """Frees the blocks of a sequence that was aborted after its last step."""
        if sequence.held:
            steps = cast("StepExecutor", self.executor)
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

    def _respond(self, question: Question) -> str:
        if question.engine_id != self.name():
            return UNKNOWN_ENGINE
        return self.leases.respond(question.message)


class HandoffEngine(Engine):
    """An `Engine` whose prompts may come from other engines, and go to them.

    Of several choices, the first one hands over and takes over the blocks of the first prompt.
    """

    def __init__(
        self,
        sections: EngineSections,
        parts: EngineParts,
        profile: Profile | None = None,
        cost: CostModel | None = None,
        *,
        peering: Peering,
    ) -> None:
        super().__init__(sections, parts, profile, cost)
        self.handoffs = Handoffs(sections.kvcache, self, parts, peering)
        self._plain_sequence = self._sequence
        self._handoff_sequence: type[HandoffPart] = TimedHandoff
        if isinstance(self.executor, StepExecutor):
            self._handoff_sequence = SteppedHandoff
            self.executor.scheduler.on_fetch = self._fetch
        self._sequence = self._new_sequence

    def run(
        self,
        requests: ListOf[EngineRequest],
        replies: ListOf[Reply],
        emit: Emit,
        awaited: bool = False,
    ) -> Handle:
        """Runs a request with known replies; see `EngineClient.submit`."""
        first = requests[0]
        if first.address is None and not first.remote_prefill:
            return super().run(requests, replies, emit, awaited)
        if not self.refuses_requests:  # a request that is rejected here may come again
            self.check_admission(len(requests), first.adapter)
        prepared = [self._prepare(request) for request in requests]
        handle = super().run(prepared, replies, emit, awaited)
        for sequence in handle.choices:
            if isinstance(sequence, HandoffPart) and sequence.remote and not sequence.over:
                sequence.expect()
        return handle

    def _search(self, requests: ListOf[EngineRequest], emit: Emit) -> Handle:
        """Searches here: each step of the beams would hand over the prompt again."""
        return super()._search([_alone(request) for request in requests], emit)

    def _needs_no_slot(
        self, pool: SequencePool, requests: ListOf[EngineRequest], replies: ListOf[Reply]
    ) -> bool:
        return requests[0].address is None and super()._needs_no_slot(pool, requests, replies)

    def _prepare(self, request: EngineRequest) -> EngineRequest:
        if request.index:
            return _alone(request)
        if request.address is not None:
            self.handoffs.announce(cast("KVTransferParams", request.address))
        if request.remote_prefill:
            request = self.handoffs.take_back(request)
        return request

    def _new_sequence(self, request: EngineRequest, reply: Reply, handle: Handle) -> Any:
        if request.address is None and not request.remote_prefill:
            return self._plain_sequence(request, reply, handle)
        return self._handoff_sequence(self.handoffs, request, reply, handle)

    def _fetch(self, sequence: SteppedSequence) -> None:
        steps = cast("StepExecutor", self.executor)
        cast("SteppedHandoff", sequence).fetch(steps.transfer_s(sequence))


def _alone(request: EngineRequest) -> EngineRequest:
    """Returns the request without its handoffs."""
    return replace(request, address=None, source=None, remote_prefill=False)
