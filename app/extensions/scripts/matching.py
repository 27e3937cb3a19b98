"""Compares a request with the `when` of a rule, condition by condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TypeAlias

import regex
from msgspec import Struct

from app.core.base.clock.pause import call_off_hub
from app.extensions.scripts.matched_request import (
    MAX_COMPARED_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    MatchedRequest,
    SlowRegexError,
)
from app.extensions.scripts.regexes import RegexCompiler
from app.extensions.scripts.rules import (
    MessageIs,
    Numbers,
    Range,
    TextIs,
    Texts,
    ToolResultIs,
    When,
)
from app.shared.timed_search import timed_search

SEARCH_TIMEOUT_S = 0.005
"""Longest search of a regex."""
MAX_LOOP_SEARCH_CHARACTERS = 1 << 12
"""Longest text that is searched in the event loop.

A longer text is searched in another thread, without the GIL: a search checks its timeout rarely.
Measured: 37 ms in 16,384 characters for a set of 3,900 characters, and 400 ms in 3 MB of spaces.
"""
Check: TypeAlias = "Callable[[MatchedRequest, Groups], bool]"
"""Returns whether a condition holds, and captures the groups of its regex."""
NamedCheck: TypeAlias = tuple[str, Check]
"""Key of a condition in `when`, and its check."""


class Groups(Struct):
    """Texts captured by a rule's regexes; `count` is the number of requests that matched so far."""

    texts: dict[str | int, str] = {}
    count: int = 0

    def capture(self, match: regex.Match[str]) -> None:
        """Adds the named groups of a match; only the first match sets the numbered groups."""
        if not self.texts:
            for number in range(len(match.groups()) + 1):
                text = _group_text(match, number)
                self.texts[number] = text
                self.texts[str(number)] = text
        self.texts |= {name: _group_text(match, name) for name in match.re.groupindex}


class Conditions:
    """The compiled `when` of a rule, without `nth` and `chance`."""

    def __init__(self, when: When, regexes: RegexCompiler | None = None) -> None:
        """Compiles the conditions, or raises `ScriptError` for an invalid regex."""
        self._regexes = regexes or RegexCompiler()
        self.groups: set[str] = set()
        """Names and numbers of all groups of the rule's regexes."""
        self._searches = 0.0
        self._checks = (
            *self._checks_of_request(when),
            *self._checks_of_headers(when),
            *self._checks_of_messages(when),
            *self._checks_of_tool_result(when),
        )
        """The conditions of the rule, by their keys, in the order of their evaluation."""

    def _checks_of_request(self, when: When) -> list[NamedCheck]:
        checks: list[NamedCheck] = []
        if when.model is not None:
            checks.append(("model", partial(_has_model, frozenset(as_tuple(when.model)))))
        if when.api is not None:
            checks.append(("api", partial(_has_api, frozenset(as_tuple(when.api)))))
        if when.turn is not None:
            checks.append(("turn", partial(_has_turn, when.turn)))
        if isinstance(when.tools, bool):
            checks.append(("tools", partial(_offers_any_tools, when.tools)))
        elif when.tools:
            checks.append(("tools", partial(_offers_tools, as_tuple(when.tools))))
        return checks

    def _checks_of_headers(self, when: When) -> list[NamedCheck]:
        checks: list[NamedCheck] = []
        for name, text in when.headers.items():
            if isinstance(text, str):
                text = TextIs(exact=text)
            condition = self._compile(text or TextIs())
            self._searches += condition.searches
            checks.append((f"headers.{name}", partial(_has_header, name, condition)))
        return checks

    def _checks_of_messages(self, when: When) -> list[NamedCheck]:
        checks: list[NamedCheck] = []
        messages = when.message if isinstance(when.message, tuple) else (when.message,)
        for number, message in enumerate(messages):
            if isinstance(message, str):
                message = MessageIs(exact=message)
            if message is not None:
                condition = self._compile(message)
                self._searches += inf if message.which == "any" else condition.searches
                key = f"message.{number}" if number else "message"
                checks.append((key, partial(_has_message, message, condition)))
        return checks

    def _checks_of_tool_result(self, when: When) -> list[NamedCheck]:
        result = when.tool_result
        if result is None:
            return []
        if isinstance(result, bool):
            return [("tool_result", partial(_has_any_result, result))]
        if isinstance(result, str):
            result = ToolResultIs(tool=result)
        self._searches = inf
        condition = self._compile(result)
        return [("tool_result", partial(_has_result, result, condition))]

    @property
    def most_searches(self) -> float:
        """Most searches of a text that one request takes.

        Infinite if the time depends on the request: for a regex, all messages, or tool results.
        """
        return self._searches

    def first_mismatch(self, request: MatchedRequest, groups: Groups) -> str:
        """Returns the key of the first condition that does not hold; empty if all hold.

        Raises:
            SlowRegexError: A search took too long, or no time is left.
        """
        for key, holds in self._checks:
            if not holds(request, groups):
                return key
        return ""

    def mismatches(self, request: MatchedRequest, groups: Groups) -> list[str]:
        """Returns the keys of all conditions that do not hold.

        Raises:
            SlowRegexError: A search took too long, or no time is left.
        """
        return [key for key, holds in self._checks if not holds(request, groups)]

    def _compile(self, text: TextIs) -> TextCondition:
        condition = TextCondition(text, self._regexes)
        pattern = condition.pattern
        if pattern is not None:
            self.groups.update(map(str, range(pattern.groups + 1)), pattern.groupindex)
        return condition


class TextCondition:
    """A compiled condition on a text."""

    def __init__(self, text: TextIs, regexes: RegexCompiler) -> None:
        """Compiles the condition, or raises `ScriptError` for an invalid regex."""
        self._ignores_case = text.ignore_case
        self._exact: set[str] | None = None
        self._parts: list[str] | None = None
        self.pattern: regex.Pattern[str] | None = None
        if text.exact is not None:
            self._exact = {self._normalize(exact) for exact in as_tuple(text.exact)}
        if text.contains is not None:
            self._parts = [self._normalize(part) for part in as_tuple(text.contains)]
        if text.regex is not None:
            self.pattern = regexes.compile(text.regex, text.ignore_case)

    @property
    def searches(self) -> float:
        """Number of searches in a text; infinite for a regex."""
        if self.pattern is not None:
            return inf
        return len(self._parts or ())

    def holds(self, text: str, request: MatchedRequest, groups: Groups) -> bool:
        """Returns true if the condition holds, and captures the regex's groups.

        May pause between parts of its work.

        Raises:
            SlowRegexError: The search took too long, or no time is left.
        """
        request.pause()
        request.budget.check()
        compared = text
        if self._ignores_case:
            compared = request.budget.run(request.fold, text)
        if self._exact is not None and compared not in self._exact:
            return False
        if self._parts is not None and not request.budget.contains_any(
            compared, self._parts, request.pause
        ):
            return False
        if self.pattern is None:
            return True
        request.pause()
        match = self._search(self.pattern, text, request)
        if match is None:
            return False
        groups.capture(match)
        return True

    def _search(
        self, pattern: regex.Pattern[str], text: str, request: MatchedRequest
    ) -> regex.Match[str] | None:
        search = partial(request.budget.run, timed_search, pattern.search)
        match: regex.Match[str] | None
        try:
            if len(text) <= MAX_LOOP_SEARCH_CHARACTERS:
                match = search(text, seconds=SEARCH_TIMEOUT_S)
            else:
                match = call_off_hub(search, text, seconds=SEARCH_TIMEOUT_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise SlowRegexError(pattern.pattern) from None
        return match

    def _normalize(self, text: str) -> str:
        """Returns a text of the rule, normalized like the texts of requests."""
        if not self._ignores_case:
            return text
        return text[:MAX_COMPARED_CHARACTERS].casefold()


def _has_model(names: frozenset[str], request: MatchedRequest, groups: Groups) -> bool:
    return request.facts.model in names


def _has_api(families: frozenset[str], request: MatchedRequest, groups: Groups) -> bool:
    return request.api in families


def _has_turn(numbers: Numbers, request: MatchedRequest, groups: Groups) -> bool:
    return is_in(request.turn, numbers)


def _offers_any_tools(offers: bool, request: MatchedRequest, groups: Groups) -> bool:
    return bool(request.tools) is offers


def _offers_tools(names: Sequence[str], request: MatchedRequest, groups: Groups) -> bool:
    return all(name in request.tools for name in names)


def _has_header(
    name: str, condition: TextCondition, request: MatchedRequest, groups: Groups
) -> bool:
    value = request.facts.header(name)
    return value is not None and condition.holds(value, request, groups)


def _has_message(
    message_is: MessageIs, condition: TextCondition, request: MatchedRequest, groups: Groups
) -> bool:
    messages = request.messages
    if message_is.role is not None:
        messages = request.by_role.get(message_is.role, ())
    if not messages:
        return False
    if message_is.which == "last":
        return condition.holds(messages[-1].text, request, groups)
    if message_is.which == "first":
        return condition.holds(messages[0].text, request, groups)
    return any(condition.holds(message.text, request, groups) for message in messages)


def _has_any_result(has_result: bool, request: MatchedRequest, groups: Groups) -> bool:
    return bool(request.tool_results) is has_result


def _has_result(
    result_is: ToolResultIs, condition: TextCondition, request: MatchedRequest, groups: Groups
) -> bool:
    return any(
        condition.holds(result.text, request, groups)
        for result in request.tool_results
        if result_is.tool in (None, result.tool) and result_is.call_id in (None, result.call_id)
    )


def is_in(number: int, numbers: Numbers) -> bool:
    """Returns true if a number is one of the numbers, or in their range."""
    if isinstance(numbers, Range):
        is_above = numbers.at_most is not None and number > numbers.at_most
        return number >= numbers.at_least and not is_above
    if isinstance(numbers, tuple):
        return number in numbers
    return number == numbers


def _group_text(match: regex.Match[str], group: int | str) -> str:
    """Returns at most `MAX_VALUE_CHARACTERS` characters of a group; empty if it did not match."""
    start, end = match.span(group)
    return match.string[max(0, start) : max(0, min(end, start + MAX_VALUE_CHARACTERS))]


def as_tuple(texts: Texts) -> tuple[str, ...]:
    """Returns the texts of a key that takes a text or a list of texts."""
    if isinstance(texts, str):
        return (texts,)
    return texts
