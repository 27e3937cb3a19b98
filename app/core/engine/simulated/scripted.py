"""Replies that a script has decided, as tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from msgspec.structs import replace

from app.core.engine.endings import ended
from app.core.engine.outputs import Finish
from app.core.engine.request import (
    LENGTH,
    STOP,
    EngineRequest,
    Reply,
    ScriptedReply,
    as_thoughts,
    joined,
)
from app.core.engine.simulated.calls import CallReplies, WrittenCalls, written
from app.core.engine.simulated.thought_marks import ThoughtMarks
from app.core.text.base import Tokenizer

MAX_KNOWN_TEXTS = 64
"""Most texts whose tokens are kept, in about 2 MiB."""
MAX_KNOWN_CHARACTERS = 1024
"""Longest text whose tokens are kept."""
THOUGHTS = "<think>\n{}\n</think>\n\n"


class ScriptedReplies:
    """Makes replies of scripts. They end at the limit and at the stops of a request."""

    def __init__(self, tokenizer: Tokenizer, calls: CallReplies, marks: ThoughtMarks) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self._marks = marks
        self._known_tokens = lru_cache(MAX_KNOWN_TEXTS)(self._tokens)
        """Tokens of the last short texts: most rules give the same text each time."""

    def _tokens(self, text: str) -> tuple[Sequence[int], Sequence[str]]:
        """Returns ids and texts of the tokens of a text."""
        ids = tuple(self._tokenizer.encode(text))
        return ids, tuple(self._tokenizer.pieces(ids))

    def reply(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """Returns the reply that `script` has decided, without its delays."""
        if script.in_parts:
            reply = self._in_parts(request, script)
        else:
            text = script.text
            if script.reasoning:
                text = THOUGHTS.format(script.reasoning) + text
            if script.calls:
                text += written(script.calls)[0]
            reply = self._plain(text, request)
        reply = reply.cut(request.max_tokens)
        if script.finish is not None and reply.finish == STOP:
            reply.finish = Finish(script.finish)
        return reply

    def _in_parts(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """Omits each part that would begin beyond the limit."""
        if not script.reasoning and not script.calls:
            return self._plain(script.text, request)
        makers: list[Callable[[EngineRequest], Reply]] = []
        if script.reasoning:
            makers.append(partial(self._mark, self._marks.opening))
            makers.append(partial(self._thoughts, script.reasoning))
            makers.append(partial(self._mark, self._marks.closing))
        if script.text or not script.calls:
            makers.append(partial(self._plain, script.text))
        if script.calls:
            makers.append(partial(self._marked_up, written(script.calls)))
        reply = Reply([], [], STOP)
        room = request.max_tokens
        for number, make in enumerate(makers):
            if number and room <= 0:
                reply.finish = LENGTH
                break
            part = make(replace(request, max_tokens=room)).cut(room)
            reply = joined(reply, part) if reply.ids else part
            room -= len(part.ids)
            if part.finish != STOP:
                break
        return reply

    def _plain(self, text: str, request: EngineRequest) -> Reply:
        tokens_of = self._tokens
        if len(text) <= MAX_KNOWN_CHARACTERS:
            tokens_of = self._known_tokens
        ids, texts = tokens_of(text)
        return ended(Reply(texts, ids, STOP).cut(request.max_tokens), request.sampling)

    def _thoughts(self, text: str, request: EngineRequest) -> Reply:
        return as_thoughts(self._plain(text, request))

    def _mark(self, make_mark: Callable[[EngineRequest], Reply], request: EngineRequest) -> Reply:
        """Returns a mark, whose finish is STOP if the reply goes on."""
        mark = make_mark(request)
        if mark.finish == LENGTH and len(mark.ids) < request.max_tokens:
            mark.finish = STOP
        return mark

    def _marked_up(self, calls: WrittenCalls, request: EngineRequest) -> Reply:
        return self._calls.marked_up(calls, request.max_tokens)
