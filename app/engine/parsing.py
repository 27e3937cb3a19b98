"""Readers of a computing model's text: thoughts, calls in Hermes or Llama form, and plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from app.engine.core.outputs import Part, PartReader, Piece
from app.engine.core.request import EngineRequest

OPENING: Final = "{["
CLOSING: Final = "}]"
BEFORE_END: Final = frozenset(", }]\n\r\t")
"""Characters that end a number, true, false or null."""


class JsonValue:
    """Finds the end of one JSON value, with blanks before it."""

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = self._escaped = self._is_bare = False

    def feed(self, text: str) -> int:
        """Returns how many characters of `text` belong to the value."""
        if self.closed:
            return 0
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped or character == "\\":
                    self._escaped = not self._escaped
                elif character == '"':
                    self._in_string = False
                    self.closed = not self._depth
            elif not self._depth and character in (BEFORE_END if self._is_bare else CLOSING):
                self.closed = True  # behind a bare value, or there is no value
                return place
            elif character == '"':
                self._in_string = True
            elif character in OPENING:
                self._depth += 1
            elif character in CLOSING:
                self._depth -= 1
                self.closed = self._depth == 0
            elif not self._depth and not character.isspace():
                self._is_bare = True
            if self.closed:
                return place + 1
        return len(text)


LONGEST_HEAD: Final = 4096
"""Most characters before streamed arguments; later arguments wait for the whole call."""
HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("[^"\\\x00-\x1f]*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)


class CallObject:
    """Call number `number` of a reply. Emits its name first, then its arguments as written.

    Arguments that come before the name wait until the object is closed.
    """

    def __init__(self, number: int) -> None:
        self.raw = ""
        """All text of the call so far."""
        self.part: Part | None = None
        """None until the call's name is known."""
        self.closed = False
        self._number = number
        self._head: str | None = ""
        self._object, self._value = JsonValue(), JsonValue()

    @property
    def is_call(self) -> bool:
        """False for a closed object without a name or without arguments."""
        return self.part is not None

    def feed(self, text: str) -> tuple[list[Piece], str]:
        """Returns the new pieces, and the text behind the object."""
        end = self._object.feed(text)
        rest = text[end:]
        text = text[:end]
        self.raw += text
        self.closed = self._object.closed
        pieces = self._arguments(text) if self._head is None else self._begin(self._head + text)
        return pieces, rest

    def _begin(self, head: str) -> list[Piece]:
        tried = self._head is not None and len(self._head) > LONGEST_HEAD
        found = None if tried else HEAD.match(head, 0, LONGEST_HEAD)
        if found is not None:
            self._head = None
            return [*self._named(json.loads(found[1])), *self._arguments(head[found.end() :])]
        self._head = head
        return self._whole(head) if self.closed else []

    def _named(self, name: str) -> list[Piece]:
        self.part = Part("call", self._number, name)
        return [(self.part, "")]

    def _arguments(self, text: str) -> list[Piece]:
        if self._value.closed:
            return []
        shown = text[: self._value.feed(text)]
        return [(self.part, shown)] if shown else []

    def _whole(self, text: str) -> list[Piece]:
        """Parses a closed call whose keys are in another order, or that has more keys."""
        try:
            found = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return []
        name = found.get("name") if isinstance(found, dict) else None
        # Half a surrogate pair cannot be sent.
        if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
            return []
        given = found.get("arguments", found.get("parameters"))
        return [] if given is None else [*self._named(name), (self.part, json.dumps(given))]


def cut(text: str, tag: str) -> tuple[str, str, bool]:
    """Splits at `tag`: before, behind, True. Without the tag: text surely before it, the rest, False."""
    before, found, behind = text.partition(tag)
    if found:
        return before, behind, True
    longest = min(len(text), len(tag) - 1)
    begun = next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)
    safe = len(text) - begun
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
