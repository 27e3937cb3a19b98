"""Chooses the tools that the simulated model calls, and reads the calls in its texts.

Both import their modules when a request first needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.base.late_imports import import_modules
from app.core.engine.request import ToolCalls
from app.core.engine.tool_replies import RequestedCall
from app.extensions.tool_calls.settings import ToolCallSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.extensions.tool_calls.matching import ToolMatcher
    from app.extensions.tool_calls.reader import CallReader
    from config.validation import LiveSettings

MATCHER_MODULES = (
    "app.extensions.tool_calls.argument_types",
    "app.extensions.tool_calls.arguments",
    "app.extensions.tool_calls.matching",
)
READER_MODULES = (
    "app.extensions.tool_calls.hermes",
    "app.extensions.tool_calls.llama",
    "app.extensions.tool_calls.mistral",
    "app.extensions.tool_calls.pythonic",
    "app.extensions.tool_calls.qwen",
    "app.extensions.tool_calls.reader",
)
"""Modules that are imported at first use, with pauses, in the order of dependencies."""


class SimulatedToolReplies:
    """The port of the simulated model, under the settings in force."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live
        self._matcher: ToolMatcher | None = None
        self._readers: dict[str, CallReader] = {}
        live.follow(ToolCallSettings, self._on_settings)

    def _on_settings(self, settings: ToolCallSettings) -> None:
        self._draws_calls = settings.tool_choice_auto == "coin"

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the words of tools, if tools were compared with a message."""
        if self._matcher is None:
            return {}
        return {"words of tools": self._matcher.tool_words}

    def requested_calls(self, calls: ToolCalls) -> Sequence[RequestedCall] | None:
        """Returns the calls that the last user message asks for; None where they are drawn.

        Required calls are drawn where the message asks for none.
        """
        if self._draws_calls:
            return None
        if self._matcher is None:
            import_modules(*MATCHER_MODULES)
            from app.extensions.tool_calls.matching import ToolMatcher

            self._matcher = ToolMatcher()
        requested = self._matcher.requested_calls(calls)
        if len(requested) < calls.min_calls:
            return None
        return requested

    def reader(self, name: str) -> CallReader:
        """Returns the reader of the parser `name`, or of Hermes models if it has none."""
        if name not in self._readers:
            import_modules(*READER_MODULES)
            from app.extensions.tool_calls.reader import CallReader

            self._readers[name] = CallReader(name)
        return self._readers[name]
