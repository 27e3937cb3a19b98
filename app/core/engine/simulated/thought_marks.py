"""The marks around the thoughts of a reply, as tokens.

A real model begins its thoughts with a mark, unless the prompt ends with the mark, and ends them
with another. A client that parses token ids itself needs both.
"""

from __future__ import annotations

from msgspec.structs import replace

from app.core.engine.endings import ended
from app.core.engine.parsing import THINK_BEGIN, THINK_END
from app.core.engine.request import LENGTH, MARK, EngineRequest, Reply
from app.core.text.base import Tokenizer

TAIL_TOKENS = 12
"""Tokens at the end of a prompt among which the opening mark is: one, or a few that spell it."""


class ThoughtMarks:
    """Makes the marks from the tokens of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._opening_ids = tokenizer.encode(THINK_BEGIN)
        self._closing_ids = tokenizer.encode(THINK_END)

    def opening(self, request: EngineRequest) -> Reply:
        """Returns the mark before the thoughts; nothing if the prompt ends with the mark."""
        tail = self._tokenizer.decode(request.prompt_ids[-TAIL_TOKENS:], False)
        if tail.rstrip().endswith(THINK_BEGIN):
            return Reply((), (), LENGTH)
        return self._mark(self._opening_ids, request)

    def closing(self, request: EngineRequest) -> Reply:
        """Returns the mark after the thoughts, which may be a stop of the request."""
        return self._mark(self._closing_ids, request)

    def _mark(self, ids: list[int], request: EngineRequest) -> Reply:
        """Returns the tokens of a mark; nothing if the request allows only other tokens."""
        if request.sampling.allowed_token_ids:
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
