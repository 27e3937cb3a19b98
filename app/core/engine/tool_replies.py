"""The port for tool calls: which calls a conversation asks for, and which calls a text contains.

Without the extension `tool_calls`, calls are drawn, and texts are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from app.core.engine.request import Reply, ToolCalls, ToolFunction


class RequestedCall(NamedTuple):
    """A call that a conversation asks for, with the arguments that it names."""

    tool: ToolFunction
    arguments: Mapping[str, object]


class ToolReplies(Protocol):
    """Decides which tools a simulated model calls."""

    def requested_calls(self, calls: ToolCalls) -> Sequence[RequestedCall] | None:
        """Returns the calls that a conversation asks for; None where they are drawn."""

    def read_calls(self, reply: Reply, calls: ToolCalls) -> Reply:
        """Returns a reply with the calls of its text as parts."""
