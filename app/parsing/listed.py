"""Calls as bare JSON: those of Llama 3, one behind the other, and the list of a forced choice of tools."""

from __future__ import annotations

from typing import Final

from app.engine.outputs import Part, Piece
from app.parsing.call_object import CallObject

PYTHON_TAG: Final = "<|python_tag|>"
BETWEEN: Final = " \t\r\n,;[]"


class ListedReader:
    """See `PartReader`. A text that does not begin as a call does is all text.

    `forced`: it is a list of calls, whatever it begins with; one that is cut off before it has a name is told
    in whole answers alone.
    """

    def __init__(self, forced: bool = False) -> None:
        self._forced = forced
        self._calls = 0
        self._call: CallObject | None = None
        self._is_text = False
        self._kept = ""
        """Of which it is not known yet what it is."""
        self._whole: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        self._whole.append(text)
        pieces: list[Piece] = []
        text, self._kept = self._kept + text, ""
        while text:
            if self._is_text:
                pieces += self._text(text)
                break
            if self._call is None:
                text = self._look(text)
            else:
                told, text = self._call.feed(text)
                pieces += told
                if self._call.closed:
                    pieces += self._close(self._call)
        return pieces

    def finish(self) -> list[Piece]:
        call, kept = self._call, self._kept
        self._kept = ""
        if call is None:
            return self._text(kept) if kept.strip(BETWEEN) or not self._calls else []
        if not call.is_call and not self._forced:
            return self._text(kept + call.raw)
        return [(Part("call", self._calls, raw="".join(self._whole)), "")]

    def _look(self, text: str) -> str:
        """Whether a call begins; what is to be read next."""
        inner = text.lstrip(BETWEEN if self._calls or self._forced else None)
        if inner.startswith(PYTHON_TAG):
            inner = inner[len(PYTHON_TAG) :].lstrip()
        if not inner or (not self._calls and PYTHON_TAG.startswith(inner)):
            self._kept = text
            return ""
        if inner[0] != "{":
            self._is_text = True
            return text
        self._call = CallObject(self._calls)
        return inner

    def _close(self, call: CallObject) -> list[Piece]:
        self._call = None
        if call.is_call:
            self._calls += 1
            return []
        self._is_text = True
        return self._text(call.raw)

    def _text(self, text: str) -> list[Piece]:
        return [(None, text)] if text and not self._calls else []


class NamedReader:
    """See `PartReader`. All of the text are the arguments of one call, which had to be made."""

    def __init__(self, name: str) -> None:
        self._part = Part("call", 0, name)

    def feed(self, text: str) -> list[Piece]:
        return [(self._part, text)] if text else []

    def finish(self) -> list[Piece]:
        return []
