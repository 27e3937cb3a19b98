"""The simulated engine: admits requests, decides replies, and runs a sequence for each choice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Listed
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from app.base.clock.clock import Clock
from app.base.clock.pause import MAX_WORK_S, Pace
from app.base.clock.random_streams import Streams
from app.base.clock.timer_wheel import TimerWheel
from app.base.metrics.recorder import FinishedSequence, Recorder
from app.engine.core.batch import Blocks, LoRASlots
from app.engine.core.outputs import Emit, EngineOutput, Failed, Finish, Started, Tokens
from app.engine.core.request import LENGTH, STOP, EngineRequest, Model, Reply, watches_of
from app.engine.core.sequence import (
    COUNTED_AS,
    EngineClient,
    Handle,
    PerRequestTiming,
    SequenceContext,
    SteppedSequence,
    emit_failure,
)
from app.engine.core.timeline import MOST_AT_ONCE, SequencePool, TimedSequence
from app.engine.kvcache.cache import KVCacheManager
from config.settings import Settings

if TYPE_CHECKING:
    from app.engine.core.step_loop import CostModel, StepExecutor
    from config.profile import Profile

STARTED_AT_ONCE = 128
"""Most choices of a request that start in the turn of its arrival; keeps other streams on time."""
log = logging.getLogger(__name__)


class Engine(EngineClient):
    """The `EngineClient` of this process; sequences run on their own timelines or in shared steps."""

    healthy = True

    def __init__(
        self,
        settings: Settings,
        model: Model,
        recorder: Recorder,
        clock: Clock,
        streams: Streams,
        lora: LoRASlots,
        cache: KVCacheManager | None = None,
        profile: Profile | None = None,
        cost: CostModel | None = None,
    ) -> None:
        """With a `profile` sequences share its steps, at another `cost` if given."""
        super().__init__(settings, recorder)
        limits = settings.scheduling
        self.wheel = TimerWheel(clock)
        self.lora = lora
        by_priority = limits.scheduling_policy == "priority"
        self.timing = PerRequestTiming(
            settings.latency, limits.max_num_seqs, lambda: self.executor.running, streams("latency")
        )
        self._context = SequenceContext(clock, self.wheel, self.timing, recorder, cache)
        self._pool: SequencePool | None = None
        """The slots of sequences with latencies of their own and without a cache."""
        self.executor: SequencePool | StepExecutor
        self._sequence: Callable[..., Any]
        if profile is None:
            slots = SequencePool(limits.max_num_seqs, lora, by_priority, self._context)
            self.executor, self._sequence = slots, partial(TimedSequence, slots)
            self._blocks: Blocks[Any] | None = cache
            self._pool = slots if cache is None else None
        else:
            # Imported here because other modes need no scheduler.
            from app.engine.core.step_loop import StepExecutor

            steps = StepExecutor(settings, profile, self._context, lora, streams("drafts"), cost)
            self.executor, self._sequence = steps, partial(SteppedSequence, steps)
            self._blocks = steps.blocks
        recorder.read_load = self._load
        self._model = model
        self._cache = cache
        self.clock = clock
        self._over = Handle(self._active)
        """The handle of requests that end as they are submitted."""

    @property
    def running(self) -> int:
        return self.executor.running

    @property
    def waiting(self) -> int:
        return self.executor.waiting

    def on_settings(self, settings: Settings) -> None:
        self.timing.use(settings.latency)
        self.executor.sort(settings.scheduling.scheduling_policy == "priority")

    def _load(self) -> tuple[int, int, float]:
        executor, blocks = self.executor, self._blocks
        used = 0.0 if blocks is None else 1.0 - blocks.free / blocks.capacity
        return executor.running, executor.queued, used

    def _free(self, adapter: str | None) -> int:
        return self.executor.free(adapter) + self._max_waiting - self.executor.waiting

    def submit(self, requests: Listed[EngineRequest], emit: Emit) -> Handle:
        if not requests:
            return self._over
        if requests[0].beams:
            return BeamSearch(self, requests, self._beams(requests), emit)
        replies = [self._model.reply(requests[0])]
        if len(requests) > 1:
            rest = Pace(self.clock.now)
            for request in requests[1:]:
                rest()
                replies.append(self._model.reply(request))
        return self.run(requests, replies, emit)

    def _beams(self, requests: Listed[EngineRequest]) -> list[Reply]:
        """Returns the beams of each prompt in turn, best first."""
        pause = Pace(self.clock.now)
        width = requests[0].n
        replies: list[Reply] = []
        for start in range(0, len(requests), width):
            pause()
            replies += self._model.beams(requests[start : start + width])
        return replies

    def run(self, requests: Listed[EngineRequest], replies: Listed[Reply], emit: Emit) -> Handle:
        first = requests[0]
        if self._needs_no_slot(requests, replies):
            self.check_accepting(1)
            emit_immediately(first, replies[0], emit, self._context)
            return self._over
        handle = Handle(self._active, emit)
        sequences = [self._sequence(*each, handle) for each in zip(requests, replies, strict=True)]
        if self._cache is not None:
            for sequence, prompt in zip(sequences, self._cache.prompts(requests), strict=True):
                sequence.prompt = prompt
        # Nothing may yield from here to the end, or other requests would take the slots.
        self.check_admission(len(sequences), first.adapter)
        if first.observers:
            for sequence in sequences:
                sequence.watches = watches_of(sequence.request)
        handle.begin(sequences)
        for number, sequence in enumerate(sequences):
            if not sequence.over:
                self.executor.submit(sequence, number >= STARTED_AT_ONCE)
        return handle

    def _needs_no_slot(self, requests: Listed[EngineRequest], replies: Listed[Reply]) -> bool:
        """Returns whether the request can end at once:

        free slot, no latencies, no special features.
        """
        pool, request, reply = self._pool, requests[0], replies[0]
        if pool is None or len(requests) > 1 or not self.timing.instant:
            return False
        if pool.paused or pool.queue.members or pool.running >= pool.slots:
            return False
        special = request.adapter or request.observers or request.delays or request.remote_prefill
        asked = request.cache_hit_threshold or request.logprobs is not None
        return not (special or asked or reply.delays or len(reply.texts) > MOST_AT_ONCE)


def emit_immediately(
    request: EngineRequest, reply: Reply, emit: Emit, context: SequenceContext
) -> None:
    """Emits and counts an undelayed reply as a sequence would, in a fifth of the time."""
    at_s, recorder, tokens = request.arrival_s, context.recorder, 0
    prompt_tokens, begun, failure = len(request.prompt_ids), False, None
    try:
        emit(Started(request.index, at_s, 0, reply.prompt_logprobs))
        begun, start, last = True, 0, len(reply.texts)
        if not reply.spans:
            tokens = len(reply.ids)
            emit(Tokens(request.index, reply.texts, reply.ids, at_s, None, reply.finish))
        for end, part in reply.spans:
            finish, of = reply.finish if end == last else None, slice(start, end)
            start, tokens = end, min(end, len(reply.ids))
            emit(Tokens(request.index, reply.texts[of], reply.ids[of], at_s, None, finish, part))
        reason = COUNTED_AS[reply.finish.reason]
    except Exception as error:
        log.exception("a sequence failed at its start")
        reason, failure = "error", error
    e2e_s = context.clock.now() - at_s
    if begun:
        recorder.prefilled(0.0, prompt_tokens, 0, at_s, 1 if tokens else 0)
    if tokens > 1:
        recorder.decoded(tokens - 1, 0.0, at_s)
    recorder.sequence_finished(
        FinishedSequence(
            reason, prompt_tokens, tokens, 0, request.max_tokens, 0.0, 0.0, 0.0, e2e_s, 0, 1, tokens
        )
    )
    if failure is not None:
        emit_failure(request, failure, emit)


class BeamSearch(Handle):
    """Beam search as vLLM serves it: each step of a beam is a separate request, and whole beams are
    emitted.

    There are n beams per prompt, best first. The first step runs one request per prompt. The model
    decides the texts of beams in advance. Only timing, queueing and block use are simulated.
    """

    def __init__(
        self, engine: Engine, requests: Listed[EngineRequest], replies: Listed[Reply], emit: Emit
    ) -> None:
        super().__init__({self: None})
        self._unfinished = 1
        self._engine, self._emit = engine, emit
        self._beams = list(zip(requests, map(_without_end, replies), strict=True))
        self._step = self._pending = 0
        self._due: list[tuple[EngineRequest, Reply]] = []
        """Beams whose request of this step is not submitted yet, the last one first."""
        self._running: list[Handle] = []
        self._is_over = False
        try:
            self._begin_step()
        except Exception:
            self.abort()
            raise

    def abort(self) -> None:
        if not self._is_over:
            self._stop()
            self.end_one()

    def _stop(self) -> None:
        self._is_over = True
        for handle in self._running:
            handle.abort()

    def _fail(self, index: int, error: Exception) -> None:
        self._stop()
        self._emit(Failed(index, error))
        self.end_one()

    def _begin_step(self) -> None:
        step = self._step
        self._due = [
            (request, reply)
            for request, reply in reversed(self._beams)
            if step < len(reply.ids) and (step or request.index % request.n == 0)
        ]
        self._pending, self._running = len(self._due), []
        if self._due:
            self._submit_due()
        else:
            self._tell(None)

    def _submit_due(self) -> None:
        """Submits requests of this step for MAX_WORK_S; later turns of the loop submit the
        rest.
        """
        step, now = self._step, self._engine.clock.now
        begun_s = now()
        while self._due and not self._is_over:
            if now() - begun_s > MAX_WORK_S:
                self._engine.wheel.call_soon(partial(self._go_on, self._submit_due))
                return
            request, reply = self._due.pop()
            asked = replace(
                request,
                index=0,
                prompt_ids=[*request.prompt_ids, *reply.ids[:step]],
                max_tokens=1,
                limited=True,
                arrival_s=begun_s if step else request.arrival_s,
                n=1,
                num_choices=1,
                beams=False,
            )
            token = Reply(reply.texts[step : step + 1], reply.ids[step : step + 1], LENGTH)
            self._running.append(
                self._engine.run((asked,), (token,), partial(self._take, request.index))
            )

    def _take(self, index: int, output: EngineOutput) -> None:
        if self._is_over:
            return
        if type(output) is Failed:
            self._fail(index, output.error)
        elif type(output) is Tokens and output.finish is not None:
            self._pending -= 1
            if output.finish.reason == "abort":
                self._tell(output.finish)
            elif not self._pending:
                self._step += 1
                # The requests of this step have yet to release their slots.
                self._engine.wheel.call_soon(partial(self._go_on, self._begin_step))

    def _go_on(self, work: Callable[[], None]) -> None:
        try:
            if not self._is_over:
                work()
        except Exception as error:
            self._fail(0, error)

    def _tell(self, aborted: Finish | None) -> None:
        self._is_over = True
        at_s = self._engine.clock.now()
        for request, reply in self._beams:
            self._emit(Started(request.index, at_s, 0, reply.prompt_logprobs))
        for request, reply in self._beams:
            start, texts, logprobs = 0, reply.texts, reply.logprobs
            for end, part in reply.all_spans():
                finish = (aborted or reply.finish) if end == len(texts) else None
                entries = None if logprobs is None else logprobs[start:end]
                said, ids = ["".join(texts[start:end])], reply.ids[start:end]
                self._emit(Tokens(request.index, said, ids, at_s, entries, finish, part))
                start = end
        self.end_one()


def _without_end(reply: Reply) -> Reply:
    """Returns the reply with a final end-of-text token moved to its finish."""
    if reply.finish != STOP or not reply.ids or reply.texts[-1]:
        return reply
    cut = replace(reply.cut(len(reply.ids) - 1), finish=Finish("stop", reply.ids[-1]))
    cut.logprobs = None if reply.logprobs is None else reply.logprobs[:-1]
    return cut
