"""Streams of vLLM 0.20 to 0.22, whose tool parsers read all chats, also those without tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Event
from app.core.versions.paths import CHATS

if TYPE_CHECKING:
    from app.core.versions.chain import PlayedVersion
    from config.settings import ToolSettings

MARKING = ("hermes", "deepseek_v32", "glm45", "glm47", "kimi_k2", "minimax_m2")
"""Parsers whose texts have an empty list of calls."""


class ParserRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    parses_all: bool = False
    """The tool parser reads streams of chats without tools, too."""


def parsed_streams(path: str, played: PlayedVersion, tools: ToolSettings) -> Sequence[Answer]:
    """Returns what adds empty lists of calls to the streams of a route."""
    parser = tools.tool_call_parser
    if path not in CHATS or parser not in MARKING or not played.rules(ParserRules).parses_all:
        return ()
    return [Answer(paths=(path,), events=with_empty_calls)]


def with_empty_calls(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds the empty list to texts, and removes empty texts."""
    has_tools = bool(request.get("tools"))

    def older(event: Event) -> Iterator[Event]:
        choices: Any = event[1].get("choices") or ()
        for choice in () if has_tools else choices:
            delta = choice.get("delta")
            if delta and "role" not in delta:
                if delta.get("content"):
                    delta["tool_calls"] = []
                else:
                    delta.pop("content", None)
        yield event

    return older
