"""The tools of a request, prepared once: most clients send the same tools again.

This module is for requests with tools only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from app.core.base.caches import LimitedDict
from app.core.base.clock.pause import paced, pause_if_possible
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import Tool
from app.core.text.base import ChatOptions

if TYPE_CHECKING:
    from app.core.engine.request import ToolFunction

OMITTED_NULLS = ("strict", "defer_loading")
"""Fields of tools that templates get only with a value."""
MAX_TOOLS = 120
"""Maximum number of tools of a request that are remembered: writing more takes long at once."""
MAX_BYTES = 1 << 16
"""Length of the longest tools, as MessagePack, that are remembered."""
MAX_TEXT_BYTES = 1 << 14
"""Length of the longest tools around which a template's texts are remembered: rendering takes long.
"""
SET_BYTES = 1_000
MEMORY_PER_BYTE = 73
"""Memory of remembered tools, and of each byte of their MessagePack; that of empty objects."""

Checked = Literal["strict", "all", "none"]
"""The tools whose schemas are checked."""


class ToolSet(list[Tool]):
    """Tools, prepared for a template and for calls."""

    def __init__(self, tools: Sequence[Tool], key: bytes | None) -> None:
        """Creates a set with the key that `tool_set` has found. May pause."""
        super().__init__(tools)
        pause_if_possible()  # the first set follows imports, and precedes those for its schemas
        if key is not None and len(key) > MAX_TEXT_BYTES:
            key = None
        self.options = ChatOptions(tools=_rendered(tools), tools_key=key)
        """Options of a chat that is plain but for the tools."""
        self.functions: dict[Checked, tuple[ToolFunction, ...]] = {}
        """The functions of tools that have been checked."""


KnownTools: TypeAlias = LimitedDict[bytes, ToolSet]
"""Sets by their keys."""


def tool_set(tools: Sequence[Tool], known_tools: KnownTools | None = None) -> ToolSet:
    """Returns the set of a request's tools, which is remembered in `known_tools`. May pause.

    The key is MessagePack, which has infinities and NaN, unlike JSON. Many or long tools have no
    key, nor do tools that cannot be written, such as half a surrogate pair.
    """
    key: bytes | None = None
    if len(tools) <= MAX_TOOLS:
        try:
            key = msgspec.msgpack.encode(tools)
        except (ValueError, OverflowError, RecursionError):
            key = None
    if key is None or len(key) > MAX_BYTES:
        return ToolSet(tools, None)
    if known_tools is None:
        return ToolSet(tools, key)
    known_set = known_tools.get(key)
    if known_set is None:
        known_set = ToolSet(tools, key)
        known_tools.add(key, known_set, SET_BYTES + MEMORY_PER_BYTE * len(key))
    return known_set


def _rendered(tools: Sequence[Tool]) -> list[JsonObject]:
    """Returns the tools for a template."""
    rendered_tools: list[JsonObject] = []
    for tool in paced(tools):
        rendered = msgspec.structs.asdict(tool)
        rendered["function"] = msgspec.structs.asdict(tool.function)
        if rendered["function"]["defer_loading"] is None:
            rendered["function"]["defer_loading"] = tool.defer_loading
        for fields in (rendered, rendered["function"]):
            for name in OMITTED_NULLS:
                if fields.get(name, name) is None:
                    del fields[name]
        rendered_tools.append(rendered)
    return rendered_tools
