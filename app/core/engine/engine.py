"""The simulated engine: admits requests, decides replies, and runs a sequence for each choice."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.core.base.callers import claim_memory
from app.core.base.clock.pause import paced
from app.core.base.clock.timer_wheel import TimerWheel
from app.core.base.metrics.recorder import FinishedSequence, Recorder
from app.core.engine.batch import LoRASlots, SchedulerRules
from app.core.engine.client import EngineClient
from app.core.engine.errors import PromptExceedsCacheError, RequestRejectedError
from app.core.engine.executor import SequenceContext
from app.core.engine.outputs import Emit, Started, Tokens
from app.core.engine.request import (
    EngineRequest,
    Model,
    Reply,
    SequenceOutcome,
    notify,
    watches_of,
)
from app.core.engine.sections import EngineSections
from app.core.engine.sequence import COUNTED_AS, Handle, emit_failure, reason_of
from app.core.engine.sequence_pool import SequencePool
from app.core.engine.timed_sequence import MAX_OUTPUT_TOKENS, TimedSequence, max_tokens_with
from app.core.engine.timing import PerRequestTiming

if TYPE_CHECKING:
    from app.core.base.clock.clock import Clock
    from app.core.base.clock.random_streams import Streams
    from app.core.engine.kvcache.cache import KVCacheManager
    from app.core.engine.profile import Profile
    from app.core.engine.scheduling_policy import MakePolicies
    from app.core.engine.step_cost import CostModel
    from app.core.engine.step_executor import StepExecutor
    from config.settings import SchedulingSettings

MAX_STARTS_AT_ONCE = 128
"""Maximum choices of a request that start in the turn of its arrival.

Keeps other streams on time.
"""
TOKEN_BYTES = 20
"""Memory of a token of a decided reply, text and id, in bytes; 17 were measured."""
MAX_UNCOUNTED_TOKENS = 500
"""The only reply to a request claims no memory up to so many tokens."""
Search = Callable[["Engine", ListOf[EngineRequest], Emit], Handle]
"""Runs the beam search of a request, with n beams for each prompt."""


class EngineParts(Struct, frozen=True):
    """The objects that an `Engine` works with."""

    model: Model
    recorder: Recorder
    clock: Clock
    streams: Streams
    lora: LoRASlots
    cache: KVCacheManager | None = None
    rules: SchedulerRules = SchedulerRules()
    policies: ListOf[MakePolicies] = ()
    """Make the policies of shared steps."""
    search: Search | None = None
    """Runs beam searches; without it, they are rejected."""


class Engine(EngineClient):
    """The `EngineClient` of this process.

    Sequences run on their own timelines, or in shared steps.
    """

    healthy = True

    def __init__(
        self,
        sections: EngineSections,
        parts: EngineParts,
        profile: Profile | None = None,
        cost: CostModel | None = None,
    ) -> None:
        """With a `profile` sequences share its steps. `cost` replaces the profile's cost model."""
        super().__init__(sections.scheduling, parts.recorder)
        self.clock = parts.clock
        self.wheel = TimerWheel(parts.clock)
        self.lora = parts.lora
        self.model = parts.model
        self._beam_search = parts.search
        self._cache = parts.cache
        self.timing = PerRequestTiming(
            sections.latency,
            sections.scheduling.max_num_seqs,
            running=self._running,
            rng=parts.streams("latency"),
        )
        self.context = SequenceContext(
            clock=parts.clock,
            wheel=self.wheel,
            timing=self.timing,
            recorder=parts.recorder,
            cache=parts.cache,
            rules=parts.rules,
            policies=parts.policies,
        )
        if parts.cache is not None:
            parts.cache.attach(parts.clock, self.wheel)
        self._pool: SequencePool | None = None
        """The slots of sequences with latencies of their own and without a cache."""
        self.executor: SequencePool | StepExecutor
        self._sequence: Callable[..., Any]
        if profile is None:
            pool = SequencePool(sections, parts.lora, self.context)
            self.executor = pool
            self._sequence = partial(TimedSequence, pool)
            if parts.cache is None:
                self._pool = pool
        else:
            # Imported here because other modes need no scheduler.
            from app.core.engine.step_executor import StepExecutor
            from app.core.engine.stepped_sequence import SteppedSequence

            steps = StepExecutor(
                sections,
                profile,
                self.context,
                lora=parts.lora,
                rng=parts.streams("drafts"),
                cost=cost,
            )
            self.executor = steps
            self._sequence = partial(SteppedSequence, steps)
        parts.recorder.read_load = self._load
        self._ended = Handle(self._active)
        """The handle of requests that end as they are submitted."""

    @property
    def running(self) -> int:
        """Number of running sequences."""
        return self.executor.running

    @property
    def waiting(self) -> int:
        """Number of waiting sequences."""
        return self.executor.waiting

    def on_scheduling(self, scheduling: SchedulingSettings) -> None:
        """Sets the order of the waiting sequences."""
        self.executor.sort(scheduling.scheduling_policy == "priority")

    def _running(self) -> int:
        return self.executor.running

    def _load(self) -> tuple[int, int, float]:
        executor = self.executor
        used = 0.0
        if executor.blocks is not None:
            used = 1.0 - executor.blocks.free / executor.blocks.capacity
        return executor.running, executor.queued, used

    def _free(self, adapter: str | None) -> int:
        return self.executor.free(adapter) + self._max_waiting - self.executor.waiting

    def submit(
        self, requests: ListOf[EngineRequest], emit: Emit, *, awaited: bool = False
    ) -> Handle:
        """Decides the replies of a request, and runs its choices; see `EngineClient.submit`."""
        if not requests:
            return self._ended
        if requests[0].beams:
            return self._search(requests, emit)
        if len(requests) > 1:
            replies = [*map(self.decide, paced(requests))]
        else:
            replies = [self.model.reply(requests[0])]  # `decide`, inlined
            if len(replies[0].ids) > MAX_UNCOUNTED_TOKENS:
                claim_memory(TOKEN_BYTES * len(replies[0].ids))
        return self.run(requests, replies, emit, awaited)

    def _search(self, requests: ListOf[EngineRequest], emit: Emit) -> Handle:
        if self._beam_search is None:
            raise RequestRejectedError("this server was built without the extension 'beam_search'")
        return self._beam_search(self, requests, emit)

    def decide(self, request: EngineRequest) -> Reply:
        """Returns the reply to a choice; a long one counts as memory of the request.

        Raises:
            MemoryFullError, MemoryExceededError: as `claim_memory`.
        """
        reply = self.model.reply(request)
        tokens = len(reply.ids)
        if tokens > MAX_UNCOUNTED_TOKENS or request.num_choices > 1:
            # Of several choices, which take turns, the outputs that wait for a client are copies.
            claim_memory(TOKEN_BYTES * tokens * min(request.num_choices, 2))
        return reply

    def run(
        self,
        requests: ListOf[EngineRequest],
        replies: ListOf[Reply],
        emit: Emit,
        awaited: bool = False,
    ) -> Handle:
        """Runs a request with known replies; see `EngineClient.submit`."""
        if self.refuses_requests:
            self.refuse(requests, emit)
            return self._ended
        first = requests[0]
        if len(requests) == 1 and self.reply_at_once(first, replies[0], emit):
            return self._ended
        handle = Handle(self._active, emit)
        many = len(requests) > MAX_STARTS_AT_ONCE
        sequences = [
            self._sequence(request, reply, handle)
            for request, reply in zip(paced(requests) if many else requests, replies, strict=True)
        ]
        if self._cache is not None:
            self._assign_prompts(sequences, requests, self._cache)
        # Nothing may yield from here to the end, or other requests would take the slots.
        self.check_admission(len(sequences), first.adapter)
        if first.observers:
            for sequence in sequences:
                sequence.watches = watches_of(sequence.request)
        handle.begin(sequences)
        start: Callable[..., object] = self.executor.enqueue
        if awaited and len(sequences) == 1:  # several share a future
            start = self.executor.submit
        for number, sequence in enumerate(sequences):
            if not sequence.over:
                start(sequence, later=number >= MAX_STARTS_AT_ONCE)
        return handle

    @staticmethod
    def _assign_prompts(
        sequences: ListOf[Any], requests: ListOf[EngineRequest], cache: KVCacheManager
    ) -> None:
        limit = cache.max_tokens
        for request in requests:
            if len(request.prompt_ids) > limit:
                raise PromptExceedsCacheError(len(request.prompt_ids), limit)
        for sequence, prompt in zip(sequences, cache.prompts(requests), strict=True):
            sequence.prompt = prompt

    def reply_at_once(self, request: EngineRequest, reply: Reply, emit: Emit | None = None) -> bool:
        """See `EngineClient.reply_at_once`.

        The request must use no special feature, and a slot must be free.
        """
        pool = self._pool
        if pool is None or not self.timing.instant or self.refuses_requests:
            return False
        if pool.paused or pool.queue.members or pool.running >= pool.slots:
            return False
        is_special = (
            request.adapter
            or request.delays
            or request.remote_prefill
            or request.cache_hit_threshold
            or reply.delays
        )
        max_tokens = MAX_OUTPUT_TOKENS
        if request.sampling.logprobs is not None:
            max_tokens = max_tokens_with(request.sampling.logprobs)
        if is_special or len(reply.texts) > max_tokens:
            return False
        self.check_accepting(1)
        end_immediately(request, reply, emit, self.context)
        return True


def end_immediately(
    request: EngineRequest, reply: Reply, emit: Emit | None, context: SequenceContext
) -> None:
    """Emits and counts an undelayed reply as a sequence would, in a fifth of the time.

    Without `emit`, only counts the reply.
    """
    at_s = request.arrival_s
    recorder = context.recorder
    tokens = len(reply.ids)
    reason = COUNTED_AS[reply.finish.reason]
    watches = watches_of(request) if request.observers else []
    has_begun = True
    failure = None
    if emit is not None:
        tokens = 0
        has_begun = False
        try:
            emit(Started(request.index, at_s, 0, reply.prompt_logprobs, is_followed=False))
            has_begun = True
            start = 0
            for end, part in reply.spans or [(len(reply.texts), None)]:
                tokens = min(end, len(reply.ids))
                output = Tokens(
                    index=request.index,
                    texts=reply.texts[start:end],
                    ids=reply.ids[start:end],
                    at_s=at_s,
                    logprobs=None if reply.logprobs is None else reply.logprobs[start:end],
                    finish=reply.finish if end == len(reply.texts) else None,
                    part=part,
                )
                start = end
                emit(output)
        except Exception as error:
            reason = reason_of(error)
            failure = error
    finished = FinishedSequence(
        reason,
        prompt_tokens=len(request.prompt_ids),
        generation_tokens=tokens,
        cached_tokens=0,
        max_tokens=request.max_tokens,
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        e2e_s=context.clock.now() - at_s,
        preemptions=0,
        choices=1,
        longest=tokens,
    )
    if has_begun:
        recorder.replied_at_once(finished, at_s)
    else:
        recorder.sequence_finished(finished)
    if watches:
        first_token_s = at_s if has_begun else None
        notify(watches, _immediate_outcome(finished, at_s, first_token_s, reply))
    if failure is not None and emit is not None:
        emit_failure(request, failure, emit)


def _immediate_outcome(
    finished: FinishedSequence, at_s: float, first_token_s: float | None, reply: Reply
) -> SequenceOutcome:
    """Returns the outcome of a reply that was emitted at once, at `at_s`."""
    return SequenceOutcome(
        reason=finished.reason,
        queued_s=at_s,
        scheduled_s=at_s,
        first_token_s=first_token_s,
        last_token_s=first_token_s,
        ended_s=at_s + finished.e2e_s,
        cached_tokens=0,
        fetched_tokens=0,
        tokens=finished.generation_tokens,
        preemptions=0,
        text=reply.content(finished.generation_tokens),
    )
