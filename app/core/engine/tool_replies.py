"""The port for tool calls: which calls a conversation asks for, and which calls a text contains.

Without the extension `tool_calls`, calls are drawn, and texts are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from app.core.engine.outputs import Piece
from app.core.engine.request import Reply, ToolCalls, ToolFunction


class RequestedCall(NamedTuple):
    """A call that a conversation asks for, with the arguments that it names."""

    tool: ToolFunction
    arguments: Mapping[str, object]


class CallStream(Protocol):
    """Reads the calls of one text as it grows."""

    def feed(self, text: str, is_last: bool) -> list[Piece]:
        """Returns what `text` adds to the reply: content, and names and arguments of calls."""


class ToolCallReader(Protocol):
    """Reads tool calls in the format of one parser of vLLM."""

    def read(self, reply: Reply, calls: ToolCalls) -> Reply:
        """Returns a reply with the calls of its text as parts. May pause."""

    def pieces(self, text: str, tools: Sequence[ToolFunction]) -> list[Piece]:
        """Returns the content and the calls of a whole text."""

    def stream(self, tools: Sequence[ToolFunction]) -> CallStream:
        """Returns the reader of a text that comes in parts."""


class ToolReplies(Protocol):
    """Decides which tools a simulated model calls, and reads calls in texts."""

    def requested_calls(self, calls: ToolCalls) -> Sequence[RequestedCall] | None:
        """Returns the calls that a conversation asks for; None where they are drawn."""

    def reader(self, name: str) -> ToolCallReader:
        """Returns the reader of the parser `name`, or of Hermes models if it has none."""
