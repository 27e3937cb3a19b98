"""A request in the form that the rules of scripts evaluate, and its budget of time."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import TypeVar

from msgspec import Struct, field

from app.core.api.fault import RequestFacts
from app.core.server.http.context import SCOPE

MAX_COMPARED_CHARACTERS = 1 << 18
"""Most characters that are compared where case does not matter."""
MAX_VALUE_CHARACTERS = 1 << 16
"""Most characters of a text that templates receive."""
MATCH_SECONDS = 0.5
"""Processor time for the text conditions of all rules in one HTTP request."""
MATCH_SECONDS_PER_INPUT = 0.002
"""Additional processor time for each prompt or pair of the request."""
GENERATED = "words"
"""Kind of result of models that generate text."""
RESULT_KINDS = {
    "embeddings": "embedding",
    "pooling": "embedding",
    "classify": "classes",
    "score": "score",
    "rerank": "score",
    "count_tokens": "input_tokens",
}
"""Kind of result of a request family; all other families need `GENERATED`.

/pooling may need classes instead.
"""
Result = TypeVar("Result")


class SlowRegexError(Exception):
    """A regex exceeded its time limit, so its rule does not match. The text is the regex."""


class BudgetSpentError(SlowRegexError):
    """The rules of a request have used up their time.

    A rule with a condition on a text then does not match.
    """


class MatchBudget:
    """Processor time that the text conditions of all rules may take in one HTTP request.

    `now` returns the processor time of the calling thread, in seconds.
    """

    def __init__(
        self,
        seconds: float = MATCH_SECONDS,
        now: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now = now
        self._remaining_s = seconds

    def extend(self, seconds: float) -> None:
        """Adds time, for one more input of the request."""
        self._remaining_s += seconds

    def run(self, search: Callable[..., Result], *arguments: object, **options: object) -> Result:
        """Returns the result of a search and charges its time; for any thread."""
        start_s = self._now()
        try:
            return search(*arguments, **options)
        finally:
            self._remaining_s -= self._now() - start_s

    def contains_any(self, text: str, parts: Sequence[str], pause: Callable[[], None]) -> bool:
        """Returns whether `text` contains one of the parts; calls `pause` before each search.

        Raises:
            BudgetSpentError: No time is left.
        """
        for part in parts:
            pause()
            self.check()
            if self.run(text.__contains__, part):
                return True
        return False

    def check(self) -> None:
        """Raises `BudgetSpentError` when no time is left."""
        if self._remaining_s <= 0:
            raise BudgetSpentError("the rules exceeded the time limit for this request")


class Untimed(MatchBudget):
    """Does not measure searches, which are few and short."""

    def run(self, search: Callable[..., Result], *arguments: object, **options: object) -> Result:
        """Returns the result of a search."""
        return search(*arguments, **options)

    def contains_any(self, text: str, parts: Sequence[str], pause: Callable[[], None]) -> bool:
        """Returns whether `text` contains one of the parts."""
        return any(map(text.__contains__, parts))

    def check(self) -> None:
        """Does nothing: there is always time left."""


def no_pause() -> None:
    """Does not pause: for requests outside a server."""


class Message(Struct, frozen=True, gc=False):
    """A message; a tool result has the name of the tool and the ID of the call.

    No `gc`: conversations are long.
    """

    role: str
    text: str
    tool: str = ""
    call_id: str = ""


class MatchedRequest(Struct, eq=False, dict=True):
    """A request in the form that rules evaluate.

    `tools` maps a name to the JSON Schema of its arguments.
    `result_kind` is embedding, classes, score, input_tokens or words; if empty, the family's of
    `RESULT_KINDS`.
    `pause` is called between parts of long work, and may pause.
    `budget` limits the text conditions; several prompts of an HTTP request share it.
    """

    api: str
    facts: RequestFacts
    messages: Sequence[Message]
    tools: Mapping[str, object]
    result_kind: str = ""
    pause: Callable[[], None] = no_pause
    budget: MatchBudget = field(default_factory=MatchBudget)
    is_refused: bool = False
    """vLLM rejects the request: only rules with recorded blocks may answer it."""

    def __post_init__(self) -> None:
        self.result_kind = self.result_kind or RESULT_KINDS.get(self.api, GENERATED)

    @property
    def last_text(self) -> str:
        """The text of the last message; empty without messages."""
        return self.messages[-1].text if self.messages else ""

    @property
    def user_text(self) -> str:
        """The text of the user's last message; empty if there is none."""
        for message in reversed(self.messages):
            if message.role == "user":
                return message.text
        return ""

    @cached_property
    def turn(self) -> int:
        """User messages so far, at least 1."""
        return max(1, sum(message.role == "user" for message in self.messages))

    @cached_property
    def tool_results(self) -> Sequence[Message]:
        """The tool results at the end of the conversation, in order."""
        results = list(takewhile(_is_tool_result, reversed(self.messages)))
        return results[::-1]

    @cached_property
    def by_role(self) -> Mapping[str, Sequence[Message]]:
        """The messages of each role, in order."""
        by_role: dict[str, list[Message]] = {}
        for message in self.messages:
            by_role.setdefault(message.role, []).append(message)
        return by_role

    @cached_property
    def folded(self) -> dict[str, str]:
        """Texts without case, by their originals, as far as rules have compared them."""
        return {}

    def fold(self, text: str) -> str:
        """Returns the first `MAX_COMPARED_CHARACTERS` characters of `text` without case."""
        folded = self.folded.get(text)
        if folded is None:
            folded = text[:MAX_COMPARED_CHARACTERS].casefold()
            self.folded[text] = folded
        return folded

    @cached_property
    def scope(self) -> str:
        """Name of the test that the request belongs to; empty without a scope."""
        return self.facts.header(SCOPE) or ""

    @cached_property
    def scope_digest(self) -> bytes:
        """Digest of the scope; empty without a scope."""
        return _digest(self.scope) if self.scope else b""

    @cached_property
    def client(self) -> bytes:
        """Digest of the client, its API key or address, in the scope of the request."""
        return _digest((self.scope, self.facts.client()))

    @cached_property
    def conversation(self) -> bytes:
        """Digest of scope, client, model and messages up to the user's first.

        The same for all turns of a conversation.
        """
        start: list[tuple[str, int, str]] = []
        for message in self.messages:
            start.append((message.role, len(message.text), message.text[:MAX_COMPARED_CHARACTERS]))
            if message.role == "user":
                break
        return _digest((self.scope, self.facts.client(), self.facts.model, start))


def _is_tool_result(message: Message) -> bool:
    return message.role == "tool"


def _digest(value: object) -> bytes:
    return blake2b(repr(value).encode(), digest_size=16).digest()
