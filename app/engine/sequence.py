"""One choice of a request in the engine: what it emits, how it is counted, how it ends.

When its tokens are due its kinds say: `TimedSequence` has a timeline of its own, `SteppedSequence` shares the
steps of an engine with others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from app.clock.clock import Clock
from app.clock.timer_wheel import TimerWheel
from app.engine.cache_manager import SequenceBlocks
from app.engine.client import Emit, TakeToken
from app.engine.outputs import Failed, Finish, Part, Started, Tokens
from app.engine.reply import Reply
from app.engine.request import EngineRequest, Outcome, Watch, notify
from app.engine.standing import Phase, Standing
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
    "content_filter": "stop",
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
    recorder: Recorder


class Sequence:
    """One choice, from its submission to its last token, failure or abort.

    Tokens that have become due together leave in one output, if they belong to the same part of the reply.
    """

    # Thousands of sequences take their turns one after another: each must touch little memory.
    __slots__ = (
        "_begun",
        "_blocks",
        "_cached_tokens",
        "_created_tokens",
        "_delays",
        "_emit",
        "_ended",
        "_fetched_tokens",
        "_first_s",
        "_ids",
        "_last_s",
        "_part",
        "_part_end",
        "_parts_done",
        "_position",
        "_queued_s",
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
        self._begun = False
        self._delays: dict[int, float] | None = None
        if request.delays or reply.delays:
            self._delays = summed(request.delays, reply.delays)
        self._position = self._parts_done = 0
        self._cached_tokens = self._created_tokens = self._fetched_tokens = 0
        self._part: Part | None
        self._part_end, self._part = reply.spans[0] if reply.spans else (len(self._texts), None)
        self._queued_s = request.arrival_s
        """When the queue had it."""
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def priority(self) -> int:
        """Lower is earlier, where the scheduling policy looks at it."""
        return self.request.priority

    def fits(self) -> bool:
        """Whether the KV cache has room for the prompt now."""
        return self._blocks is None or self._blocks.fits()

    def enter(self, soon: bool) -> None:
        """Ask to run, or do so in a later turn of the event loop."""
        raise NotImplementedError

    def _withdraw(self) -> None:
        """It waits no more, or runs no more: say so where that is counted."""
        raise NotImplementedError

    def _leave(self) -> None:
        """It is over: give back what it had."""
        raise NotImplementedError

    @property
    def preemptions(self) -> int:
        """How often it lost its blocks."""
        return 0

    def standing(self) -> Standing:
        """How it stands now."""
        running_s, first_s = self._scheduled_s, self._first_s
        if running_s is None:
            return Standing(Phase.QUEUED, 0, 0, None, None)
        before = Phase.TRANSFER if self.request.remote_prefill else Phase.PREFILL
        phase = before if first_s is None else Phase.DECODE
        return Standing(phase, len(self.request.prompt_ids), 0, running_s, first_s)

    def blocks_from(self, first: int) -> list[int]:
        """The numbers of its KV blocks, from its `first`-th one on; none where blocks have no numbers."""
        return [] if self._blocks is None else self._blocks.numbers(first)

    @property
    def text(self) -> str:
        """What it has said so far, without its markup."""
        return "".join(self._texts[: self._position])

    def _begin(self, at_s: float) -> None:
        self._begun = True
        reply, began_s = self._reply, at_s if self._scheduled_s is None else self._scheduled_s
        take = self._emit(
            Started(
                self.request.index,
                at_s,
                self._cached_tokens + self._fetched_tokens,
                reply.prompt_logprobs,
                began_s - self._queued_s,
                at_s - began_s,
                self._created_tokens,
            )
        )
        if reply.logprobs is None and self._delays is None and not self.over:
            self._take_token = take

    def _emit_until(self, stop: int, at_s: float, part: Part | None) -> bool:
        """Emit and count the tokens up to `stop`, all of `part`, due at `at_s`; whether there are more."""
        start, reply = self._position, self._reply
        self._position = stop
        texts, ids = self._texts[start:stop], self._ids[start:stop]
        logprobs = None if reply.logprobs is None else reply.logprobs[start:stop]
        if self._blocks is not None:
            self._blocks.append(ids)
        count = len(ids)
        if self._first_s is None:
            self._count_first(count, at_s)
        elif count:
            self._runtime.recorder.decoded(count, (at_s - self._last_s) / count, at_s)
        self.tokens += count
        self._last_s = at_s
        if stop < len(self._texts):
            self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs, None, part))
            return True
        self._release()
        self._emit(Tokens(self.request.index, texts, ids, at_s, logprobs, reply.finish, part))
        if not self.over:
            self._end(COUNTED_AS[reply.finish.reason])
        return False

    def _empty(self, finish: Finish) -> None:
        """Nothing is said but how it ends."""
        self._reply = Reply((), (), finish)
        self._texts = self._ids = ()
        self._part_end, self._part = 0, None

    def _to_next_part(self) -> bool:
        """The last part is over, go on to the next one; whether that is an image."""
        self._parts_done += 1
        self._part_end, self._part = self._reply.spans[self._parts_done]
        return self._part is not None and self._part.kind == "image"

    def fail(self, error: Exception) -> None:
        """It broke, or its output could not be taken: end it, and say so."""
        if not self.over:
            self._end("error")
            emit_failure(self.request, error, self._emit)

    def abort(self, counted: bool = False) -> None:
        """Emit nothing more, and give back what it has."""
        if self.over:
            return
        self._texts = self._ids = ()  # who paces us may keep us for a while
        self._end("abort", counted)

    def interrupt(self, counted: bool = False) -> None:
        """As `abort`, but whoever takes the outputs is told that it ended so."""
        if self.over:
            return
        self.abort(counted)
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
        if self._fetched_tokens and request.remote_prefill:
            recorder.fetched(self._fetched_tokens, at_s - (self._scheduled_s or at_s))
        elif self._fetched_tokens:
            recorder.loaded(self._fetched_tokens)
        recorder.prefilled(ttft_s, prompt_tokens, cached_tokens, at_s, min(tokens, 1))
        if tokens > 1:
            recorder.decoded(tokens - 1, 0.0, at_s)

    def _release(self) -> None:
        if self._blocks is not None:
            blocks, self._blocks = self._blocks, None
            blocks.release()

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        self._release()
        now_s = self._runtime.clock.now()
        self._withdraw()
        self.over = True
        self._take_token = None
        choices, longest = self._ended(self)
        if counted:
            self._runtime.recorder.sequence_finished(self._finished(reason, now_s, choices, longest))
        else:
            self._runtime.recorder.aborted()
        if self.watches:
            notify(self.watches, self._outcome(reason, now_s))
        self._leave()

    def _finished(self, reason: FinishReason, now_s: float, choices: int, longest: int) -> FinishedSequence:
        request = self.request
        scheduled_s = now_s if self._scheduled_s is None else self._scheduled_s
        first_s = scheduled_s if self._first_s is None else self._first_s
        return FinishedSequence(
            reason,
            prompt_tokens=len(request.prompt_ids),
            generation_tokens=self.tokens,
            cached_tokens=self._cached_tokens + self._fetched_tokens,
            max_tokens=request.max_tokens,
            queue_s=scheduled_s - self._queued_s,
            prefill_s=first_s - scheduled_s,
            decode_s=self._last_s - first_s if self._last_s > first_s else 0.0,
            e2e_s=now_s - request.arrival_s,
            preemptions=self.preemptions,
            choices=choices,
            longest=longest,
        )

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


def summed(*delays: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Token to the seconds before it, of several lists together."""
    waits: dict[int, float] = {}
    for token, seconds in chain.from_iterable(delays):
        waits[token] = waits.get(token, 0.0) + seconds
    return waits


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
