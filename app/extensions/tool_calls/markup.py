"""Reads calls in markup: a state machine whose transitions are literal texts.

`MarkupForm` describes a form, `MarkupStream` reads a stream in this form. A literal that may have
begun at the end of a token is held until the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import ClassVar, NamedTuple

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.argument_types import ToolTypes, convert_arguments
from app.extensions.tool_calls.json_prefix import ArgumentHold, certain_arguments
from app.extensions.tool_calls.parser import Call, CallDelta, Delta, ParsedText, overlap


class State(Enum):
    """The kind of text that the reader expects next."""

    CONTENT = "content"
    PREAMBLE = "preamble"
    NAME = "name"
    ARGUMENTS = "arguments"
    BETWEEN = "between"


class Event(Enum):
    """The meaning of a text in its state."""

    TEXT = "text"
    BEGIN = "begin"
    NAME = "name"
    ARGUMENTS = "arguments"
    END = "end"


class Transition(NamedTuple):
    """The state behind a literal, and the events that the literal causes."""

    state: State
    events: Sequence[Event] = ()


class MarkupForm:
    """The literals of a form, and their meanings in each state."""

    def __init__(
        self,
        literals: Sequence[str],
        transitions: Mapping[tuple[State, str], Transition],
        *,
        convert: Callable[[str, bool], str] | None = None,
        whole_arguments: Callable[[str], str] = str,
    ) -> None:
        """`convert` makes JSON of arguments that are markup.

        It takes the markup, and whether its end may be missing. `whole_arguments` reads JSON
        arguments of a whole call.
        """
        self.literals = literals
        self.transitions = transitions
        self.convert = convert
        self.whole_arguments = whole_arguments

    @cached_property
    def splitter(self) -> re.Pattern[str]:
        """Matches a literal."""
        return re.compile("|".join(map(re.escape, self.literals)))


class CallInProgress:
    """A call while its markup is read."""

    def __init__(self) -> None:
        self.name = ""
        self._markup: list[str] = []
        self.is_name_sent = False
        self.sent_arguments = ""
        """The converted arguments that were sent."""

    @property
    def markup(self) -> str:
        """The arguments as they are written."""
        self._markup = ["".join(self._markup)]
        return self._markup[0]

    def add(self, markup: str) -> None:
        """Adds to the arguments."""
        self._markup.append(markup)


class MarkupStream:
    """Reads a stream token by token."""

    _text_events: ClassVar[Mapping[State, Event]] = {
        State.CONTENT: Event.TEXT,
        State.NAME: Event.NAME,
        State.ARGUMENTS: Event.ARGUMENTS,
    }

    def __init__(self, form: MarkupForm, tools: Sequence[ToolFunction]) -> None:
        self._form = form
        self._types = ToolTypes(tools)
        self._state = State.CONTENT
        self._unread = ""
        """The end of the text, where a literal may have begun."""
        self._hold = ArgumentHold()
        self._deferred_content = ""
        """Text behind a call, sent with the next token that adds to no call."""
        self._has_content = False
        self._sends_arguments = True
        """False for a whole text, whose arguments are converted once."""
        self.calls: list[CallInProgress] = []

    def feed(self, text: str, is_last: bool) -> Delta | None:
        """Returns what the next token adds to the message."""
        delta = self._delta(list(self._read(text)), is_last=False)
        if not is_last:
            return delta
        end = self.finish()
        if delta is None or end is None:
            return delta or end
        content = None
        if delta.content is not None or end.content is not None:
            content = (delta.content or "") + (end.content or "")
        return Delta(content, [*delta.calls, *end.calls])

    def finish(self) -> Delta | None:
        """Returns what the end of the text adds to the message."""
        events = list(self._end())
        if not events and not self._deferred_content:
            return None
        return self._delta(events, is_last=True)

    def whole(self, text: str) -> ParsedText:
        """Reads a whole text."""
        self._sends_arguments = False
        events = list(self._read(text))
        events += self._end()
        delta = self._delta(events, is_last=True)
        calls: list[Call] = []
        for call in self.calls:
            name = call.name.strip()
            if name:
                calls.append(Call(name, self._arguments(name, call.markup)))
        content = ""
        if delta is not None and delta.content is not None:
            content = delta.content
        if calls:
            content = content.strip()
        return ParsedText(content, calls)

    def _arguments(self, name: str, markup: str) -> str:
        if not markup.strip():
            arguments = "{}"
        elif self._form.convert is not None:
            arguments = self._form.convert(markup, False)
        else:
            arguments = self._form.whole_arguments(markup)
        return convert_arguments(arguments, self._types.properties(name))

    def _read(self, text: str) -> Iterator[tuple[Event, str]]:
        """Yields the events of a text, and holds its end where a literal may have begun."""
        self._unread += text
        start = 0
        for match in self._form.splitter.finditer(self._unread):
            has_meaning = (self._state, match[0]) in self._form.transitions
            if not has_meaning and self._form.convert is None:
                continue
            if match.start() > start:
                yield from self._read_text(self._unread[start : match.start()])
            yield from self._read_literal(match[0])
            start = match.end()
        remaining = self._unread[start:]
        held = max(overlap(remaining, literal) for literal in self._form.literals)
        end = len(remaining) - held
        self._unread = remaining[end:]
        if end:
            yield from self._read_text(remaining[:end])

    def _end(self) -> Iterator[tuple[Event, str]]:
        """Yields the events of the end: an open call ends."""
        if self._unread:
            yield from self._read_text(self._unread)
            self._unread = ""
        held = self._hold.release()
        if held:
            yield Event.ARGUMENTS, held
        if self._state is not State.CONTENT and self.calls:
            yield Event.END, ""
        self._state = State.CONTENT

    def _read_literal(self, literal: str) -> Iterator[tuple[Event, str]]:
        transition = self._form.transitions.get((self._state, literal))
        if transition is None:
            yield from self._read_text(literal)
            return
        if self._state is State.ARGUMENTS and transition.state is not State.ARGUMENTS:
            held = self._hold.release()
            if held:
                yield Event.ARGUMENTS, held
        self._state = transition.state
        for event in transition.events:
            if event is Event.BEGIN:
                self.calls.append(CallInProgress())
            yield event, literal
        if self._state is State.ARGUMENTS:
            self._hold.reset()

    def _read_text(self, text: str) -> Iterator[tuple[Event, str]]:
        event = self._text_events.get(self._state)
        if event is Event.ARGUMENTS and self._form.convert is None:
            text = self._hold.feed(text)
        if event is not None and text:
            yield event, text

    def _delta(self, events: Sequence[tuple[Event, str]], is_last: bool) -> Delta | None:
        """Returns what events add to the message. Text behind a call waits for a token alone."""
        if not events and not self._deferred_content:
            return None
        carried = self._deferred_content
        content = ""
        has_call_event = False
        deltas: list[CallDelta] = []
        number = len(self.calls) - sum(event is Event.BEGIN for event, _ in events) - 1
        has_unconverted = False
        for event, text in events:
            if event is Event.TEXT:
                if has_call_event:
                    self._deferred_content += text
                else:
                    content += text
                continue
            has_call_event = True
            if event is Event.BEGIN:
                number += 1
                continue
            if event is Event.END and has_unconverted and self._sends_arguments:
                self._add_converted(number, deltas)
            has_unconverted = self._add_to_call(number, event, text, deltas)
        if has_unconverted and self._sends_arguments:
            self._add_converted(number, deltas)
        if self._deferred_content and not deltas:
            content = carried + content + self._deferred_content[len(carried) :]
            self._deferred_content = ""
        content = self._shown_content(content, is_last)
        if not content and not deltas:
            return None
        return Delta(content or None, joined_deltas(deltas))

    def _shown_content(self, content: str, is_last: bool) -> str:
        """Returns the content without blanks before the first call, which are dropped."""
        if self._has_content or not content:
            return content
        if content.strip():
            self._has_content = True
        elif self.calls:
            return ""
        elif not is_last:
            self._deferred_content = content
            return ""
        return content

    def _add_to_call(self, number: int, event: Event, text: str, deltas: list[CallDelta]) -> bool:
        """Returns whether the call has new arguments that have to be converted."""
        call = self.calls[number]
        if event is Event.NAME:
            call.name += text
            return False
        if event is Event.ARGUMENTS:
            call.add(text)
            return self._add_arguments(number, text, deltas)
        self._end_call(number, deltas)
        return False

    def _add_arguments(self, number: int, text: str, deltas: list[CallDelta]) -> bool:
        """Sends the name with the first arguments; those of JSON follow at once.

        Returns whether the arguments have to be converted.
        """
        call = self.calls[number]
        if not call.is_name_sent:
            if call.name:
                call.is_name_sent = True
                deltas.append(CallDelta(number, call.name))
            if self._form.convert is not None or not call.is_name_sent:
                return False
        if self._form.convert is None:
            deltas.append(CallDelta(number, arguments=text))
            return False
        return True

    def _add_converted(self, number: int, deltas: list[CallDelta]) -> None:
        """Sends the arguments so far that are certain. They are converted once for all events."""
        call = self.calls[number]
        arguments = self._converted(call, is_partial=True)
        certain = certain_arguments(arguments, self._types.text_fields(call.name))
        added = self._new_arguments(call, certain)
        if added:
            deltas.append(CallDelta(number, arguments=added))

    def _end_call(self, number: int, deltas: list[CallDelta]) -> None:
        call = self.calls[number]
        added = ""
        if self._form.convert is not None and self._sends_arguments:
            added = self._new_arguments(call, self._converted(call, is_partial=False))
        if not call.is_name_sent and call.name:
            call.is_name_sent = True
            deltas.append(CallDelta(number, call.name, added))
        elif added and call.is_name_sent:
            deltas.append(CallDelta(number, arguments=added))

    def _converted(self, call: CallInProgress, is_partial: bool) -> str:
        assert self._form.convert is not None
        arguments = self._form.convert(call.markup, is_partial)
        return convert_arguments(arguments, self._types.properties(call.name))

    def _new_arguments(self, call: CallInProgress, arguments: str) -> str:
        """Returns the end of `arguments` that was not sent; nothing if the beginning differs."""
        sent = call.sent_arguments
        if len(arguments) <= len(sent) or not arguments.startswith(sent):
            return ""
        call.sent_arguments = arguments
        return arguments[len(sent) :]


def joined_deltas(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """Joins what is added to the same call."""
    joined: dict[int, CallDelta] = {}
    for delta in deltas:
        earlier = joined.get(delta.number)
        if earlier is None:
            joined[delta.number] = delta
            continue
        arguments = earlier.arguments
        if delta.arguments is not None:
            arguments = (arguments or "") + delta.arguments
        joined[delta.number] = CallDelta(delta.number, earlier.name or delta.name, arguments)
    return list(joined.values())


def first_json_value(text: str) -> str:
    """Returns the first JSON value of a text, or the text if it begins with none."""
    text = text.strip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (RecursionError, ValueError):
        return text
    return text[:end]
