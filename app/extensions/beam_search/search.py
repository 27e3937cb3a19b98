"""Beam search as vLLM serves it: each step of a beam is a separate request.

The model decides the texts of beams in advance. Only timing, queueing and block use are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import partial

from msgspec.structs import replace

from app.core.base.clock.pause import MAX_WORK_S
from app.core.engine.engine import Engine
from app.core.engine.executor import SequenceContext
from app.core.engine.outputs import Emit, EngineOutput, Failed, Finish, Started, Tokens
from app.core.engine.request import LENGTH, STOP, EngineRequest, Reply
from app.core.engine.sequence import Handle
from app.core.text.base import Tokenizer
from app.extensions.beam_search.replies import beams_of

Run = Callable[[ListOf[EngineRequest], ListOf[Reply], Emit], Handle]
"""Runs a request with known replies."""


def search(
    engine: Engine, tokenizer: Tokenizer, requests: ListOf[EngineRequest], emit: Emit
) -> Handle:
    """Runs the beam search of a request on `engine`."""
    beams = list(zip(requests, beams_of(engine, tokenizer, requests), strict=True))
    return BeamSearch(engine.run, engine.context, beams, emit)


class BeamSearch(Handle):
    """The handle of a beam search. Whole beams are emitted, at the end.

    There are n beams per prompt, best first. The first step runs one request per prompt.
    """

    def __init__(
        self,
        run: Run,
        context: SequenceContext,
        beams: ListOf[tuple[EngineRequest, Reply]],
        emit: Emit,
    ) -> None:
        super().__init__({self: None})
        self._unfinished = 1
        self._run = run
        self._context = context
        self._emit = emit
        self._beams = [
            (request, _without_end(reply, request.max_tokens)) for request, reply in beams
        ]
        self._step = 0
        self._pending = 0
        """Unfinished requests of this step."""
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
        """Ends the search. Nothing more is emitted."""
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
        self._pending = len(self._due)
        self._running = []
        if self._due:
            self._submit_due()
        else:
            self._emit_beams(None)

    def _submit_due(self) -> None:
        """Submits requests of this step for `MAX_WORK_S`, and the others in later turns."""
        step = self._step
        now = self._context.clock.now
        begun_s = now()
        while self._due and not self._is_over:
            if now() - begun_s > MAX_WORK_S:
                self._context.wheel.call_soon(partial(self._continue_with, self._submit_due))
                return
            request, reply = self._due.pop()
            step_request = replace(
                request,
                index=0,
                prompt_ids=[*request.prompt_ids, *reply.ids[:step]],
                max_tokens=1,
                sampling=replace(request.sampling, max_tokens=1),
                arrival_s=begun_s if step else request.arrival_s,
                n=1,
                num_choices=1,
                beams=False,
            )
            token = Reply(reply.texts[step : step + 1], reply.ids[step : step + 1], LENGTH)
            take = partial(self._take, request.index)
            self._running.append(self._run((step_request,), (token,), take))

    def _take(self, index: int, output: EngineOutput) -> None:
        if self._is_over:
            return
        if type(output) is Failed:
            self._fail(index, output.error)
        elif type(output) is Tokens and output.finish is not None:
            self._pending -= 1
            if output.finish.reason == "abort":
                self._emit_beams(output.finish)
            elif not self._pending:
                self._step += 1
                # The requests of this step have yet to release their slots.
                self._context.wheel.call_soon(partial(self._continue_with, self._begin_step))

    def _continue_with(self, work: Callable[[], None]) -> None:
        try:
            if not self._is_over:
                work()
        except Exception as error:
            self._fail(0, error)

    def _emit_beams(self, aborted: Finish | None) -> None:
        """Emits all beams; `aborted` replaces their finish reasons."""
        self._is_over = True
        at_s = self._context.clock.now()
        for request, reply in self._beams:
            self._emit(Started(request.index, at_s, 0, reply.prompt_logprobs))
        for request, reply in self._beams:
            start = 0
            for end, part in reply.all_spans():
                finish = None
                if end == len(reply.texts):
                    finish = aborted or reply.finish
                tokens = Tokens(
                    index=request.index,
                    texts=["".join(reply.texts[start:end])],
                    ids=reply.ids[start:end],
                    at_s=at_s,
                    logprobs=None if reply.logprobs is None else reply.logprobs[start:end],
                    finish=finish,
                    part=part,
                )
                self._emit(tokens)
                start = end
        self.end_one()


def _without_end(reply: Reply, max_tokens: int) -> Reply:
    """Returns the reply with a final end-of-text token moved to its finish."""
    if not max_tokens:
        return replace(reply, finish=LENGTH)
    if reply.finish != STOP or not reply.ids or reply.texts[-1]:
        return reply
    shorter = replace(reply.cut(len(reply.ids) - 1), finish=Finish("stop", reply.ids[-1]))
    shorter.logprobs = None if reply.logprobs is None else reply.logprobs[:-1]
    return shorter
