"""Finds the names of tools in a message."""

from __future__ import annotations

from collections.abc import Sequence
from re import Match
from typing import Final, NamedTuple

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.words import COMMON_WORDS, WORD

COMMAND_WORDS: Final = frozenset(
    (
        *("also", "and", "can", "could", "finally", "first", "just"),
        *("next", "now", "or", "please", "then", "to", "you"),
    )
)
"""Words before a command."""
CALL_WORDS: Final = frozenset(["call", "calling", "execute", "invoke", "run", "use", "using"])
"""Words before the name of a tool."""
NOUNS: Final = ("function", "tool")
"""Words behind the name of a tool."""
QUOTES: Final = "`'\""
OPENING: Final = "([{"
CLAUSE_ENDS: Final = ".,;:!?-*\u2013\u2014"


class NamedTool(NamedTuple):
    """A tool that a message names, and the place of its name."""

    start: int
    tool: ToolFunction


def named_tools(
    message: str, tools: Sequence[ToolFunction], name_words: Sequence[tuple[str, ...]]
) -> list[NamedTool]:
    """Returns the tools that the message names, each at its first place.

    `name_words` are the words of each tool's name. Of tools with the same words, the first counts.
    """
    tools_by_words: dict[tuple[str, ...], ToolFunction] = {}
    for words, tool_of_words in zip(name_words, tools, strict=True):
        if words:
            tools_by_words.setdefault(words, tool_of_words)
    lengths: dict[str, list[int]] = {}
    for words in sorted(tools_by_words, key=len, reverse=True):
        # A message may have thousands of common words: each name is searched once, not at each.
        if COMMON_WORDS.issuperset(words) and tools_by_words[words].name not in message:
            del tools_by_words[words]
            continue
        lengths_of_word = lengths.setdefault(words[0], [])
        if len(words) not in lengths_of_word:
            lengths_of_word.append(len(words))
    reader = NameReader(message)
    named: dict[str, NamedTool] = {}
    position = 0
    while position < len(reader.words):
        step = 1
        for length in lengths.get(reader.words[position], ()):
            words = tuple(reader.words[position : position + length])
            tool = tools_by_words.get(words)
            if tool is not None and reader.is_name(position, length):
                start = reader.matches[position].start()
                named.setdefault(tool.name, NamedTool(start, tool))
                step = length
                break
        position += step
    return list(named.values())


class NameReader:
    """Decides whether words of a message are the name of a tool."""

    def __init__(self, message: str) -> None:
        self._message = message
        self.matches: list[Match[str]] = [*WORD.finditer(message)]
        self.words = [match[0].lower() for match in self.matches]

    def is_name(self, position: int, length: int) -> bool:
        """Returns whether the words from `position` on are meant as the name of a tool."""
        if length > 1:
            return True
        start, end = self.matches[position].span()
        character_before = self._message[max(0, start - 1) : start]
        character_after = self._message[end : end + 1]
        if _joins_words(character_before) or _joins_words(character_after):
            return False
        if character_after == "(":
            return True
        if character_before and character_before in QUOTES and character_after == character_before:
            return True
        previous_word = self.words[position - 1] if position else ""
        next_word = "".join(self.words[position + 1 : position + 2])
        if previous_word in CALL_WORDS or next_word in NOUNS:
            return True
        if self.words[position] in COMMON_WORDS:
            return False
        return previous_word in COMMAND_WORDS or self._begins_clause(start)

    def _begins_clause(self, start: int) -> bool:
        position = start
        while position and self._message[position - 1].isspace():
            position -= 1
            if self._message[position] == "\n":
                return True
        character_before = self._message[max(0, position - 1) : position]
        if not character_before or character_before in OPENING + QUOTES:
            return True
        return position < start and character_before in CLAUSE_ENDS


def _joins_words(character: str) -> bool:
    """Returns whether a character next to a word makes it a part of a longer one."""
    return character in ("_", "-") or character.isalnum()
