"""Sequences on their own timelines: latencies from the settings (simulator.md 9).

The sequence object itself is queued, holds the slot and sits in the timer wheel. A token costs no object but
its output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

from app.base.clock.clock import Clock
from app.base.clock.timer_wheel import TimerWheel
from app.base.metrics.recorder import FinishReason, Recorder
from app.engine.core.batch import Phase, SequenceStatus
from app.engine.core.outputs import Finish, Part, TakeToken, Tokens
from app.engine.core.request import EngineRequest, Reply
from app.engine.core.scheduler import WaitingQueue
from app.engine.core.sequence import COUNTED_AS, Handle, Sequence
from app.engine.kvcache.cache import KVCacheManager
from app.engine.lora import LoRASlots
from config.settings import LatencySettings

CACHE_THRESHOLD = Finish("cache_threshold")
MOST_AT_ONCE = 1024
"""Most tokens in one output, fewer with log probabilities; bounds the rendering time of one event."""
MOST_PER_TURN = 128
"""Most sequences that start in one turn of the event loop; keeps other streams on time."""
log = logging.getLogger(__name__)


LOWEST, HIGHEST = 0.3, 1.7
"""Bounds of a sampled duration, as factors of its mean (±70 %)."""


class PerRequestTiming:
    """Samples the durations, in seconds, of a sequence on its own timeline, from the latency settings.

    `running` returns how many sequences hold one of `slots` now. Load stretches every mean: by 1 at one
    sequence, up to `time-factor-under-load` when all slots are taken.
    """

    def __init__(self, latency: LatencySettings, slots: int, running: Callable[[], int], rng: Random) -> None:
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
        self.instant = self.constant_gap_s == 0 and not self._prefills
        """True if a prompt prefilled on this engine, and its reply, take no time."""

    def time_to_first_token(self, prompt_tokens: int, cached_tokens: int = 0, remote: bool = False) -> float:
        """Returns the seconds of prefill, or, if `remote`, of the transfer of its cache (9.3)."""
        at = self._latency
        if remote:
            mean, deviation = at.kv_cache_transfer_latency, at.kv_cache_transfer_latency_std_dev
            if at.latency_calculator == "constant" or (not at.latency_calculator and (mean or deviation)):
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
        return self._sample(at.inter_token_latency * self.load_factor(), at.inter_token_latency_std_dev)

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


class ReplySequence(Sequence):
    """A choice with a known reply. Due tokens of one part leave in one output."""

    __slots__ = (
        *("_context", "_delays", "_ids", "_part", "_part_end", "_parts_done"),
        *("_position", "_reply", "_texts"),
    )
    fills_cache = True
    """True where the sequence fills blocks of the KV cache itself, token by token; False in shared steps."""

    def __init__(
        self,
        context: SequenceContext,
        request: EngineRequest,
        reply: Reply,
        handle: Handle,
        leave: Callable[[Any], None],
    ) -> None:
        super().__init__(request, len(reply.ids), context.clock.now, context.recorder, handle, leave)
        if request.remote_prefill:
            self.fetched_tokens = self.prompt_tokens
        self._reply, self._texts, self._ids = reply, reply.texts, reply.ids
        self._context = context
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

    @property
    def text(self) -> str:
        return "".join(self._texts[: self._position])

    def _emit_until(self, stop: int, at_s: float, part: Part | None) -> bool:
        """Emits and counts tokens up to `stop`, due at `at_s`, all of `part`; returns whether more follow."""
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
        if reason == "abort":
            self._texts = self._ids = ()  # the timer wheel may hold the sequence for a while
        super()._end(reason, counted)


class TimedSequence(ReplySequence):
    """One choice, which holds its slot from `start` until its last token, failure or abort.

    Times are absolute: start + time to first token + the sum of the waits so far.
    """

    __slots__ = ("_due_s", "has_waited", "holds_slot")

    def __init__(self, pool: SequencePool, request: EngineRequest, reply: Reply, handle: Handle) -> None:
        super().__init__(pool.context, request, reply, handle, pool.leave)
        self.has_waited = self.holds_slot = False
        self._due_s = 0.0

    def start(self) -> bool:
        """Starts with a slot, and emits tokens already due; returns False if the sequence is over."""
        context, request, prompt_tokens = self._context, self.request, self.prompt_tokens
        now_s = context.clock.now()
        self.scheduled_s = at_s = now_s if self.has_waited else request.arrival_s
        if self.adapter is not None:
            self._recorder.adapter_moved(self, self.adapter, "running")
        try:
            if context.cache is not None:
                context.cache.allocate(self)
            if self.cached_tokens < request.cache_hit_threshold * prompt_tokens:
                self.empty()
                self.fetched_tokens = self.created_tokens = 0
                self._due_s = at_s
            else:
                known = self.cached_tokens + self.fetched_tokens
                remote = request.remote_prefill
                self._due_s = at_s + context.timing.time_to_first_token(prompt_tokens, known, remote)
                if self._delays is not None:
                    self._due_s += self._delays.get(0, 0.0)
            next_s = self.turn(now_s) if self._due_s <= now_s else self._due_s
        except Exception as error:
            log.exception("a sequence failed at its start")
            self.fail(error)
            return False
        if self.over or next_s is None:
            return False
        self.holds_slot = True
        context.wheel.add(next_s, self)
        return True

    def turn(self, now_s: float) -> float | None:
        """Emits tokens due at `now_s`; returns the next due time, None after the last token."""
        take = self._take_token
        if take is not None and (next_s := self._plain_turn(take, now_s)) is not None:
            return next_s
        if self.over:  # the wheel now drops the sequence
            return None
        timing, start, at_s = self._context.timing, self._position, self._due_s
        if not self.begun:
            reply = self._reply
            self._start(at_s, reply.prompt_logprobs, reply.logprobs is None and self._delays is None)
            if self.over:  # aborted by the receiver of `Started`
                return None
        stop, next_s, part = start + 1, at_s, self._part
        if stop < self._part_end:
            gap_s = timing.constant_gap_s
            next_s += gap_s if gap_s is not None and self._delays is None else self._gap(stop)
            if next_s <= now_s and self.request.num_choices == 1:  # several choices alternate token by token
                stop, at_s, next_s = self._due_together(stop, next_s, now_s)
        if stop == self._part_end and stop < len(self._texts):
            next_s += timing.image() if self._to_next_part() else self._gap(stop)
        self._due_s = next_s
        if not self._emit_until(stop, at_s, part):
            return None
        # Late choices alternate: none returns a time before that of the others.
        return next_s if next_s > now_s else now_s

    def _plain_turn(self, take: TakeToken, now_s: float) -> float | None:
        """Emits one ordinary token; returns the next due time, or None if a full `turn` is needed."""
        context, start, at_s = self._context, self._position, self._due_s
        stop, gap_s = start + 1, context.timing.constant_gap_s
        if gap_s is None or not start or stop >= self._part_end or self._part is not None:
            return None
        next_s = at_s + gap_s
        if next_s <= now_s:  # two tokens are due together
            return None
        self._position, self._due_s = stop, next_s
        if context.cache is not None:
            context.cache.append(self, 1)
            context.cache.publish()
        context.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], self._ids[start], at_s)
        return next_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """Returns the end of the tokens to emit now, the last one's due time, and the next token's."""
        wanted = self.request.logprobs
        most = MOST_AT_ONCE if wanted is None else max(1, MOST_AT_ONCE // (wanted + 2))
        at_s, end = self._due_s, min(self._part_end, stop - 1 + most)
        if self._delays is None and self._context.timing.constant_gap_s == 0:
            return end, next_s, next_s
        while stop < end and next_s <= now_s:
            at_s = next_s
            stop += 1
            if stop < self._part_end:
                next_s += self._gap(stop)
        return stop, at_s, next_s

    def _gap(self, token: int) -> float:
        gap_s = self._context.timing.inter_token()
        return gap_s if self._delays is None else gap_s + self._delays.get(token, 0.0)

    def status(self) -> SequenceStatus:
        running_s, first_s = self.scheduled_s, self._first_s
        if running_s is None:
            return SequenceStatus(Phase.QUEUED, 0, 0, None, None)
        before = Phase.TRANSFER if self.request.remote_prefill else Phase.PREFILL
        phase = before if first_s is None else Phase.DECODE
        return SequenceStatus(phase, self.prompt_tokens, 0, running_s, first_s)


class SequencePool:
    """Runs at most `slots` sequences at a time, in the manner of `concurrent.futures`.

    A slot is not a thread, which would only sleep, as the timer wheel does; a thread switch would cost more
    than a short reply. A sequence starts in the submitter's own turn if a slot is free, else in the turn that
    frees one. One event loop owns the state, so locks are unnecessary.
    """

    def __init__(self, slots: int, lora: LoRASlots, by_priority: bool, context: SequenceContext) -> None:
        self.slots = slots
        self.running = 0
        self.paused = False
        self.queue: WaitingQueue[TimedSequence] = WaitingQueue(lora, by_priority)
        self.context = context
        self._will_fill = False

    @property
    def waiting(self) -> int:
        return len(self.queue.members)

    queued = waiting

    def free(self, adapter: str | None = None) -> int:
        if self.paused or adapter is not None and not self.queue.is_ready(adapter):
            return 0
        return self.slots - self.running

    def submit(self, sequence: TimedSequence, soon: bool = False) -> None:
        """Starts `sequence` once a slot is free, but not in this turn if `soon`."""
        members = self.queue.members
        if not (soon or members) and self.free(sequence.adapter) > 0 and sequence.fits():
            self.queue.hold(sequence)
            self._run(sequence)
        else:
            self.queue.add(sequence)
        if soon:
            self._fill_later()
        elif members:
            self._fill()
        if sequence in members:
            sequence.has_waited = True
            if sequence.adapter is not None:
                self.context.recorder.adapter_moved(sequence, sequence.adapter, "waiting")

    def leave(self, sequence: TimedSequence) -> None:
        """Takes an ended sequence out of the queue, or frees its slot and blocks for waiting ones."""
        self.queue.remove(sequence)
        if sequence.adapter is not None:
            self.context.recorder.adapter_moved(sequence, sequence.adapter, None)
        if (cache := self.context.cache) is not None:
            cache.release(sequence)
            cache.publish()
        if sequence.holds_slot:
            self._give_back(sequence)
            if self.queue.members:
                self._fill()

    def pause(self) -> None:
        """Grants no more slots; running sequences keep theirs."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._fill()

    def _fill(self) -> None:
        started, self._will_fill = 0, False
        while not self.paused and self.running < self.slots:
            if started == MOST_PER_TURN:
                self._fill_later()
                return
            sequence = self.queue.head()
            if sequence is None or not sequence.fits():
                return
            self.queue.pop(sequence)
            started += 1
            self._run(sequence)

    def _fill_later(self) -> None:
        if not self._will_fill:
            self._will_fill = True
            self.context.wheel.call_soon(self._fill)

    def _run(self, sequence: TimedSequence) -> None:
        self.running += 1
        try:
            if sequence.start():
                return
        except Exception:
            log.exception("a sequence could not be started")
        self._give_back(sequence)

    def _give_back(self, sequence: TimedSequence) -> None:
        self.running -= 1
        self.queue.left(sequence)
