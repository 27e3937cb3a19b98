"""What a value must satisfy beyond its type; a rule is said in words and tested in code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from config.durations import format_duration

ROUNDING = 1e-9  # relative; keeps "30 % of 70ms" from failing at 21ms by a rounding of floats


@dataclass(frozen=True, slots=True)
class Rule:
    """`text` completes the sentence "the value ..."; `holds(value, room)` sees the value's whole room."""

    text: str
    holds: Callable[[Any, Any], bool]
    flaw: Callable[[Any], str] | None = None
    """Says what is wrong with a value that it does not hold for, where `text` would not be precise."""

    def broken_by(self, value: Any) -> str:
        """What to say of a value that it does not hold for."""
        return self.flaw(value) if self.flaw else self.text


def at_least(low: float) -> Rule:
    return Rule(f"must be at least {low}", lambda value, room: value >= low)


def at_most(high: float) -> Rule:
    return Rule(f"must be at most {high}", lambda value, room: value <= high)


def between(low: float, high: float) -> Rule:
    return Rule(f"must be between {low} and {high}", lambda value, room: low <= value <= high)


def not_negative() -> Rule:
    return Rule("must not be negative", lambda value, room: value >= 0)


def positive() -> Rule:
    """For durations."""
    return Rule(f"must be longer than {format_duration(0)}", lambda value, room: value > 0)


def not_empty() -> Rule:
    return Rule("must not be empty", lambda value, room: bool(value.strip()))


def no_empty_items() -> Rule:
    return Rule("must not contain an empty item", lambda value, room: all(item.strip() for item in value))


def not_above_share(percent: int, of: str) -> Rule:
    """At most `percent` % of the room's field `of`."""
    text = f"must not be more than {percent} % of {of.replace('_', '-')}"
    share = percent / 100 * (1 + ROUNDING)
    return Rule(text, lambda value, room: value <= share * getattr(room, of))


def not_below(other: str) -> Rule:
    """At least the room's field `other`."""
    text = f"must not be less than {other.replace('_', '-')}"
    return Rule(text, lambda value, room: value >= getattr(room, other))


def items_among(words: Sequence[str]) -> Rule:
    """Every item of a list is one of `words`."""
    return Rule(f"must only have {', '.join(words)}", lambda value, room: set(value) <= set(words))


def is_identifier() -> Rule:
    """A name that needs no quotes in SQL."""
    return Rule("must be a name of letters, digits and underscores", lambda value, room: value.isidentifier())


def understood_by(read: Callable[[Any], object], text: str) -> Rule:
    """`read` takes the value; the ValueError that it raises for another says what is wrong."""

    def flaw(value: Any) -> str:
        try:
            read(value)
        except ValueError as error:
            return f"is wrong: {error}"
        return ""

    return Rule(text, lambda value, room: not flaw(value), flaw)
