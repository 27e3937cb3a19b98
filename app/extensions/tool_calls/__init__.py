"""Tool calls of the simulated model: which ones it makes, and which ones its texts contain."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension, ServerParts
from app.extensions.tool_calls.settings import READ_PARSERS, ToolCallSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.engine.tool_replies import ToolReplies
    from app.extensions.tool_calls.replies import SimulatedToolReplies


log = logging.getLogger(__name__)


class ToolCallReplies(Extension):
    """Chooses tools by the last user message, and parses texts as vLLM does."""

    name = "tool_calls"
    Settings = ToolCallSettings

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        parser = parts.settings.tools.tool_call_parser
        if parser and parser not in READ_PARSERS:
            log.warning("tool-call-parser %s is not simulated; reading calls of hermes", parser)

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
