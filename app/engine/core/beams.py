"""Beams as vLLM answers them: each in one piece, once all have ended.

The texts are decided in advance, as with any reply, and each beam runs as a choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.core.outputs import Emit, EngineOutput, Failed, Finish, Started, Tokens
from app.engine.core.request import STOP, EngineRequest, Reply
from app.engine.core.sequence import Handle


class Beams:
    """Receives the outputs of a request's beams; emits whole ones, or the first failure alone."""

    def __init__(self, requests: Sequence[EngineRequest], replies: Sequence[Reply], emit: Emit) -> None:
        self._beams, self._emit = list(zip(requests, replies, strict=True)), emit
        self._finishes: dict[int, Finish] = {}
        self._has_failed = False
        self._handle: Handle | None = None

    def follow(self, handle: Handle) -> Handle:
        """Aborts all other beams, now or later, when one has failed."""
        self._handle = handle
        if self._has_failed:
            handle.abort()
        return handle

    def take(self, output: EngineOutput) -> None:
        if type(output) is Failed and not self._has_failed:
            self._has_failed = True
            self._emit(output)
            if self._handle is not None:
                self._handle.abort()
        elif type(output) is Tokens and output.finish is not None:
            self._finishes[output.index] = output.finish
            if len(self._finishes) == len(self._beams) and not self._has_failed:
                self._emit_all(output.at_s)

    def _emit_all(self, at_s: float) -> None:
        for request, reply in self._beams:
            self._emit(Started(request.index, at_s, 0, reply.prompt_logprobs))
        for request, reply in self._beams:
            finish, count = self._finishes[request.index], len(reply.texts)
            if finish == STOP and reply.ids and not reply.texts[-1]:  # the end of text is no part of a beam
                finish, count = Finish("stop", reply.ids[-1]), count - 1
            start = 0
            for end, part in reply.all_spans():
                end, last = min(end, count), finish if end >= count else None
                text, ids = "".join(reply.texts[start:end]), reply.ids[start:end]
                entries = None if reply.logprobs is None else reply.logprobs[start:end]
                self._emit(Tokens(request.index, [text], ids, at_s, entries, last, part))
                start = end
