"""Calls in tags, as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

from __future__ import annotations

from typing import Final

from app.engine.outputs import Part, Piece
from app.parsing.call_object import CallObject
from app.parsing.tags import cut

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class HermesReader:
    """See `PartReader`. A call that is none stays text; text behind a call is not told, as in vLLM."""

    def __init__(self) -> None:
        self._calls = 0
        self._call: CallObject | None = None
        self._kept = ""
        self._inner = ""
        """All between the tags so far."""
        self._whole: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        self._whole.append(text)
        self._kept += text
        pieces: list[Piece] = []
        found = True
        while found:
            if self._call is None:
                before, self._kept, found = cut(self._kept, OPEN)
                pieces += self._text(before)
                if found:
                    self._call, self._inner = CallObject(self._calls), ""
            else:
                before, self._kept, found = cut(self._kept, CLOSE)
                pieces += self._inside(self._call, before)
                if found:
                    pieces += self._close(self._call)
        return pieces

    def finish(self) -> list[Piece]:
        kept, self._kept = self._kept, ""
        call = self._call
        if call is None:
            return self._text(kept)
        pieces = self._inside(call, kept)
        if call.closed and call.is_call:
            return pieces
        return [*pieces, (Part("call", self._calls, raw="".join(self._whole)), "")]

    def _text(self, text: str) -> list[Piece]:
        return [(None, text)] if text and not self._calls else []

    def _inside(self, call: CallObject, text: str) -> list[Piece]:
        self._inner += text
        return [] if call.closed else call.feed(text)[0]

    def _close(self, call: CallObject) -> list[Piece]:
        self._call = None
        if call.is_call:
            self._calls += 1
            return []
        return [(None, f"{OPEN}{self._inner}{CLOSE}")]
