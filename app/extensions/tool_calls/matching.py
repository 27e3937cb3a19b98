"""Chooses the tools that a user message asks for, by their names and descriptions.

The rule, in this order:

1. A message that contains the names of tools asks for these tools, in the order of the message. A
   name counts as identifier (`get_weather`) and as words (`get weather`). Where several names
   begin, the longest one counts.
   A name of one word, such as `search`, may be an ordinary word. It counts in quotes, before a
   parenthesis, next to words such as `use` and `tool`, and where a command can be: at the
   beginning of a clause, or after words such as `please` and `then`.
   A name of common words only, such as `run` and `get_data`, counts as identifier: in the spelling
   of the tool, and, if it is one word, not as command.
2. Otherwise it asks for the tool that shares most words with it. A word of the name counts more
   than any number of words of the description; a tool fits with one word of the name, or with two
   of the description. Common words such as `get` and `the` do not count, nor do endings.
3. A message that fits no tool asks for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.core.base.caches import LimitedDict
from app.core.base.clock.pause import Slices, pause_if_possible
from app.core.engine.request import ToolCalls, ToolFunction
from app.core.engine.tool_replies import RequestedCall
from app.extensions.tool_calls.arguments import MAX_NAME, arguments_in
from app.extensions.tool_calls.named_tools import NamedTool, named_tools
from app.extensions.tool_calls.words import significant_stems, words_of

MAX_QUESTION = 4_000
"""Characters of a message that are compared: its end, where long prompts have their question."""
NAME_WEIGHT = 1_000
"""Weight of a word of the name, against 1 of the description."""
MIN_DESCRIPTION_WORDS = 2
MAX_TOOLS = 256
"""Most tools of a request that are compared, the first ones."""
MAX_DESCRIPTION = 1_000
"""Characters of a description that are compared."""
MAX_NAME_WORDS = 16
"""Words of a name that a message has to contain, the first ones."""
CHARACTERS_PER_STEP = 4
"""Characters of a name or a description that are split into words in a step of `Slices`."""
MEMO_BYTES = 2 << 20
TOOL_BYTES = 800
"""Estimated memory of a tool without words."""
CHARACTER_BYTES = 16
"""Estimated memory per character of a name and a description, and of their words."""


class ToolWords(NamedTuple):
    """Name and words of a tool, which a question may contain."""

    name_words: tuple[str, ...]
    """The words of the name; none of a name without words."""
    name_stems: frozenset[str]
    description_stems: frozenset[str]


class ToolMatcher:
    """Finds the calls that questions ask for. Tools that clients send again are remembered."""

    def __init__(self) -> None:
        self.tool_words: LimitedDict[tuple[str, str], ToolWords] = LimitedDict(MEMO_BYTES)
        self._slices = Slices()

    def requested_calls(self, calls: ToolCalls) -> list[RequestedCall]:
        """Returns the calls that the question asks for. May pause.

        Returns at most one where several are not allowed.
        """
        question = calls.question[-MAX_QUESTION:]
        if not question.strip():
            return []
        if calls.named:
            return [_requested(calls.tools[0], question)]
        question_words = frozenset(words_of(question))
        tools: list[ToolFunction] = []
        tool_words: list[ToolWords] = []
        may_be_named = False
        for tool in calls.tools[:MAX_TOOLS]:
            if not tool.name.strip():
                continue
            words = self.tool_words.get((tool.name, tool.description)) or self._learn(tool)
            tools.append(tool)
            tool_words.append(words)
            # Most messages contain the first word of no name, and need no further reading.
            if words.name_words and words.name_words[0] in question_words:
                may_be_named = True
        if may_be_named:
            named = named_tools(question, tools, [words.name_words for words in tool_words])
            if named:
                return _calls_in_order(question, named, first_only=calls.first_only)
        best = None
        stems = significant_stems(question_words)
        if stems:
            best = _best_tool(stems, tools, tool_words)
        if best is None:
            return []
        return [_requested(best, question)]

    def _learn(self, tool: ToolFunction) -> ToolWords:
        """Remembers the words of a tool, and returns them. May pause."""
        name = tool.name[:MAX_NAME]
        description = tool.description[:MAX_DESCRIPTION]
        self._slices.spend(1 + (len(name) + len(description)) // CHARACTERS_PER_STEP)
        tool_words = ToolWords(
            name_words=tuple(words_of(name)[:MAX_NAME_WORDS]),
            name_stems=significant_stems(words_of(name)),
            description_stems=significant_stems(words_of(description)),
        )
        size_bytes = TOOL_BYTES + CHARACTER_BYTES * (len(tool.name) + len(tool.description))
        self.tool_words.add((tool.name, tool.description), tool_words, size_bytes)
        return tool_words


def _best_tool(
    stems: frozenset[str], tools: Sequence[ToolFunction], words: Sequence[ToolWords]
) -> ToolFunction | None:
    """Returns the tool that shares most words with a question, the first of equal ones.

    `stems` are the stems of the question.
    """
    best = None
    best_score = 0
    for tool, tool_words in zip(tools, words, strict=True):
        name_words = len(stems & tool_words.name_stems)
        description_words = len(stems & tool_words.description_stems)
        if not name_words and description_words < MIN_DESCRIPTION_WORDS:
            continue
        score = NAME_WEIGHT * name_words + description_words
        if score > best_score:
            best = tool
            best_score = score
    return best


def _requested(tool: ToolFunction, text: str) -> RequestedCall:
    return RequestedCall(tool, arguments_in(text, tool))


def _calls_in_order(
    question: str, named: Sequence[NamedTool], first_only: bool
) -> list[RequestedCall]:
    """Returns a call of each tool; of several, with arguments from the text after its name.

    `first_only` returns the call of the first tool. May pause.
    """
    if first_only or len(named) == 1:
        return [_requested(named[0].tool, question)]
    ends = [following.start for following in named[1:]]
    requested: list[RequestedCall] = []
    for (start, tool), end in zip(named, [*ends, len(question)], strict=True):
        requested.append(_requested(tool, question[start:end]))
        pause_if_possible()
    return requested
