"""Regular expressions of JSON Schema: searches in texts, and draws of matching texts."""

import re
import sys
from contextlib import AbstractContextManager
from random import Random
from re import _parser  # type: ignore[attr-defined]  # what re.compile uses
from time import thread_time
from typing import ClassVar

import regex
from gevent import monkey

from app.core.base.clock.pause import pause_if_possible
from app.extensions.forms.schema.bounds import SchemaError, UnsatisfiableError, WorkBudget
from app.extensions.forms.schema.pattern_dialect import translate
from app.extensions.forms.schema.pattern_writer import (
    CLASS_TOKENS,
    PLAIN,
    SURROGATES,
    PatternWriter,
    Tokens,
    class_members,
    expanded_size,
)
from app.shared.timed_search import timed_search

MAX_TEXT_LENGTH = 8192
"""Maximum length of a drawn text."""
MAX_PATTERN_LENGTH = 4000
"""Maximum length of an accepted pattern."""
MAX_TABLE_PATTERN_LENGTH = 60
"""Longest pattern for which `regex` may build search tables; see `_without_search_tables`."""
MAX_EXPANDED_SIZE = 20_000
"""Maximum number of tokens with repeats written out; each costs memory to compile."""
SEARCH_LIMIT_SECONDS = 0.01
"""Time limit of one search, against patterns with too much backtracking."""
SECONDS_PER_STEP = 8e-6
"""CPU time of a search that counts as one step of its budget."""
NEXT_LIMIT_SECONDS = 0.01
"""Time limit of the searches for the characters that may follow; after it there are none."""
MAX_NEXT_PATTERN_LENGTH = 500
"""Longest pattern with which the characters that may follow a text are found."""
PAUSE_SECONDS = 0.002
"""Time of searches after which other requests get a turn."""
MAX_ATTEMPTS = 40
USUAL_EXTRA_LENGTH = 8
"""Characters drawn beyond the shortest text in the first attempts."""
MAX_EXTRA_LENGTH = 24
"""Characters drawn beyond the shortest text after some failures."""
BYTES_PER_PATTERN = 2_500
"""Maximum memory of a pattern beside the library's object, measured."""
BYTES_PER_CHARACTER = 350
"""Maximum memory of each character of a pattern, measured."""
MAX_SHOWN_LENGTH = 60
"""Maximum length of a pattern in an error."""
VERBOSE_FLAG = re.compile(r"\(\?[aiLmsu]*x")


class Pattern(str):
    """A compiled regular expression in Python's dialect.

    Raises:
        SchemaError: The pattern is invalid, not supported, or too large.
    """

    source: str
    size_bytes: int
    """Estimated memory."""
    min_length: int
    """Length of the shortest full match."""
    _purging: ClassVar[AbstractContextManager[bool]] = monkey.get_original("threading", "Lock")()
    """A native lock around the library's own, which gevent has patched.

    Native threads that wait for a patched lock at the same time may wait forever.
    """
    _engine: regex.Pattern[str]
    _tokens: Tokens
    _choices: dict[int, str]
    _is_slow: bool
    """Finding the characters that may follow a text takes too long."""

    def __new__(cls, source: str) -> "Pattern":
        """Compiles `source`, a pattern of JSON Schema."""
        if len(source) > MAX_PATTERN_LENGTH:
            raise SchemaError(f"the pattern is too long: it has {len(source)} characters")
        translated = translate(source)
        pattern = super().__new__(cls, translated)
        pattern.source = source
        pattern._choices = {}
        pattern._is_slow = len(source) > MAX_NEXT_PATTERN_LENGTH
        try:
            pattern._tokens = _parser.parse(translated, re.ASCII)
            pattern.min_length = pattern._tokens.getwidth()[0]
            if expanded_size(pattern._tokens) > MAX_EXPANDED_SIZE:
                raise SchemaError(f"the pattern {_shorten(source)} has too many repetitions")
            pattern._engine = regex.compile(
                _without_search_tables(translated), regex.ASCII, cache_pattern=False
            )
            with cls._purging:
                regex.purge()  # the library would remember every pattern
        except SchemaError:
            raise
        except (re.error, regex.error, ValueError) as error:
            raise SchemaError(f"the pattern {_shorten(source)} is invalid: {error}") from None
        except (RecursionError, OverflowError, MemoryError):
            raise SchemaError(
                f"the pattern {_shorten(source)} is nested too deeply or is too large"
            ) from None
        pattern.size_bytes = (
            sys.getsizeof(pattern._engine) + BYTES_PER_PATTERN + BYTES_PER_CHARACTER * len(pattern)
        )
        return pattern

    def matches(self, text: str, budget: WorkBudget, whole: bool = False) -> bool:
        """Returns True if a part of `text` matches, or the whole text with `whole`.

        Raises:
            SchemaError: The search takes too long.
        """
        search = self._engine.search
        if whole:
            search = self._engine.fullmatch
        start = thread_time()
        try:
            is_match = timed_search(search, text, SEARCH_LIMIT_SECONDS) is not None
            budget.spend(1 + int((thread_time() - start) / SECONDS_PER_STEP))
            return is_match
        except (TimeoutError, MemoryError):
            raise SchemaError(
                f"the pattern {_shorten(self.source)} takes too long to match"
            ) from None

    def next_texts(self, text: str, characters: str) -> list[str]:
        """Returns those of `characters` that may follow `text`, and "" if it is a whole match.

        Raises:
            SchemaError: The search takes too long.
        """
        following: list[str] = []
        start = thread_time()
        try:
            for character in ("", *characters):
                if self._is_slow:
                    raise TimeoutError
                is_partial = bool(character)
                match = timed_search(
                    self._engine.fullmatch,
                    text + character,
                    seconds=SEARCH_LIMIT_SECONDS,
                    partial=is_partial,
                )
                if match is not None:
                    following.append(character)
                self._is_slow = thread_time() - start > NEXT_LIMIT_SECONDS
        except (TimeoutError, MemoryError):
            self._is_slow = True
            raise SchemaError(
                f"the pattern {_shorten(self.source)} takes too long to match"
            ) from None
        finally:
            if thread_time() - start > PAUSE_SECONDS:
                pause_if_possible()
        return following

    def write(
        self,
        rng: Random,
        budget: WorkBudget,
        min_length: int = 0,
        max_length: int = MAX_TEXT_LENGTH,
        whole: bool = False,
    ) -> str:
        """Draws a text of `min_length` to `max_length` characters that matches.

        With `whole` the whole text matches, otherwise a part.

        Raises:
            UnsatisfiableError: No text was found.
        """
        min_width, max_width = self._tokens.getwidth()
        high = min(MAX_TEXT_LENGTH, max_length)
        low = min_length
        if not whole:
            low = min(min_length, max_width)
        low = max(min_width, low)
        error = UnsatisfiableError(f"no text was found for the pattern {_shorten(self.source)}")
        if low > min(high, max_width):
            raise error
        for attempt in range(MAX_ATTEMPTS):
            extra = USUAL_EXTRA_LENGTH
            if attempt >= MAX_ATTEMPTS // 4:
                extra = MAX_EXTRA_LENGTH
            length = rng.randint(low, min(low + extra, high, max_width))
            writer = PatternWriter(self._choices, rng, budget, asserts=attempt % 4 == 3)
            text = writer.write(self._tokens, length)
            padding_length = min(min_length, MAX_TEXT_LENGTH) - len(text)
            padding = "".join(rng.choices(PLAIN, k=padding_length))
            for padded in dict.fromkeys((text + padding, padding + text)):
                if min_length <= len(padded) <= high and self.matches(padded, budget, whole):
                    return padded
        raise error


def characters(source: str) -> str:
    """Returns characters of the class ``[...]`` in `source`.

    Raises:
        SchemaError: The class is invalid.
    """
    try:
        tokens = _parser.parse(translate(source), re.ASCII)
    except re.error as error:
        raise SchemaError(str(error)) from None
    name = str(tokens[0][0])
    operand = tokens[0][1]
    if name == "LITERAL":
        if operand in SURROGATES:
            return ""
        return chr(operand)
    if name in CLASS_TOKENS:
        return class_members(tokens)
    return ""


def _without_search_tables(translated: str) -> str:
    """Returns an equal pattern for which `regex` builds no search tables.

    The tables for a literal of 3,900 letters take 28 s.
    """
    if len(translated) < MAX_TABLE_PATTERN_LENGTH:
        return translated
    if VERBOSE_FLAG.match(translated):
        translated += "\n"  # ends a comment
    return f"(?:{translated}|(?!))"


def _shorten(source: str) -> str:
    if len(source) > MAX_SHOWN_LENGTH:
        source = source[: MAX_SHOWN_LENGTH - 3] + "..."
    return repr(source)
