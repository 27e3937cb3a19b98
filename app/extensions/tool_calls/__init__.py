"""Tool calls of the simulated model: which ones it makes, and which ones its texts contain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.tool_calls.settings import ToolCallSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.engine.tool_replies import ToolReplies
    from app.extensions.tool_calls.replies import SimulatedToolReplies


class ToolCallReplies(Extension):
    """Chooses tools by the last user message, and parses texts as vLLM does."""

    name = "tool_calls"
    Settings = ToolCallSettings

    def tool_replies(self) -> ToolReplies:
        """Returns what chooses and reads the calls of the server."""
        return self._replies

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the words of tools, if tools were compared with a message."""
        return self._replies.caches()

    @cached_property
    def _replies(self) -> SimulatedToolReplies:
        from app.extensions.tool_calls.replies import SimulatedToolReplies

        return SimulatedToolReplies(self.parts.live)
