"""Compares a request with the `when` of a rule, condition by condition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice, takewhile

import regex
from msgspec import Struct

from app.base.clock.pause import call_off_hub
from app.serving.scripts.rules import (
    MessageIs,
    Numbers,
    Range,
    ScriptError,
    TextIs,
    Texts,
    ToolResultIs,
    When,
)

SEARCH_S = 0.005
"""Longest search of one regex, in seconds; keeps other requests on time."""
SHORT = 1 << 14
"""Longest text searched in place, in characters; a longer text is searched in another thread, without the
GIL.

A search checks its timeout rarely: a regex for trailing spaces took 400 ms in 3 MB of spaces (measured).
"""
FOLDED = 1 << 18
"""Characters of a text that are compared where case does not matter."""
KNOWN = 1 << 16
"""Most characters of a text that templates receive."""
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
    """A message of a conversation. `tool` names the tool of a tool result, where the request gives the name.

    Without `gc`: the garbage collector skips the messages of long conversations.
    """

    role: str
    text: str
    tool: str = ""


@dataclass
class Request:
    """A request in the form that rules evaluate.

    `tools` maps a name to the JSON Schema of its arguments. `header` takes a name in any case.
    `key` identifies the client by API key or address. `tokens` is an estimate.
    `wants` is embedding, classes, score or words; if empty, the family's default of `WANTS`.
    `breathe` is called between parts of long work, and may pause.
    """

    api: str
    model: str
    messages: Sequence[Message]
    tools: Mapping[str, object]
    header: Callable[[str], str | None]
    key: Callable[[], str]
    path: str = ""
    tokens: float = 0.0
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
    def conversation(self) -> bytes:
        """Digest of client, model and messages up to the first user message; equal for all turns of a
        conversation.
        """
        hashed = blake2b(digest_size=16)
        for text in (self.key(), self.model):
            hashed.update(text.encode("utf-8", "surrogatepass") + b"\0")
        for message in self.messages:
            told = f"{message.role}\0{len(message.text)}\0{message.text[:FOLDED]}\0"
            hashed.update(told.encode("utf-8", "surrogatepass"))
            if message.role == "user":
                break
            self.breathe()
        return hashed.digest()


class Groups(Struct):
    """Texts captured by the regexes of a rule: `numbered` of the first match, `named` of all matches.

    `count` is the number of requests that matched the rule in the scope of its `nth`, this request included.
    """

    numbered: Sequence[str] = ()
    named: dict[str, str] = {}
    count: int = 0

    def take(self, found: regex.Match[str]) -> None:
        if not self.numbered:
            self.numbered = [_captured(found, number) for number in range(len(found.groups()) + 1)]
        self.named |= {name: _captured(found, name) for name in found.re.groupindex}

    def values(self) -> dict[str | int, str]:
        values: dict[str | int, str] = dict(enumerate(self.numbered))
        return values | {str(number): text for number, text in enumerate(self.numbered)} | self.named


class TooSlow(Exception):
    """A regex exceeded its time limit, so its rule does not match."""


Check = Callable[[Request, Groups], bool]
TextCheck = Callable[[str, Request, Groups], bool]


class Conditions:
    """Compiles the `when` of a rule, without `nth` and `chance`. ScriptError for an invalid regex."""

    def __init__(self, when: When) -> None:
        self._checks: dict[str, Check] = {}
        self.groups: set[str] = set()
        """Names and numbers of all groups of the rule's regexes."""
        self._add_request(when)
        self._add_messages(when)

    def fits(self, request: Request, groups: Groups) -> bool:
        """True if all conditions hold; adds captured texts to `groups`. May raise TooSlow."""
        return all(holds(request, groups) for holds in self._checks.values())

    def misfit(self, request: Request) -> str:
        """Returns the key of the first condition that does not hold; empty when all hold."""
        groups = Groups()
        return next((key for key, holds in self._checks.items() if not holds(request, groups)), "")

    def _add_request(self, when: When) -> None:
        if when.model is not None:
            models = listed(when.model)
            self._checks["model"] = lambda request, _: request.model in models
        if when.api is not None:
            families = listed(when.api)
            self._checks["api"] = lambda request, _: request.api in families
        if when.turn is not None:
            turns = numbers(when.turn)
            self._checks["turn"] = lambda request, _: turns(request.turn)
        if isinstance(when.tools, bool):
            some = when.tools
            self._checks["tools"] = lambda request, _: bool(request.tools) is some
        elif when.tools is not None:
            names = listed(when.tools)
            self._checks["tools"] = lambda request, _: all(name in request.tools for name in names)
        for name, wanted in when.headers.items():
            self._checks[f"headers.{name}"] = self._header(name, wanted)

    def _add_messages(self, when: When) -> None:
        wanted = when.message if isinstance(when.message, tuple) else (when.message,)
        for number, given in enumerate(wanted):
            if given is not None:
                one = MessageIs(exact=given) if isinstance(given, str) else given
                self._checks[f"message.{number}" if number else "message"] = self._message(one)
        result = when.tool_result
        if isinstance(result, bool):
            self._checks["tool_result"] = lambda request, _: bool(request.tool_results) is result
        elif result is not None:
            wanted_result = ToolResultIs(tool=result) if isinstance(result, str) else result
            self._checks["tool_result"] = self._tool_result(wanted_result)

    def _header(self, name: str, wanted: str | TextIs | None) -> Check:
        check = self._text(TextIs(exact=wanted) if isinstance(wanted, str) else wanted or TextIs())

        def holds(request: Request, groups: Groups) -> bool:
            found = request.header(name)
            return found is not None and check(found, request, groups)

        return holds

    def _message(self, wanted: MessageIs) -> Check:
        check = self._text(wanted)

        def holds(request: Request, groups: Groups) -> bool:
            last = wanted.which == "last"
            of_role: Iterable[Message] = reversed(request.messages) if last else request.messages
            if wanted.role is not None:
                of_role = (message for message in of_role if message.role == wanted.role)
            looked_at = of_role if wanted.which == "any" else islice(of_role, 1)
            return any(check(message.text, request, groups) for message in looked_at)

        return holds

    def _tool_result(self, wanted: ToolResultIs) -> Check:
        check = self._text(wanted)
        return lambda request, groups: any(
            wanted.tool in (None, each.tool) and check(each.text, request, groups)
            for each in request.tool_results
        )

    def _text(self, wanted: TextIs) -> TextCheck:
        """Returns a function that checks a text against the condition."""
        fold = folded_text if wanted.ignore_case else str
        exact = None if wanted.exact is None else {fold(text) for text in listed(wanted.exact)}
        parts = None if wanted.contains is None else [fold(text) for text in listed(wanted.contains)]
        search = None if wanted.regex is None else self._search(wanted.regex, wanted.ignore_case)

        def holds(text: str, request: Request, groups: Groups) -> bool:
            folded = fold(text)
            request.breathe()
            if exact is not None and folded not in exact:
                return False
            if parts is not None and not any(_is_in(part, folded, request) for part in parts):
                return False
            return search is None or search(text, request, groups)

        return holds

    def _search(self, source: str, ignore_case: bool) -> TextCheck:
        if len(source) > MOST_SOURCE:
            raise ScriptError(f"a regex of {len(source)} characters is too long")
        try:
            compiled = regex.compile(source, regex.IGNORECASE if ignore_case else 0, cache_pattern=False)
        except (regex.error, re.error, RecursionError, OverflowError, MemoryError) as error:
            raise ScriptError(f"the regex {source[:60]!r} is not understood: {error}") from None
        self.groups |= {str(number) for number in range(compiled.groups + 1)} | set(compiled.groupindex)

        def found_in(text: str, request: Request, groups: Groups) -> bool:
            request.breathe()
            try:
                if len(text) <= SHORT:
                    found = compiled.search(text, timeout=SEARCH_S)
                else:
                    found = call_off_hub(compiled.search, text, timeout=SEARCH_S, concurrent=True)
            except (TimeoutError, MemoryError):
                raise TooSlow(source) from None
            if found is not None:
                groups.take(found)
            return found is not None

        return found_in


def numbers(wanted: Numbers) -> Callable[[int], bool]:
    """Returns a function that checks a number against the condition."""
    if isinstance(wanted, Range):
        least, most = wanted.at_least, wanted.at_most
        return lambda number: number >= least and (most is None or number <= most)
    listed = wanted if isinstance(wanted, tuple) else (wanted,)
    return lambda number: number in listed


def _is_in(part: str, text: str, request: Request) -> bool:
    request.breathe()
    return part in text


def _captured(found: regex.Match[str], group: int | str) -> str:
    """Returns at most `KNOWN` characters of a group; empty for a group outside the match."""
    start, end = found.span(group)
    return found.string[max(0, start) : max(0, min(end, start + KNOWN))]


def folded_text(text: str) -> str:
    return text[:FOLDED].casefold()


def listed(texts: Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts
