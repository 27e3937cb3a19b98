"""Compares a request with the `when` of a rule, condition by condition."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice, takewhile
from typing import TypeVar

import regex
from msgspec import Struct

from app.base.clock.pause import call_off_hub
from app.serving.api.fault import RequestFacts
from app.serving.scripts import rules

SEARCH_S = 0.005
"""Longest search of a regex, in seconds."""
SHORT = 1 << 12
"""Longest text that is searched in the event loop, in characters.

A longer text is searched in another thread, without the GIL: a search checks its timeout rarely.
Measured: 37 ms in 16,384 characters for a set of 3,900 characters, and 400 ms in 3 MB of spaces.
"""
FOLDED = 1 << 18
"""Most characters that are compared where case does not matter."""
KNOWN = 1 << 16
"""Most characters of a text that templates receive."""
MAX_REGEX_CHARACTERS = 4_000
"""Longest regex, in characters."""
MAX_REGEX_NODES = 10_000
"""Most nodes of a regex after its repeats are unrolled.

The `regex` package unrolls a repeat such as `a{500}` in C, which takes 0.4 us and 270 bytes a node
and cannot be interrupted: `a{65535}`, 400 times, took a minute. """
MATCH_S = 0.5
"""Processor time for the text conditions of all rules in one HTTP request, in seconds."""
MATCH_PER_INPUT_S = 0.002
"""Further time for each prompt or pair of the request, in seconds."""
MAX_SCRIPT_REGEX_NODES = 300_000
"""Most nodes of all regexes of a script."""
_COUNT = re.compile(r"(.?)\{(\d+)[,}]", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[A-Za-z0-9-]*x")
_SPLIT_COUNT = re.compile(r"\{[\d,]*[\s#]")
"""Start of a count with a blank or comment inside, which a verbose regex may have."""
ENDS_OF_GROUPS = ")}?+*"
"""Characters before a repeat that may repeat more than one character."""
Found = TypeVar("Found")
WANTS = {
    "embeddings": "embedding",
    "pooling": "embedding",
    "classify": "classes",
    "score": "score",
    "rerank": "score",
}
"""Result that a request family needs; other families need words.

/pooling may need classes instead.
"""
WORDS = "words"


class TooSlow(Exception):
    """A regex exceeded its time limit, so its rule does not match. The text is the regex."""


class BudgetSpent(TooSlow):
    """The rules of a request have used up their time, so a rule with a condition on a text does not
    match.
    """


class MatchBudget:
    """Processor time that the text conditions of all rules may take in one HTTP request.

    `now` returns the processor time of the calling thread, in seconds.
    """

    def __init__(
        self,
        seconds: float = MATCH_S,
        now: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now = now
        self._left_s = seconds

    def extend(self, seconds: float) -> None:
        """Adds time, for one more input of the request."""
        self._left_s += seconds

    def run(self, search: Callable[..., Found], *arguments: object, **options: object) -> Found:
        """Returns the result of a search and charges its time; for any thread."""
        start_s = self._now()
        try:
            return search(*arguments, **options)
        finally:
            self._left_s -= self._now() - start_s

    def check(self) -> None:
        """Raises BudgetSpent when no time is left."""
        if self._left_s <= 0:
            raise BudgetSpent("all rules together have used up the time of the request")


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
    `budget` limits the text conditions; several prompts of an HTTP request share it.
    """

    api: str
    facts: RequestFacts
    messages: Sequence[Message]
    tools: Mapping[str, object]
    wants: str = ""
    breathe: Callable[[], None] = lambda: None
    budget: MatchBudget = field(default_factory=MatchBudget)

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
    def by_role(self) -> Mapping[str, Sequence[Message]]:
        """The messages of each role, in order."""
        found: dict[str, list[Message]] = {}
        for message in self.messages:
            found.setdefault(message.role, []).append(message)
        return found

    @cached_property
    def folded(self) -> dict[str, str]:
        """Texts without case, by their originals, as far as rules have compared them."""
        return {}

    def fold(self, text: str) -> str:
        """Returns the first `FOLDED` characters of `text` without case."""
        folded = self.folded.get(text)
        if folded is None:
            folded = self.folded[text] = text[:FOLDED].casefold()
        return folded

    @cached_property
    def client(self) -> bytes:
        return _digest(self.facts.client())

    @cached_property
    def conversation(self) -> bytes:
        """Digest of client, model and messages up to the first of a user; the same for all turns."""
        begin = next((n for n, each in enumerate(self.messages, 1) if each.role == "user"), None)
        messages = [
            (each.role, len(each.text), each.text[:FOLDED]) for each in self.messages[:begin]
        ]
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


class Conditions:
    """The compiled `when` of a rule, without `nth` and `chance`.

    ScriptError for an invalid regex.
    """

    def __init__(self, when: rules.When, regexes: "RegexCompiler | None" = None) -> None:
        self._when = when
        self._regexes = regexes or RegexCompiler()
        self.groups: set[str] = set()
        """Names and numbers of all groups of the rule's regexes."""
        given = when.message if isinstance(when.message, tuple) else (when.message,)
        wanted = [
            rules.MessageIs(exact=it) if isinstance(it, str) else it
            for it in given
            if it is not None
        ]
        self._messages = [(each, self._compiled(each)) for each in wanted]
        result = when.tool_result
        if isinstance(result, str):
            result = rules.ToolResultIs(tool=result)
        self._result = (
            (result, self._compiled(result)) if isinstance(result, rules.ToolResultIs) else None
        )
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
        text = TextCondition(wanted, self._regexes)
        if text.regex is not None:
            self.groups |= set(map(str, range(text.regex.groups + 1))) | set(text.regex.groupindex)
        return text


class TextCondition:
    """A compiled condition on a text. ScriptError for an invalid regex."""

    def __init__(self, wanted: rules.TextIs, regexes: "RegexCompiler") -> None:
        self._ignores_case = wanted.ignore_case
        self._exact: set[str] | None = None
        self._parts: list[str] | None = None
        self.regex: regex.Pattern[str] | None = None
        if wanted.exact is not None:
            self._exact = {self._written(text) for text in listed(wanted.exact)}
        if wanted.contains is not None:
            self._parts = [self._written(text) for text in listed(wanted.contains)]
        if wanted.regex is not None:
            self.regex = regexes.compile(wanted.regex, wanted.ignore_case)

    def holds(self, text: str, request: MatchedRequest, groups: Groups) -> bool:
        """Returns whether the condition holds. Raises TooSlow; may pause between its parts."""
        budget = request.budget
        request.breathe()
        budget.check()
        compared = text
        if self._ignores_case:
            compared = budget.run(request.fold, text)
        if self._exact is not None and compared not in self._exact:
            return False
        if self._parts is not None and not self._contains_part(compared, request):
            return False
        if self.regex is None:
            return True
        request.breathe()
        try:
            if len(text) <= SHORT:
                found = budget.run(self.regex.search, text, timeout=SEARCH_S)
            else:
                search = partial(budget.run, self.regex.search)
                found = call_off_hub(search, text, timeout=SEARCH_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise TooSlow(self.regex.pattern) from None
        if found is not None:
            groups.take(found)
        return found is not None

    def _contains_part(self, text: str, request: MatchedRequest) -> bool:
        for part in self._parts or ():
            request.breathe()
            request.budget.check()
            if request.budget.run(text.__contains__, part):
                return True
        return False

    def _written(self, text: str) -> str:
        """Returns a text of the rule as texts of requests are compared with it."""
        return text[:FOLDED].casefold() if self._ignores_case else text


class RegexCompiler:
    """Compiles the regexes of one script, which share a limit on their size."""

    def __init__(self) -> None:
        self.nodes = 0
        """Nodes of all regexes so far, with their counted repeats written out."""

    def compile(self, source: str, ignore_case: bool) -> regex.Pattern[str]:
        """Raises ScriptError for an invalid regex, and for one that is too large."""
        if len(source) > MAX_REGEX_CHARACTERS:
            raise rules.ScriptError(f"a regex of {len(source)} characters is too long")
        nodes = unrolled_nodes(source)
        if nodes > MAX_REGEX_NODES:
            raise rules.ScriptError(
                f"the regex {source[:60]!r} repeats too much: it has more than {MAX_REGEX_NODES} parts when "
                "its counted repeats are written out"
            )
        self.nodes += nodes
        if self.nodes > MAX_SCRIPT_REGEX_NODES:
            raise rules.ScriptError(
                f"the regexes have more than {MAX_SCRIPT_REGEX_NODES} parts together"
            )
        try:
            flags = regex.IGNORECASE if ignore_case else 0
            return regex.compile(source, flags, cache_pattern=False)
        except (regex.error, re.error, RecursionError, OverflowError, MemoryError) as error:
            raise rules.ScriptError(
                f"the regex {source[:60]!r} is not understood: {error}"
            ) from None


def unrolled_nodes(source: str) -> int:
    """Returns an upper bound of a regex's nodes, with each counted repeat written out.

    A repeat behind a single character adds its count. A repeat behind a group may repeat everything
    before it, and multiplies the nodes so far. A bracket in a character class cannot make this
    bound too low.
    """
    is_verbose = _VERBOSE.search(source) is not None
    if is_verbose and _SPLIT_COUNT.search(source):
        raise rules.ScriptError(
            f"the regex {source[:60]!r} has a blank or a comment inside a count"
        )
    nodes = 0
    counted_to = 0
    for repeat in _COUNT.finditer(source):
        # The length bounds the conversion: int() refuses 5,000 digits.
        count = MAX_REGEX_NODES + 1
        if len(repeat[2]) <= len(str(MAX_REGEX_NODES)):
            count = max(1, int(repeat[2]))
        nodes += repeat.start() + 1 - counted_to
        counted_to = repeat.end()
        # In a verbose regex, blanks and comments may separate the repeat from its group.
        if is_verbose or repeat[1] in ENDS_OF_GROUPS:
            nodes *= count
        else:
            nodes += count
    return nodes + len(source) - counted_to


def _looked_at(wanted: rules.MessageIs, request: MatchedRequest) -> Iterable[Message]:
    messages = request.messages if wanted.role is None else request.by_role.get(wanted.role, ())
    if wanted.which == "any":
        return messages
    return islice(reversed(messages) if wanted.which == "last" else messages, 1)


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
