"""Sequences: the choices of requests in an engine, from submission to end, with outputs and
metrics.

`Sequence` is the base class. `ReplySequence` emits a reply decided at arrival: `TimedSequence` on
its own timeline, `SteppedSequence` in steps shared by sequences. `RemoteSequence` emits the outputs
of an engine in another process. `EngineClient` is the base of both engines, and the door for all
code above them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Sequence as Listed
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, Protocol

from app.base.clock.clock import Clock
from app.base.clock.pause import Slices
from app.base.clock.timer_wheel import TimerWheel
from app.base.metrics.recorder import FinishedSequence, FinishReason, Recorder
from app.engine.core.batch import Phase, SequenceState, SequenceStatus
from app.engine.core.errors import Draining, EngineDead, QueueFull, TooManyRequests
from app.engine.core.outputs import (
    Emit,
    Failed,
    Finish,
    Part,
    Started,
    TakeToken,
    TokenLogprob,
    Tokens,
)
from app.engine.core.request import EngineRequest, Reply, SequenceOutcome, Watch, notify
from app.engine.kvcache.cache import KVCacheManager
from config.settings import LatencySettings, Settings

ABORT, CACHE_THRESHOLD = Finish("abort"), Finish("cache_threshold")
COUNTED_AS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "cache_threshold": "stop",
    "content_filter": "stop",
}
INTERRUPT_STEPS = 4
"""Work of ending one choice, in steps of `Slices`."""
log = logging.getLogger(__name__)


class Sequence(SequenceState):
    """One choice, from submission to its last token, failure or abort."""

    in_steps = False
    """True if tokens that come together belong to one step, which has one gap before it."""

    # Thousands of sequences take turns: each must touch little memory.
    __slots__ = (
        *("_emit", "_first_s", "_last_s", "_now", "queued_s", "_recorder", "scheduled_s"),
        *(
            "_handle",
            "_leave",
            "_take_token",
            "adapter",
            "begun",
            "over",
            "request",
            "tokens",
            "watches",
        ),
    )

    def __init__(
        self,
        request: EngineRequest,
        output_tokens: int,
        now: Callable[[], float],
        recorder: Recorder,
        handle: Handle,
        leave: Callable[[Any], None],
    ) -> None:
        """`output_tokens` is the reply's length if known, else the limit; `now` returns monotonic
        seconds.

        `leave` takes the sequence out of its engine, once, after its last output.
        """
        prompt_tokens, priority = len(request.prompt_ids), request.priority
        super().__init__(prompt_tokens, output_tokens, priority, request.remote_prefill)
        self.request = request
        self.adapter = request.adapter
        self.tokens = 0
        self.begun = False
        self.over = False
        assert handle.emit is not None
        self._now, self._recorder, self._emit = now, recorder, handle.emit
        self._handle, self._leave = handle, leave
        self.watches: Iterable[Watch] = ()
        self._take_token: TakeToken | None = None
        self.queued_s = request.arrival_s
        self.scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def status(self) -> SequenceStatus:
        raise NotImplementedError

    def text(self, whole: bool = True) -> str:
        """Returns the reply so far; unless `whole`, without thoughts, calls and images."""
        return ""

    def _start(
        self, at_s: float, prompt_logprobs: Listed[TokenLogprob | None] | None, is_plain: bool
    ) -> None:
        """Emits `Started`; the writer may answer with a receiver of the tokens, if these are plain."""
        self.begun = True
        began_s = at_s if self.scheduled_s is None else self.scheduled_s
        cached = self.cached_tokens + self.fetched_tokens
        queue_s, prefill_s = max(0.0, began_s - self.queued_s), max(0.0, at_s - began_s)
        index, created = self.request.index, self.created_tokens
        take = self._emit(
            Started(index, at_s, cached, prompt_logprobs, queue_s, prefill_s, created)
        )
        if is_plain and not self.over:
            self._take_token = take

    def _account(self, tokens: int, at_s: float) -> None:
        """Counts new tokens.

        Of several in a first output, all but one count as decoded without delay.
        """
        recorder = self._recorder
        if self._first_s is None:
            self._first_s = at_s
            request, cached = self.request, self.cached_tokens + self.fetched_tokens
            if self.fetched_tokens and request.remote_prefill:
                recorder.fetched(self.fetched_tokens, at_s - (self.scheduled_s or at_s))
            elif self.fetched_tokens:
                recorder.loaded(self.fetched_tokens)
            ttft_s = at_s - request.arrival_s
            recorder.prefilled(ttft_s, self.prompt_tokens, cached, at_s, min(tokens, 1))
            if tokens > 1:
                recorder.decoded(tokens - 1, 0.0, at_s)
        elif tokens:
            gaps = 1 if self.in_steps else tokens
            recorder.decoded(gaps, (at_s - self._last_s) / gaps, at_s)
            recorder.generated(tokens - gaps)
        self.tokens += tokens
        self._last_s = at_s

    def fail(self, error: Exception) -> None:
        """Ends the sequence with an error, and emits the error. Does nothing after its end."""
        if not self.over:
            self.over = True
            emit_failure(self.request, error, self._emit)
            self._end("error")

    def abort(self) -> None:
        if not self.over:
            self._end("abort", counted=False)

    def interrupt(self, counted: bool = False) -> None:
        """Ends the sequence with reason `abort`. For `counted` see `EngineClient.interrupt`."""
        if self.over:
            return
        self.over = True
        now_s, index = self._now(), self.request.index
        try:
            if not self.begun:
                self._emit(Started(index, now_s))
            self._emit(Tokens(index, (), (), now_s, None, ABORT))
        finally:
            self._end("abort", counted)

    def outcome(self, reason: str, now_s: float) -> SequenceOutcome:
        """Returns the outcome at `now_s`; `reason` is `waiting` or `running` before the end."""
        first_s = self._first_s
        return SequenceOutcome(
            reason=reason, queued_s=self.queued_s, scheduled_s=self.scheduled_s, first_token_s=first_s,
            last_token_s=None if first_s is None else self._last_s, ended_s=now_s, tokens=self.tokens,
            cached_tokens=self.cached_tokens, fetched_tokens=self.fetched_tokens,
            preemptions=self.preemptions, text=self.text(whole=False),
        )  # fmt: skip

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        now_s, request = self._now(), self.request
        self.over = True
        self._take_token = None
        choices, longest = (1, self.tokens) if request.n == 1 else self._handle.count(self)
        if counted:
            scheduled_s = now_s if self.scheduled_s is None else self.scheduled_s
            first_s = scheduled_s if self._first_s is None else self._first_s
            finished = FinishedSequence(
                reason,
                prompt_tokens=self.prompt_tokens,
                generation_tokens=self.tokens,
                cached_tokens=self.cached_tokens + self.fetched_tokens,
                max_tokens=request.max_tokens,
                queue_s=max(0.0, scheduled_s - self.queued_s),
                prefill_s=max(0.0, first_s - scheduled_s),
                decode_s=max(0.0, self._last_s - first_s),
                e2e_s=now_s - request.arrival_s,
                preemptions=self.preemptions,
                choices=choices,
                longest=longest,
            )
            self._recorder.sequence_finished(finished)
        else:
            self._recorder.aborted()
        if self.watches:
            notify(self.watches, self.outcome(reason, now_s))
        self._handle.end_one()
        self._leave(self)


class Handle:
    """The choices of one submitted request.

    The last one to end clears the references: no cycle is left.
    """

    __slots__ = ("_active", "_future", "_lengths", "_unfinished", "choices", "emit")

    def __init__(self, active: dict[Handle, None], emit: Emit | None = None) -> None:
        """`active` holds the engine's unfinished requests, in order of arrival."""
        self._active, self.emit = active, emit
        self.choices: Listed[Sequence] = ()
        """All choices; empty after the last one ends."""
        self._unfinished = 0
        self._lengths: dict[int, list[int]] | None = None
        self._future: Future[None] | None = None

    @property
    def future(self) -> Future[None]:
        """Done when all choices have ended, in any way; cannot be cancelled.

        Streams need no such 1.7 KB.
        """
        if self._future is None:
            self._future = Future()
            self._future.set_running_or_notify_cancel()
            if not self._unfinished:
                self._future.set_result(None)
        return self._future

    def begin(self, sequences: Listed[Sequence]) -> None:
        self.choices = sequences
        self._unfinished = len(sequences)
        self._active[self] = None

    def abort(self) -> None:
        """Ends unfinished choices. Nothing more is emitted."""
        for sequence in reversed(self.choices):
            sequence.abort()

    def interrupt(self, request_ids: Container[str] | None, slices: Slices, counted: bool) -> int:
        """Ends the choices with these request ids, or all. See `EngineClient.interrupt`."""
        found = [
            it
            for it in reversed(self.choices)
            if not it.over and (request_ids is None or it.request.request_id in request_ids)
        ]
        parents = {it.request.index // it.request.n for it in found if it.request.n > 1}
        for sequence in found:
            sequence.interrupt(counted)
            slices.spend(INTERRUPT_STEPS)
        return len(found) + len(parents)

    def count(self, sequence: Sequence) -> tuple[int, int]:
        """Returns `choices` and `longest` of `FinishedSequence`:

        0, 0 before the prompt's last choice.
        """
        n = sequence.request.n
        if self._lengths is None:
            self._lengths = {}
        lengths = self._lengths.setdefault(sequence.request.index // n, [])
        lengths.append(sequence.tokens)
        return (n, max(lengths)) if len(lengths) == n else (0, 0)

    def end_one(self) -> None:
        """Counts one finished choice, after its last output; the last choice completes the future."""
        self._unfinished -= 1
        if not self._unfinished:
            self.choices, self.emit = (), None
            del self._active[self]
            if self._future is not None:
                self._future.set_result(None)


LOWEST, HIGHEST = 0.3, 1.7
"""Bounds of a sampled duration, as factors of its mean (±70 %)."""


class PerRequestTiming:
    """Samples the durations, in seconds, of a sequence on its own timeline, from the latency
    settings.

    `running` returns how many sequences hold one of `slots` now. Load stretches every mean: by 1 at
    one sequence, up to `time-factor-under-load` when all slots are taken.
    """

    def __init__(
        self, latency: LatencySettings, slots: int, running: Callable[[], int], rng: Random
    ) -> None:
        self._slots = slots
        self._running = running
        self._rng = rng
        self.use(latency)

    def use(self, latency: LatencySettings) -> None:
        self._latency = latency
        varies = latency.inter_token_latency_std_dev != 0 or latency.time_factor_under_load != 1.0
        gap_s = latency.inter_token_latency
        self.constant_gap_s: float | None = None if varies and gap_s else gap_s
        """Constant result of `inter_token` in seconds; None if it varies."""
        self._per_token = latency.latency_calculator == "per-token" or (
            not latency.latency_calculator
            and latency.time_to_first_token == 0
            and latency.time_to_first_token_std_dev == 0
        )
        means = (
            (latency.prefill_overhead, latency.prefill_time_per_token)
            if self._per_token
            else (latency.time_to_first_token,)
        )
        self._prefills = any(means)
        self.instant = (
            self.constant_gap_s == 0 and not self._prefills and not latency.time_to_generate_image
        )
        """True if a prompt prefilled on this engine, and its reply, take no time."""

    def time_to_first_token(
        self, prompt_tokens: int, cached_tokens: int = 0, remote: bool = False
    ) -> float:
        """Returns the seconds of prefill, or, if `remote`, of the transfer of its cache (9.3)."""
        at = self._latency
        if remote:
            mean, deviation = at.kv_cache_transfer_latency, at.kv_cache_transfer_latency_std_dev
            if at.latency_calculator == "constant" or (
                not at.latency_calculator and (mean or deviation)
            ):
                return self._sample(mean, deviation)
            mean = prompt_tokens * at.kv_cache_transfer_time_per_token
            return self._sample(mean, at.kv_cache_transfer_time_std_dev)
        if not self._prefills:
            return 0.0
        factor = self.load_factor()
        if self._per_token:
            computed = max(0, prompt_tokens - cached_tokens)
            mean = factor * (at.prefill_overhead + computed * at.prefill_time_per_token)
            return self._sample(mean, at.prefill_time_std_dev)
        return self._sample(factor * at.time_to_first_token, at.time_to_first_token_std_dev)

    def inter_token(self) -> float:
        if self.constant_gap_s is not None:
            return self.constant_gap_s
        at = self._latency
        return self._sample(
            at.inter_token_latency * self.load_factor(), at.inter_token_latency_std_dev
        )

    def image(self) -> float:
        """Returns the seconds that an image takes, independent of load (9.5)."""
        at = self._latency
        return self._sample(at.time_to_generate_image, at.time_to_generate_image_std_dev)

    def load_factor(self) -> float:
        """Returns 1 for one sequence, `time-factor-under-load` at full slots, linear between (9.2)."""
        if self._slots <= 1:
            return 1.0
        others = max(self._running(), 1) - 1
        return 1.0 + (self._latency.time_factor_under_load - 1.0) * others / (self._slots - 1)

    def _sample(self, mean_s: float, std_dev_s: float) -> float:
        if std_dev_s == 0:
            return mean_s
        drawn = self._rng.gauss(mean_s, std_dev_s)
        return min(max(drawn, LOWEST * mean_s), HIGHEST * mean_s)


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """Objects shared by all sequences of an engine in this process."""

    clock: Clock
    wheel: TimerWheel
    timing: PerRequestTiming
    recorder: Recorder
    cache: KVCacheManager | None


class Executor(Protocol):
    """Slots, or shared steps, that run sequences."""

    context: SequenceContext

    def leave(self, sequence: Any) -> None:
        """Takes a sequence out, at its end."""


class ReplySequence(Sequence):
    """A choice with a known reply. Due tokens of one part leave in one output."""

    __slots__ = (
        *("_context", "_delays", "_ids", "_part", "_part_end", "_parts_done"),
        *("_position", "_reply", "_texts"),
    )
    fills_cache = True
    """True where the sequence fills blocks of the KV cache itself, token by token; False in shared
    steps.
    """

    def __init__(
        self, executor: Executor, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        context = self._context = executor.context
        leave, now = executor.leave, context.clock.now
        super().__init__(request, len(reply.ids), now, context.recorder, handle, leave)
        if request.remote_prefill:
            self.fetched_tokens = self.prompt_tokens
        self._reply, self._texts, self._ids = reply, reply.texts, reply.ids
        self._delays: dict[int, float] | None = None
        if request.delays or reply.delays:
            self._delays = {}
            for token, seconds in chain(request.delays, reply.delays):
                self._delays[token] = self._delays.get(token, 0.0) + seconds
        self._position = self._parts_done = 0
        self._part: Part | None
        self._part_end, self._part = reply.spans[0] if reply.spans else (len(self._texts), None)

    def fits(self) -> bool:
        cache, tokens = self._context.cache, self.prompt_tokens
        return cache is None or cache.fits(self, tokens, cache.find(self, tokens))

    def reply_ids(self, start: int, stop: int) -> Listed[int]:
        return self._ids[start:stop]

    def text(self, whole: bool = True) -> str:
        return (
            "".join(self._texts[: self._position]) if whole else self._reply.content(self._position)
        )

    def _emit_until(self, stop: int, at_s: float, part: Part | None) -> bool:
        """Emits and counts tokens up to `stop`, due at `at_s`, all of `part`; returns whether more
        follow.
        """
        start, reply, cache = self._position, self._reply, self._context.cache
        self._position = stop
        texts, ids = self._texts[start:stop], self._ids[start:stop]
        logprobs = None if reply.logprobs is None else reply.logprobs[start:stop]
        finish = None if stop < len(self._texts) else reply.finish
        if cache is not None and self.fills_cache:
            if ids:  # without a free block the reply continues anyway: nothing is preempted
                cache.append(self, len(ids))
            cache.publish()
        self._account(len(ids), at_s)
        self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs, finish, part))
        if finish is not None and not self.over:
            self._end(COUNTED_AS[finish.reason])
        return finish is None

    def empty(self) -> None:
        """Too little is cached: the reply becomes empty (simulator.md 13.7)."""
        self._reply = Reply((), (), CACHE_THRESHOLD)
        self._texts = self._ids = ()
        self._part_end, self._part = 0, None

    def _to_next_part(self) -> bool:
        """Moves to the next part of the reply; returns whether the part is an image."""
        self._parts_done += 1
        self._part_end, self._part = self._reply.spans[self._parts_done]
        return self._part is not None and self._part.kind == "image"

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        super()._end(reason, counted)
        if reason == "abort":
            self._texts = self._ids = ()  # the timer wheel may hold the sequence for a while


def emit_failure(request: EngineRequest, error: Exception, emit: Emit) -> None:
    try:
        emit(Failed(request.index, error))
    except Exception:
        log.exception("the failure of a sequence could not be told")


class EngineClient:
    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.recorder = recorder
        self.draining = False
        self.withdrawn = False
        """True when the server is not ready because it ends soon; requests are still admitted."""
        limits = settings.scheduling
        self._slots, self._max_waiting = limits.max_num_seqs, limits.max_waiting_queue_length
        self._max_unfinished = limits.max_num_queued_reqs
        self._active: dict[Handle, None] = {}
        """Unfinished submissions, in order of arrival."""

    @property
    def healthy(self) -> bool:
        """False while no engine can compute."""
        raise NotImplementedError

    @property
    def running(self) -> int:
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        raise NotImplementedError

    @property
    def _unfinished(self) -> int:
        """Number of running and waiting sequences, in all workers that share the engine."""
        return self.running + self.waiting

    @property
    def _queued(self) -> int:
        """Number of waiting sequences, in all workers that share the engine."""
        return self.waiting

    def _free(self, adapter: str | None) -> int:
        """Returns how many more sequences slots and waiting queue can take."""
        raise NotImplementedError

    def sequences(self) -> Iterator[Sequence]:
        """Yields all unfinished choices, the latest first. The set may change at every pause."""
        for submission in list(reversed(self._active)):
            for choice in reversed(submission.choices):
                if not choice.over:
                    yield choice

    def check_accepting(self, sequences: int) -> None:
        """Raises Draining, or TooManyRequests if `sequences` more would exceed
        `max-num-queued-reqs`.
        """
        if self.draining:
            raise Draining
        if not self.healthy:
            raise EngineDead
        most = self._max_unfinished
        if most is not None and (unfinished := self._unfinished) + sequences > most:
            self.recorder.rejected("max_num_queued_reqs")
            raise TooManyRequests(unfinished, most)

    def check_admission(self, sequences: int, adapter: str | None = None) -> None:
        """Checks as `check_accepting`; raises QueueFull when slots and queue cannot hold
        `sequences` more.
        """
        self.check_accepting(sequences)
        if sequences > self._free(adapter):
            raise QueueFull(self._queued)

    def room(self, adapter: str | None = None) -> int:
        """Returns how many sequences slots and waiting queue could admit now."""
        most, room = self._max_unfinished, self._free(adapter)
        return room if most is None else min(room, most - self._unfinished)

    def submit(self, requests: Listed[EngineRequest], emit: Emit) -> Handle:
        """Runs all choices of a request, with pauses, or raises an EngineError before any begins."""
        raise NotImplementedError

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """Ends the requests with these ids, or all, each choice with `abort`; returns the number of
        choices.

        A prompt with several choices adds one. With `counted` the choices enter the metrics of
        finished requests, as vLLM counts requests that its engine ends (pause, sleep). Pauses when
        there are many.
        """
        slices = Slices()
        return sum([it.interrupt(request_ids, slices, counted) for it in list(self._active)])

    def drain(self) -> None:
        self.draining = True


class SteppedSequence(ReplySequence):
    """One choice in the steps of an engine; the scheduler holds this object itself."""

    __slots__ = ("_late", "_promised", "_shift_s")
    fills_cache, in_steps = False, True

    def __init__(
        self, executor: Executor, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(executor, request, reply, handle)
        self._promised = 0
        """Number of tokens received from steps, if the reply has delays."""
        self._shift_s = 0.0
        """Sum of deliberate delays so far, in seconds."""
        self._late: deque[tuple[float, int]] = deque()
        """Due times and counts of delayed tokens."""

    def status(self) -> SequenceStatus:
        phase, computed = (
            Phase.DECODE,
            self.prompt_tokens,
        )  # a decode in bulk has computed all of its prompt
        if not (self.decodes or self.last):
            waits = (
                Phase.PREEMPTED
                if self.preemptions
                else Phase.TRANSFER
                if self.held
                else Phase.QUEUED
            )
            phase, computed = Phase.PREFILL if self.running else waits, min(self.computed, computed)
        return SequenceStatus(phase, computed, self.held, self.scheduled_s, self._first_s)

    def hand_out(self, at_s: float, count: int) -> None:
        """Takes `count` tokens, due at `at_s`; ends with an error of the writer."""
        try:
            self.take(at_s, count)
        except Exception as error:
            log.exception("a token could not be handed out")
            self.fail(error)

    def preempted(self) -> None:
        if not self.over:
            self._recorder.preempted()
            if self.adapter is not None:
                self._recorder.adapter_moved(self, self.adapter, "waiting")

    def take(self, at_s: float, count: int) -> None:
        """Emits the next `count` tokens, due at `at_s`, or postpones them by deliberate delays."""
        take, start = self._take_token, self._position
        if (
            take is not None
            and count == 1
            and start
            and start + 1 < self._part_end
            and self._part is None
        ):
            self._position = start + 1
            self._recorder.decoded(1, at_s - self._last_s, at_s)
            self.tokens += 1
            self._last_s = at_s
            take(self._texts[start], self._ids[start], at_s)
            return
        if self._delays is not None:
            for number in range(self._promised, self._promised + count):
                self._shift_s += self._delays.get(number, 0.0)
            self._promised += count
            if self._shift_s:
                self._late.append((at_s + self._shift_s, count))
                if len(self._late) == 1:
                    self._context.wheel.add(at_s + self._shift_s, self)
                return
        self._emit_parts(at_s, count)

    def turn(self, now_s: float) -> float | None:
        """Emits delayed tokens that are due; returns the due time of the next one."""
        while self._late and not self.over and self._late[0][0] <= now_s:
            self._emit_parts(*self._late.popleft())
        return self._late[0][0] if self._late and not self.over else None

    def _emit_parts(self, at_s: float, count: int) -> None:
        """Emits tokens part by part; an image after the last one takes its own time."""
        if not self.begun:
            reply = self._reply
            self._start(
                at_s, reply.prompt_logprobs, reply.logprobs is None and self._delays is None
            )
        while not self.over:
            part, stop, image = self._part, min(self._position + count, self._part_end), False
            count -= stop - self._position
            if stop == self._part_end and stop < len(self._texts):
                image = self._to_next_part()
            if not self._emit_until(stop, at_s, part):
                return
            if image:
                due_s = at_s + self._context.timing.image()
                self._late.append((due_s, 1))
                self._context.wheel.add(due_s, self)
            if image or count <= 0:
                return
