"""Readers of a computing model's text: thoughts, calls in Hermes or Llama form, and plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.engine.core.outputs import Part, PartReader, Piece
from app.engine.core.request import EngineRequest
from app.engine.parsing.call_object import CallObject


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` with which `tag` may have begun."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)


def cut(text: str, tag: str) -> tuple[str, str, bool]:
    """Splits at `tag`: before, behind, True. Without the tag: text surely before it, the rest, False."""
    before, found, behind = text.partition(tag)
    if found:
        return before, behind, True
    safe = len(text) - overlap(text, tag)
    return text[:safe], text[safe:], False


CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"


class HermesReader:
    """`PartReader` of calls in Hermes form.

    A malformed call stays text; text behind a call is dropped, as in vLLM.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._call: CallObject | None = None
        self._kept = ""
        self._inner = ""
        """All text since the opening tag."""
        self._whole: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        self._whole.append(text)
        self._kept += text
        pieces: list[Piece] = []
        found = True
        while found:
            if self._call is None:
                before, self._kept, found = cut(self._kept, CALL_BEGIN)
                pieces += self._text(before)
                if found:
                    self._call, self._inner = CallObject(self._calls), ""
            else:
                before, self._kept, found = cut(self._kept, CALL_END)
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
        return [(None, f"{CALL_BEGIN}{self._inner}{CALL_END}")]


PYTHON_TAG: Final = "<|python_tag|>"
BETWEEN: Final = " \t\r\n,;[]"


class ListedReader:
    """`PartReader` of calls as bare JSON objects. A text that does not begin like a call is all text.

    `forced`: the text is a list of calls, however it begins. A call cut off before its name appears in whole
    answers only.
    """

    def __init__(self, forced: bool = False) -> None:
        self._forced = forced
        self._calls = 0
        self._call: CallObject | None = None
        self._is_text = False
        self._kept = ""
        """Text that is too short to classify yet."""
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
        """Recognises the beginning of a call, if there is one; returns the text to read next."""
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
    """`PartReader` that takes all of the text as the arguments of one required call."""

    def __init__(self, name: str) -> None:
        self._part = Part("call", 0, name)

    def feed(self, text: str) -> list[Piece]:
        return [(self._part, text)] if text else []

    def finish(self) -> list[Piece]:
        return []


THINK_BEGIN: Final = "<think>"
THINK_END: Final = "</think>"
THOUGHT: Final = Part("reasoning")


class ThoughtReader:
    """`PartReader` of thoughts. `then` reads the text behind the thoughts.

    Some templates write the opening tag themselves, so thoughts need not begin with it, unless `begun` is
    False.
    """

    def __init__(self, then: PartReader | None, begun: bool = True) -> None:
        self._then, self._begun_before = then, begun
        self._kept = ""
        self._begins = self._thinks = True

    def feed(self, text: str) -> list[Piece]:
        if not self._thinks:
            return self._reply(text)
        self._kept += text
        if self._begins and not self._begun():
            return []
        if not self._thinks:
            rest, self._kept = self._kept, ""
            return self._reply(rest)
        thought, self._kept, found = cut(self._kept, THINK_END)
        pieces: list[Piece] = [(THOUGHT, thought)] if thought else []
        if found:
            self._thinks = False
            rest, self._kept = self._kept, ""
            pieces += self._reply(rest)
        return pieces

    def finish(self) -> list[Piece]:
        kept, self._kept = self._kept, ""
        if self._begins and not self._begun_before:
            pieces = self._reply(kept)
        else:
            pieces = [(THOUGHT, kept)] if kept else []
        return pieces if self._then is None else [*pieces, *self._then.finish()]

    def _begun(self) -> bool:
        """Removes the opening tag; False while the text is too short to decide how it begins."""
        inner = self._kept.lstrip()
        if THINK_BEGIN.startswith(inner) and inner != THINK_BEGIN:  # or nothing but blanks
            return False
        if inner.startswith(THINK_BEGIN):
            self._kept = inner[len(THINK_BEGIN) :]
        else:
            self._thinks = self._begun_before
        self._begins = False
        return True

    def _reply(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [(None, text)] if self._then is None else list(self._then.feed(text))


def readers(tool_call_parser: str) -> Callable[[EngineRequest], PartReader | None]:
    """Returns a function that makes a request's reader; `tool_call_parser` is `llama3_json`, else Hermes."""
    as_llama = tool_call_parser == "llama3_json"

    def reader_of(request: EngineRequest) -> PartReader | None:
        reader: PartReader | None = None
        if (calls := request.tool_calls) is not None:
            if calls.least:
                reader = NamedReader(calls.tools[0].name) if calls.named else ListedReader(forced=True)
            else:
                reader = ListedReader() if as_llama else HermesReader()
        if not request.reasoning:
            return reader
        if request.form is None:
            return ThoughtReader(reader)
        thoughts = request.form.thoughts  # None: a constrained text has no room for thoughts
        return reader if thoughts is None else ThoughtReader(reader, begun=thoughts.begin_id is None)

    return reader_of
