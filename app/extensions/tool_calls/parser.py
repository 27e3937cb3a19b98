"""The results of all parsers of tool calls, and the protocol of a stream.

A parser reads the text of a reply as the parser of the same name does in vLLM 0.32, also with
`vllm-version` 0.33. It reads a whole text and a stream by different rules: a malformed call is text
in a whole answer, while a stream may have sent its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from app.core.engine.request import ToolFunction


class CallDelta(NamedTuple):
    """An addition to a call: its name at the beginning, then its arguments."""

    number: int
    name: str | None = None
    arguments: str | None = None


class Delta(NamedTuple):
    """The addition of a token to a message. An empty `content` is sent, None is not."""

    content: str | None = None
    calls: Sequence[CallDelta] = ()


class Call(NamedTuple):
    """A whole call; `arguments` is JSON."""

    name: str
    arguments: str


class ParsedText(NamedTuple):
    """The calls of a whole text, and the remaining text."""

    content: str
    calls: Sequence[Call] = ()


class StreamParser(Protocol):
    """Reads a stream token by token."""

    def feed(self, text: str, is_last: bool) -> Delta | None:
        """Returns what the next token adds to the message; None if it shows nothing."""


class ToolParser(NamedTuple):
    """A parser by its two functions; both get the tools of the request."""

    parse: Callable[[str, Sequence[ToolFunction]], ParsedText]
    stream: Callable[[Sequence[ToolFunction]], StreamParser]
    max_characters: int
    """Characters that all tokens of a stream may read together, most parsers the whole text each
    time: about 0.2 s for usual texts, and 1 s for the slowest ones."""
    characters_per_step: int
    """Characters of the slowest texts that are read in a step of `Slices`."""
    max_inline_characters: int
    """Characters of the longest text that is read on the event loop, where a token takes at most
    about 15 ms. A longer one is read in a thread."""


def checked_call(name: object, arguments: str) -> Call:
    """Returns a call.

    Raises:
        ValueError: The name is not a text, or a text cannot be encoded as UTF-8.
    """
    if not isinstance(name, str):
        raise ValueError("the name of a call is not a string")
    name.encode()
    arguments.encode()
    return Call(name, arguments)


def overlap(text: str, tag: str) -> int:
    """Returns the length of the longest end of `text` that begins `tag`, less than the tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def completed(delta: Delta | None, missing_arguments: str) -> Delta | None:
    """Returns the last delta of a stream, whose last call gets the arguments not sent yet."""
    if delta is None or not delta.calls:
        return delta
    *earlier, last = delta.calls
    arguments = (last.arguments or "") + missing_arguments
    return Delta(delta.content, [*earlier, last._replace(arguments=arguments)])
