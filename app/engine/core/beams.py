"""Beam search as vLLM serves it: each step of a beam is a separate request, and whole beams are emitted.

The beams' texts are decided in advance, as with any reply. Only timing, queueing and block use are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from app.base.clock.clock import Clock
from app.base.clock.timer_wheel import TimerWheel
from app.engine.core.outputs import Emit, EngineOutput, Failed, Finish, Started, Tokens
from app.engine.core.request import LENGTH, STOP, EngineRequest, Reply
from app.engine.core.sequence import Handle

Run = Callable[[Sequence[EngineRequest], Sequence[Reply], Emit], Handle]


class BeamSearch(Handle):
    """A beam search with n beams per prompt. The first step runs one request per prompt."""

    def __init__(
        self,
        run: Run,
        clock: Clock,
        wheel: TimerWheel,
        requests: Sequence[EngineRequest],
        replies: Sequence[Reply],
        emit: Emit,
    ) -> None:
        """Raises any EngineError of the first step."""
        super().__init__({self: None})
        self._unfinished = 1
        self._run, self._clock, self._wheel, self._emit = run, clock, wheel, emit
        self._beams = list(zip(requests, map(_without_end, replies), strict=True))
        self._steps = max(len(reply.ids) for _, reply in self._beams)
        self._step = self._pending = 0
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
        step, now_s = self._step, self._clock.now()
        going = [
            (request, reply)
            for request, reply in self._beams
            if step < len(reply.ids) and (step or request.index % request.n == 0)
        ]
        self._pending, self._running = len(going), []
        if not going:
            self._tell(None)
        for request, reply in going:
            asked = replace(
                request,
                index=0,
                prompt_ids=[*request.prompt_ids, *reply.ids[:step]],
                max_tokens=1,
                limited=True,
                arrival_s=now_s if step else request.arrival_s,
                n=1,
                num_choices=1,
                beams=False,
            )
            token = Reply(reply.texts[step : step + 1], reply.ids[step : step + 1], LENGTH)
            self._running.append(self._run((asked,), (token,), partial(self._take, request.index)))

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
                self._wheel.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_over:
            return
        if self._step >= self._steps:
            self._tell(None)
            return
        try:
            self._begin_step()
        except Exception as error:
            self._fail(0, error)

    def _tell(self, aborted: Finish | None) -> None:
        self._is_over = True
        at_s = self._clock.now()
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
