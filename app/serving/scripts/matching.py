"""Compares a request with the `when` of a rule, condition by condition."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice, takewhile

import regex
from msgspec import Struct

from app.base.clock.pause import call_off_hub
from app.serving.faults.fault import RequestFacts
from app.serving.scripts import rules

SEARCH_S, SHORT = 0.005, 1 << 14
"""Longest search of a regex, in seconds, and longest text searched in place, in characters.

A longer text is searched in another thread, without the GIL: a search checks its timeout rarely (400 ms in
3 MB of spaces, measured).
"""
FOLDED, KNOWN = 1 << 18, 1 << 16
"""Most characters that are compared where case does not matter, and that templates receive."""
MOST_SOURCE = 4_000
"""Longest regex, in characters."""


WANTS = {
    "embeddings": "embedding",
    "pooling": "embedding",
    "classify": "classes",
    "score": "score",
    "rerank": "score",
}
"""Result that a request family needs; other families need words. /pooling may need classes instead."""
WORDS = "words"


class Message(Struct, frozen=True, gc=False):
    """A message; `tool` names the tool of a tool result. No `gc`: conversations are long."""

    role: str
    text: str
    tool: str = ""


@dataclass
class MatchedRequest:
    """A request in the form that rules evaluate.

    `tools` maps a name to the JSON Schema of its arguments.
    `wants` is embedding, classes, score or words; if empty, the family's default of `WANTS`.
    `breathe` is called between parts of long work, and may pause.
    """

    api: str
    facts: RequestFacts
    messages: Sequence[Message]
    tools: Mapping[str, object]
    wants: str = ""
    breathe: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.wants = self.wants or WANTS.get(self.api, WORDS)

    @property
    def last(self) -> str:
        return self.messages[-1].text if self.messages else ""

    @property
    def user(self) -> str:
        return next((each.text for each in reversed(self.messages) if each.role == "user"), "")

    @cached_property
    def turn(self) -> int:
        """User messages so far, at least 1."""
        return max(1, sum(each.role == "user" for each in self.messages))

    @cached_property
    def tool_results(self) -> Sequence[Message]:
        """The tool results at the end of the conversation, in order."""
        return list(takewhile(lambda each: each.role == "tool", reversed(self.messages)))[::-1]

    @cached_property
    def client(self) -> bytes:
        return _digest(self.facts.client())

    @cached_property
    def conversation(self) -> bytes:
        """Digest of client, model and messages up to the first of a user; the same for all turns."""
        begin = next((n for n, each in enumerate(self.messages, 1) if each.role == "user"), None)
        messages = [(each.role, len(each.text), each.text[:FOLDED]) for each in self.messages[:begin]]
        return _digest((self.facts.client(), self.facts.model, messages))


def _digest(value: object) -> bytes:
    return blake2b(repr(value).encode(), digest_size=16).digest()


class Groups(Struct):
    """Texts captured by a rule's regexes; `count` is the number of requests that matched so far."""

    texts: dict[str | int, str] = {}
    count: int = 0

    def take(self, found: regex.Match[str]) -> None:
        if not self.texts:
            for number in range(len(found.groups()) + 1):
                self.texts[number] = self.texts[str(number)] = _captured(found, number)
        self.texts |= {name: _captured(found, name) for name in found.re.groupindex}


class TooSlow(Exception):
    """A regex exceeded its time limit, so its rule does not match."""


class Conditions:
    """The compiled `when` of a rule, without `nth` and `chance`. ScriptError for an invalid regex."""

    def __init__(self, when: rules.When) -> None:
        self._when = when
        self.groups: set[str] = set()
        """Names and numbers of all groups of the rule's regexes."""
        given = when.message if isinstance(when.message, tuple) else (when.message,)
        wanted = [rules.MessageIs(exact=it) if isinstance(it, str) else it for it in given if it is not None]
        self._messages = [(each, self._compiled(each)) for each in wanted]
        result = when.tool_result
        if isinstance(result, str):
            result = rules.ToolResultIs(tool=result)
        self._result = (result, self._compiled(result)) if isinstance(result, rules.ToolResultIs) else None
        self._headers = {
            name: self._compiled(
                rules.TextIs(exact=value) if isinstance(value, str) else value or rules.TextIs()
            )
            for name, value in when.headers.items()
        }

    def misfit(self, request: MatchedRequest, groups: Groups) -> str:
        """Returns the key of the first condition that does not hold, or "". May raise TooSlow."""
        return next((key for key, holds in self._checks(request, groups) if not holds), "")

    def _checks(self, request: MatchedRequest, groups: Groups) -> Iterator[tuple[str, bool]]:
        when, header, results = self._when, request.facts.header, request.tool_results
        yield "model", when.model is None or request.facts.model in listed(when.model)
        yield "api", when.api is None or request.api in listed(when.api)
        yield "turn", when.turn is None or is_in(request.turn, when.turn)
        if isinstance(when.tools, bool):
            yield "tools", bool(request.tools) is when.tools
        else:
            yield "tools", all(name in request.tools for name in listed(when.tools or ()))
        for name, text in self._headers.items():
            found = header(name)
            yield f"headers.{name}", found is not None and text.holds(found, request, groups)
        for number, (wanted, text) in enumerate(self._messages):
            messages = _looked_at(wanted, request)
            key = f"message.{number}" if number else "message"
            yield key, any(text.holds(each.text, request, groups) for each in messages)
        if isinstance(when.tool_result, bool):
            yield "tool_result", bool(results) is when.tool_result
        if self._result is not None:
            result, text = self._result
            named = (each.text for each in results if result.tool in (None, each.tool))
            yield "tool_result", any(text.holds(each, request, groups) for each in named)

    def _compiled(self, wanted: rules.TextIs) -> "TextCondition":
        text = TextCondition(wanted)
        if text.regex is not None:
            self.groups |= set(map(str, range(text.regex.groups + 1))) | set(text.regex.groupindex)
        return text


class TextCondition:
    """A compiled condition on a text. ScriptError for an invalid regex."""

    def __init__(self, wanted: rules.TextIs) -> None:
        self._fold = fold = (lambda text: text[:FOLDED].casefold()) if wanted.ignore_case else str
        self._exact = None if wanted.exact is None else set(map(fold, listed(wanted.exact)))
        self._parts = None if wanted.contains is None else list(map(fold, listed(wanted.contains)))
        self.regex: regex.Pattern[str] | None = None
        source = wanted.regex
        if source is None:
            return
        if len(source) > MOST_SOURCE:
            raise rules.ScriptError(f"a regex of {len(source)} characters is too long")
        try:
            flags = regex.IGNORECASE if wanted.ignore_case else 0
            self.regex = regex.compile(source, flags, cache_pattern=False)
        except (regex.error, re.error, RecursionError, OverflowError, MemoryError) as error:
            raise rules.ScriptError(f"the regex {source[:60]!r} is not understood: {error}") from None

    def holds(self, text: str, request: MatchedRequest, groups: Groups) -> bool:
        request.breathe()
        folded = self._fold(text)
        if self._exact is not None and folded not in self._exact:
            return False
        if self._parts is not None and not any(part in folded for part in self._parts):
            return False
        if self.regex is None:
            return True
        request.breathe()
        try:
            if len(text) <= SHORT:
                found = self.regex.search(text, timeout=SEARCH_S)
            else:
                found = call_off_hub(self.regex.search, text, timeout=SEARCH_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise TooSlow(self.regex.pattern) from None
        if found is not None:
            groups.take(found)
        return found is not None


def _looked_at(wanted: rules.MessageIs, request: MatchedRequest) -> Iterable[Message]:
    found: Iterable[Message] = reversed(request.messages) if wanted.which == "last" else request.messages
    if wanted.role is not None:
        found = (message for message in found if message.role == wanted.role)
    return found if wanted.which == "any" else islice(found, 1)


def is_in(number: int, wanted: rules.Numbers) -> bool:
    if isinstance(wanted, rules.Range):
        return number >= wanted.at_least and (wanted.at_most is None or number <= wanted.at_most)
    return number in (wanted if isinstance(wanted, tuple) else (wanted,))


def _captured(found: regex.Match[str], group: int | str) -> str:
    """Returns at most `KNOWN` characters of a group; empty for a group outside the match."""
    start, end = found.span(group)
    return found.string[max(0, start) : max(0, min(end, start + KNOWN))]


def listed(texts: rules.Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts
