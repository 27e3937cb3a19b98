"""The marks around the thoughts of a reply, as tokens.

A real model begins its thoughts with a mark, unless its template does, and ends them with another.
A client that parses token ids itself needs both. Reasoning models have a token for each mark; with
another vocabulary, replies have no marks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from app.core.engine.endings import ended
from app.core.engine.request import (
    LENGTH,
    MARK,
    PARSERS_WITHOUT_SWITCH,
    EngineRequest,
    Reply,
    joined,
)
from app.core.text.base import Tokenizer
from config.validation import LiveSettings
from vllm_facts.reasoning_marks import ReasoningMarks, marks_of

MakePart = Callable[[EngineRequest], Reply]
MAX_KNOWN_MARKS = 8
TAIL_TOKENS = 4
"""Tokens at the end of a prompt that are searched for the opening mark; a line feed may follow."""


class ThoughtMarks:
    """Makes the marks from the tokens of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer, live: LiveSettings) -> None:
        self._tokenizer = tokenizer
        self._live = live
        self._encode = lru_cache(MAX_KNOWN_MARKS)(tokenizer.encode)

    def current(self) -> ReasoningMarks:
        """Returns the marks of the reasoning parser in the current settings."""
        return marks_of(self._live.current.reply.reasoning_parser, self._encode)

    def between_parts(self, request: EngineRequest, thoughts: MakePart, text: MakePart) -> Reply:
        """Returns thoughts with their marks, then the text, within the limits of the request."""
        reply = self.opening(request)
        for make_part in (thoughts, self.closing, text):
            remaining = request_after(reply, request)
            if reply.finish != LENGTH or remaining.max_tokens <= 0:
                break
            reply = joined(reply, make_part(remaining))
        return reply

    def opening(self, request: EngineRequest) -> Reply:
        """Returns the mark before the thoughts; nothing if the template writes the mark."""
        if self._live.current.reply.reasoning_parser in PARSERS_WITHOUT_SWITCH:
            return Reply((), (), LENGTH)
        mark, _ = self.current()
        tail = self._tokenizer.decode(request.prompt_ids[-TAIL_TOKENS:], False)
        if tail.rstrip().endswith(mark):
            return Reply((), (), LENGTH)
        return self._mark(mark, request)

    def closing(self, request: EngineRequest) -> Reply:
        """Returns the mark after the thoughts, which may be a stop of the request."""
        _, mark = self.current()
        return self._mark(mark, request)

    def _mark(self, text: str, request: EngineRequest) -> Reply:
        """Returns a mark; nothing without a token for it, or if only other tokens are allowed."""
        ids = self._encode(text)
        if len(ids) != 1 or request.sampling.allowed_token_ids:
            return Reply((), (), LENGTH)
        pieces = self._tokenizer.pieces(ids, False)
        mark = ended(Reply(pieces, ids, LENGTH).cut(request.max_tokens), request.sampling)
        count = len(mark.ids)
        return replace(mark, texts=[""] * count, spans=[(count, MARK)])

    def show_markup(self, reply: Reply) -> None:
        """Changes `reply` into one text that has the marks, and the markup of calls."""
        texts: list[str] = []
        start = 0
        for end, part in reply.spans:
            if part is not None and part.kind in ("mark", "call"):
                skips_special = part.kind == "call"
                texts += self._tokenizer.pieces(reply.ids[start:end], skips_special)
            else:
                texts += reply.texts[start:end]
            start = end
        reply.texts = texts
        reply.spans = ()


def request_after(reply: Reply, request: EngineRequest) -> EngineRequest:
    """Returns the request for what follows `reply`, with the limits that are left."""
    count = len(reply.ids)
    min_tokens = max(0, request.sampling.min_tokens - count)
    return replace(
        request,
        max_tokens=request.max_tokens - count,
        sampling=replace(request.sampling, min_tokens=min_tokens),
    )
