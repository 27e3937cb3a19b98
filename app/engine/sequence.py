"""The life of one generation: waiting, prefill, decode, over; and what the metrics learn of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from app.clock.clock import Clock
from app.engine.executor import SlotExecutor
from app.engine.observer import Outcome, Watch, tell
from app.engine.outputs import Event, Failed, Finish, Started, Tokens
from app.engine.request import Generation
from app.engine.runner import Performance
from app.engine.waiting import Turn
from app.metrics.recorder import Recorder

COUNTED_AS = {"cache_threshold": "stop"}
"""Reasons that vLLM's metrics do not know."""


class Sequence:
    """One choice. It holds its place from `start` until its last token, failure or abort.

    `place` is the future of its turn in the executor; `leave`, made when the start was not yet the end,
    gives the place back.
    """

    __slots__ = (
        "_begun",
        "_cached_tokens",
        "_clock",
        "_emit",
        "_ended",
        "_executor",
        "_first_s",
        "_last_s",
        "_leave",
        "_performance",
        "_queued",
        "_recorder",
        "_scheduled_s",
        "_watches",
        "generation",
        "over",
        "place",
        "tokens",
    )

    def __init__(
        self,
        generation: Generation,
        performance: Performance,
        recorder: Recorder,
        clock: Clock,
        emit: Callable[[Event], None],
        ended: Callable[[Sequence], None],
        watches: Iterable[Watch] = (),
    ) -> None:
        self.generation = generation
        self.place: Future[None] | None = None
        self.over = False
        self._executor: SlotExecutor | None = None
        self._leave: Future[None] | None = None
        self.tokens = 0
        self._performance = performance
        self._recorder = recorder
        self._clock = clock
        self._emit = emit
        self._ended = ended
        self._watches = tuple(watches)
        self._queued = False
        self._begun = False
        self._cached_tokens = 0
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def submit(self, executor: SlotExecutor) -> None:
        """Ask for a place; waits in line when none is free."""
        self._executor = executor
        generation = self.generation
        self.place = executor.take_turn(
            Turn(generation.adapter, generation.priority, self._performance.fits), self.start
        )
        if self._scheduled_s is None and not self.over:
            self._queued = True
            self._recorder.waiting(1, generation.adapter)

    def start(self) -> Future[None] | None:
        """The executor gives a place; it is ours until the returned future is done, if there is one."""
        self._scheduled_s = self.generation.arrival_s
        if self._queued:
            self._queued = False
            self._recorder.waiting(-1, self.generation.adapter)
            self._scheduled_s = self._clock.now()
        self._recorder.running(1, self.generation.adapter)
        try:
            self._performance.start(self._on_event, self._scheduled_s)
        except Exception as error:
            self._on_event(Failed(self.generation.index, error))
        if self.over:
            return None
        self._leave = Future()
        return self._leave

    def abort(self) -> None:
        """The client is gone: stop playing, give the place or the turn in line back."""
        if self.over:
            return
        self._performance.cancel()
        if self._executor is not None and self.place is not None and self._queued:
            self._executor.forget(self.place)
        self._end("abort")

    def interrupt(self) -> None:
        """The server ends it: as `abort`, but whoever listens is told."""
        if self.over:
            return
        begun = self._begun
        self.abort()
        now_s, index = self._clock.now(), self.generation.index
        if not begun:
            self._emit(Started(index, now_s))
        self._emit(Tokens(index, (), (), now_s, None, Finish("abort")))

    def _on_event(self, event: Event) -> None:
        if type(event) is Tokens:
            count = len(event.ids)
            self.tokens += count
            if self._first_s is None:
                self._first_token(event)
            elif count:
                self._recorder.decoded(count, (event.at_s - self._last_s) / count, event.at_s)
            self._last_s = event.at_s
            self._emit(event)
            if event.finish is not None and not self.over:
                self._end(COUNTED_AS.get(event.finish.reason, event.finish.reason))
            return
        if type(event) is Started:
            self._begun = True
            self._cached_tokens = event.cached_tokens
        elif not self.over:
            self._end("error")
        self._emit(event)

    def _first_token(self, event: Tokens) -> None:
        """Several tokens at once are one first token, and more that follow without a wait."""
        at_s, generation = event.at_s, self.generation
        self._first_s = at_s
        prompt_tokens = len(generation.prompt_ids)
        ttft_s, count = at_s - generation.arrival_s, len(event.ids)
        self._recorder.prefilled(ttft_s, prompt_tokens, self._cached_tokens, at_s, min(count, 1))
        if count > 1:
            self._recorder.decoded(count - 1, 0.0, at_s)

    def _end(self, reason: str) -> None:
        if self._queued:
            self._queued = False
            self._recorder.waiting(-1, self.generation.adapter)
        elif self._scheduled_s is not None:
            self._recorder.running(-1, self.generation.adapter)
        self.over = True
        self._record_end(reason)
        self._ended(self)
        if self._watches:
            tell(self._watches, self._outcome(reason))
        if self._leave is not None:
            self._leave.set_result(None)

    def _outcome(self, reason: str) -> Outcome:
        return Outcome(
            reason=reason,
            scheduled_s=self._scheduled_s,
            first_token_s=self._first_s,
            last_token_s=None if self._first_s is None else self._last_s,
            ended_s=self._clock.now(),
            cached_tokens=self._cached_tokens,
            tokens=self.tokens,
        )

    def _record_end(self, reason: str) -> None:
        now_s = self._clock.now()
        generation = self.generation
        scheduled_s = now_s if self._scheduled_s is None else self._scheduled_s
        first_s = scheduled_s if self._first_s is None else self._first_s
        self._recorder.finished(
            reason,  # type: ignore[arg-type]
            prompt_tokens=len(generation.prompt_ids),
            generation_tokens=self.tokens,
            cached_tokens=self._cached_tokens,
            max_tokens=generation.max_tokens,
            queue_s=scheduled_s - generation.arrival_s,
            prefill_s=first_s - scheduled_s,
            decode_s=max(0.0, self._last_s - first_s),
            e2e_s=now_s - generation.arrival_s,
        )
