"""One choice of a request in the engine: it waits for a slot, runs, emits its tokens and is counted.

The sequence itself stands in the waiting queue, holds the slot and waits in the timer wheel: nothing else is
made for it, and nothing for a token but the output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.clock.clock import Clock
from app.clock.timer_wheel import TimerWheel
from app.engine.cache_manager import SequenceBlocks
from app.engine.client import Emit, TakeToken
from app.engine.executor import SlotExecutor
from app.engine.outputs import Failed, Finish, Started, Tokens
from app.engine.reply import Reply
from app.engine.request import EngineRequest, Outcome, Watch, notify
from app.engine.timing import PerRequestTiming
from app.metrics.recorder import Recorder
from app.metrics.sequences import FinishedSequence, FinishReason

ABORT = Finish("abort")
CACHE_THRESHOLD = Finish("cache_threshold")
COUNTED_AS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "cache_threshold": "stop",
}
"""What vLLM's metrics call the reasons to finish."""
MOST_AT_ONCE = 1024
"""Tokens in one output, fewer with log probabilities: nobody has to render more in one go."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all sequences of an engine run on."""

    clock: Clock
    wheel: TimerWheel
    timing: PerRequestTiming
    executor: SlotExecutor
    recorder: Recorder


class Sequence:
    """One choice. It holds its slot from `start` until its last token, failure or abort.

    Moments are absolute: start + time to first token + the sum of the waits so far. Tokens that have become
    due together leave in one output, if they belong to the same part of the reply.
    """

    # Thousands of sequences take their turns one after another: each must touch little memory.
    __slots__ = (
        "_begun",
        "_blocks",
        "_cached_tokens",
        "_delays",
        "_due_s",
        "_emit",
        "_ended",
        "_fetched_tokens",
        "_first_s",
        "_holds_slot",
        "_ids",
        "_last_s",
        "_part",
        "_part_end",
        "_parts_done",
        "_position",
        "_queued",
        "_reply",
        "_runtime",
        "_scheduled_s",
        "_take_token",
        "_texts",
        "adapter",
        "over",
        "request",
        "tokens",
        "watches",
    )

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        blocks: SequenceBlocks | None,
        runtime: Runtime,
        emit: Emit,
        ended: Callable[[Sequence], tuple[int, int]],
    ) -> None:
        """`ended` is called once, when it is over; it gives `choices` and `longest` of `FinishedSequence`."""
        self.request = request
        self.adapter = request.adapter
        self.watches: Iterable[Watch] = ()
        """Told how it went, when it is over."""
        self.tokens = 0
        """Emitted so far."""
        self.over = False
        self._reply, self._texts, self._ids = reply, reply.texts, reply.ids
        self._blocks = blocks
        self._runtime = runtime
        self._emit = emit
        self._take_token: TakeToken | None = None
        self._ended = ended
        self._queued = self._holds_slot = self._begun = False
        self._position = self._cached_tokens = self._fetched_tokens = 0
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._due_s = self._last_s = 0.0

    @property
    def priority(self) -> int:
        """See `Task.priority`."""
        return self.request.priority

    def fits(self) -> bool:
        """Whether the KV cache has room for the prompt now."""
        return self._blocks is None or self._blocks.fits()

    def enter(self, soon: bool = False) -> None:
        """Ask for a slot, or for one in a later turn; wait in the queue when none is free."""
        if not self._runtime.executor.enter(self, soon) and not self.over:
            self._queued = True
            self._runtime.recorder.waiting(1, self.adapter)

    def start(self) -> bool:
        """A slot is ours; what is due already is emitted before this returns. False when that was all."""
        runtime = self._runtime
        now_s, recorder = runtime.clock.now(), runtime.recorder
        at_s = self.request.arrival_s
        if self._queued:
            self._queued = False
            recorder.waiting(-1, self.adapter)
            at_s = now_s
        self._scheduled_s = at_s
        recorder.running(1, self.adapter)
        try:
            self._prefill(at_s)
            next_s = self.turn(now_s) if self._due_s <= now_s else self._due_s
        except Exception as error:
            log.exception("a sequence failed at its start")
            self.fail(error)
            return False
        if self.over or next_s is None:
            return False
        self._holds_slot = True
        runtime.wheel.add(next_s, self)
        return True

    def _prefill(self, at_s: float) -> None:
        """Begin at `at_s`: take the blocks, and see when the first token is due."""
        request, spans, delays = self.request, self._reply.spans, self.request.delays
        prompt_tokens = len(request.prompt_ids)
        self._delays = dict(delays) if delays else None
        self._parts_done = 0
        self._part_end, self._part = spans[0] if spans else (len(self._texts), None)
        if self._blocks is not None:
            self._cached_tokens = self._blocks.allocate()
        if self._cached_tokens < request.least_hit_rate * prompt_tokens:
            # Too little is cached: the reply is empty, and comes at once (simulator.md 13.7).
            self._reply = Reply((), (), CACHE_THRESHOLD)
            self._texts = self._ids = ()
            self._part_end, self._part = 0, None
            self._due_s = at_s
            return
        if request.remote_prefill:
            self._fetched_tokens = prompt_tokens - self._cached_tokens
        self._due_s = at_s + self._runtime.timing.time_to_first_token(
            prompt_tokens, self._cached_tokens, request.remote_prefill
        )
        if self._delays is not None:
            self._due_s += self._delays.get(0, 0.0)

    def turn(self, now_s: float) -> float | None:
        """Emit what is due at `now_s`; when the next token is due, None when that was the last."""
        take = self._take_token
        if take is not None and (next_s := self._plain_turn(take, now_s)) is not None:
            return next_s
        if self.over:  # the wheel forgets us now
            return None
        runtime, start, at_s = self._runtime, self._position, self._due_s
        if not self._begun:
            self._begin(at_s)
            if self.over:  # aborted by whoever took it
                return None
        stop, next_s, part = start + 1, at_s, self._part
        if stop < self._part_end:
            gap_s = runtime.timing.constant_gap_s
            next_s += gap_s if gap_s is not None and self._delays is None else self._gap(stop)
            if next_s <= now_s and self.request.together == 1:  # several choices take turns, token by token
                stop, at_s, next_s = self._due_together(stop, next_s, now_s)
        if stop == self._part_end and stop < len(self._texts):
            next_s += self._next_part(stop)
        self._position, self._due_s = stop, next_s
        texts, ids, reply = self._texts[start:stop], self._ids[start:stop], self._reply
        logprobs = None if reply.logprobs is None else reply.logprobs[start:stop]
        if self._blocks is not None:
            self._blocks.append(ids)
        count = len(ids)
        if self._first_s is None:
            self._count_first(count, at_s)
        elif count:
            runtime.recorder.decoded(count, (at_s - self._last_s) / count, at_s)
        self.tokens += count
        self._last_s = at_s
        if stop < len(self._texts):
            self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs, None, part))
            # Choices that are late together take turns: none goes back before the moment of the others.
            return next_s if next_s > now_s else now_s
        if self._blocks is not None:
            self._release(self._blocks)
        self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs, reply.finish, part))
        if not self.over:
            self._end(COUNTED_AS[reply.finish.reason])
        return None

    def _begin(self, at_s: float) -> None:
        self._begun = True
        reply = self._reply
        take = self._emit(Started(self.request.index, at_s, self._cached_tokens, reply.prompt_logprobs))
        if reply.logprobs is None and self._delays is None and not self.over:
            self._take_token = take

    def _plain_turn(self, take: TakeToken, now_s: float) -> float | None:
        """The turn of a token that is like nearly all; when the next one is due. None: take a usual turn."""
        runtime, start, at_s = self._runtime, self._position, self._due_s
        stop, gap_s = start + 1, runtime.timing.constant_gap_s
        if gap_s is None or not start or stop >= self._part_end or self._part is not None:
            return None
        next_s = at_s + gap_s
        if next_s <= now_s:  # it comes together with the next one
            return None
        self._position, self._due_s = stop, next_s
        token_id = self._ids[start]
        if self._blocks is not None:
            self._blocks.append((token_id,))
        runtime.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], token_id, at_s)
        return next_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """The end of the tokens that leave now, and the moments of the last of them and of the next token.

        The one before `stop` is due, and so is `stop` since `next_s`.
        """
        at_s, end = self._due_s, min(self._part_end, stop - 1 + self._most)
        if self._delays is None and self._runtime.timing.constant_gap_s == 0:
            return end, next_s, next_s
        while stop < end and next_s <= now_s:
            at_s = next_s
            stop += 1
            if stop < self._part_end:
                next_s += self._gap(stop)
        return stop, at_s, next_s

    @property
    def _most(self) -> int:
        """Tokens that may leave together: with log probabilities, fewer."""
        wanted = self.request.logprobs
        return MOST_AT_ONCE if wanted is None else max(1, MOST_AT_ONCE // (wanted + 2))

    def _gap(self, token: int) -> float:
        """Seconds between the token before `token` and that one."""
        gap_s = self._runtime.timing.inter_token()
        return gap_s if self._delays is None else gap_s + self._delays.get(token, 0.0)

    def _next_part(self, token: int) -> float:
        """Go on to the part that begins with `token`; the seconds until it is due."""
        self._parts_done += 1
        self._part_end, self._part = self._reply.spans[self._parts_done]
        drawn = self._part is not None and self._part.kind == "image"
        return self._runtime.timing.image() if drawn else self._gap(token)

    def fail(self, error: Exception) -> None:
        """It broke, or its output could not be taken: end it, and say so."""
        if not self.over:
            self._end("error")
            emit_failure(self.request, error, self._emit)

    def abort(self) -> None:
        """Emit nothing more, and give the slot, or the place in the queue, back."""
        if self.over:
            return
        if self._queued:
            self._runtime.executor.forget(self)
        self._texts = self._ids = ()  # the wheel may keep us for a while
        self._end("abort")

    def interrupt(self) -> None:
        """As `abort`, but whoever takes the outputs is told that it ended so."""
        if self.over:
            return
        self.abort()
        now_s, index = self._runtime.clock.now(), self.request.index
        if not self._begun:
            self._emit(Started(index, now_s))
        self._emit(Tokens(index, (), (), now_s, None, ABORT))

    def _count_first(self, tokens: int, at_s: float) -> None:
        """Several tokens at once are one first token, and more that follow without a wait."""
        self._first_s = at_s
        recorder, request = self._runtime.recorder, self.request
        ttft_s, prompt_tokens = at_s - request.arrival_s, len(request.prompt_ids)
        cached_tokens = self._cached_tokens + self._fetched_tokens
        if self._fetched_tokens:
            recorder.fetched(self._fetched_tokens, at_s - (self._scheduled_s or at_s))
        recorder.prefilled(ttft_s, prompt_tokens, cached_tokens, at_s, min(tokens, 1))
        if tokens > 1:
            recorder.decoded(tokens - 1, 0.0, at_s)

    def _release(self, blocks: SequenceBlocks) -> None:
        self._blocks = None
        blocks.release()

    def _end(self, reason: FinishReason) -> None:
        if self._blocks is not None:
            self._release(self._blocks)
        runtime, request, now_s = self._runtime, self.request, self._runtime.clock.now()
        if self._queued:
            self._queued = False
            runtime.recorder.waiting(-1, self.adapter)
        elif self._scheduled_s is not None:
            runtime.recorder.running(-1, self.adapter)
        self.over = True
        self._take_token = None
        scheduled_s = now_s if self._scheduled_s is None else self._scheduled_s
        first_s = scheduled_s if self._first_s is None else self._first_s
        choices, longest = self._ended(self)
        row = FinishedSequence(
            reason,
            prompt_tokens=len(request.prompt_ids),
            generation_tokens=self.tokens,
            cached_tokens=self._cached_tokens + self._fetched_tokens,
            max_tokens=request.max_tokens,
            queue_s=scheduled_s - request.arrival_s,
            prefill_s=first_s - scheduled_s,
            decode_s=self._last_s - first_s if self._last_s > first_s else 0.0,
            e2e_s=now_s - request.arrival_s,
            choices=choices,
            longest=longest,
        )
        runtime.recorder.sequence_finished(row)
        if self.watches:
            notify(self.watches, self._outcome(reason, now_s))
        if self._holds_slot:
            self._holds_slot = False
            runtime.executor.leave(self)

    def _outcome(self, reason: str, now_s: float) -> Outcome:
        return Outcome(
            reason=reason,
            scheduled_s=self._scheduled_s,
            first_token_s=self._first_s,
            last_token_s=None if self._first_s is None else self._last_s,
            ended_s=now_s,
            cached_tokens=self._cached_tokens,
            tokens=self.tokens,
        )


def emit_at_once(request: EngineRequest, reply: Reply, emit: Emit, runtime: Runtime) -> None:
    """Emit and count a reply that waits for nothing, as a `Sequence` would, in a fifth of its time."""
    at_s, recorder, tokens = request.arrival_s, runtime.recorder, 0
    prompt_tokens, begun, failure = len(request.prompt_ids), False, None
    try:
        emit(Started(request.index, at_s, 0, reply.prompt_logprobs))
        begun, tokens = True, len(reply.ids)
        emit(Tokens(request.index, reply.texts, reply.ids, at_s, None, reply.finish))
        reason = COUNTED_AS[reply.finish.reason]
    except Exception as error:
        log.exception("a sequence failed at its start")
        reason, failure = "error", error
    e2e_s = runtime.clock.now() - at_s
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


def emit_failure(request: EngineRequest, error: Exception, emit: Emit) -> None:
    """Say that a sequence broke, to whoever may be broken itself."""
    try:
        emit(Failed(request.index, error))
    except Exception:
        log.exception("the failure of a sequence could not be told")
