"""The result of an import: rules of a script, and a list of the losses."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
MAX_NUMBER = 3_600_000
"""Largest delay, in milliseconds: an hour."""


class ImportFormatError(ValueError):
    """A file does not have the expected format. The text is one line without the file's name."""


@dataclass
class ImportedScript:
    """The rules that an import has made so far.

    Attributes:
        rules: The rules; the first that matches answers.
        left_out: The losses: one line for each part of the fixtures that the rules do not have.
        ignored: One line for each part that is about a server other than the model's.
    """

    rules: list[Json] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def add_rule(self, place: str, rule: Json) -> None:
        """Adds a rule, unless it cannot be written as JSON."""
        try:
            json.dumps(rule, allow_nan=False, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            self.leave_out(place, "left out: a text that is not valid Unicode")
        except ValueError:
            self.leave_out(place, "left out: a number that is not finite")
        else:
            self.rules.append(rule)

    def leave_out(self, place: str, loss: str) -> None:
        """Adds a line to the list of losses."""
        self.left_out.append(f"{place}: {loss}")

    def leave_out_unknown(
        self, place: str, fields: Mapping[str, Any], expected: Collection[str]
    ) -> None:
        """Adds a line for the fields that are not in `expected`, except comments like `_note`."""
        unknown = [str(name) for name in fields if name not in expected]
        unknown = [name for name in unknown if not name.startswith("_")]
        if unknown:
            self.leave_out(place, f"{', '.join(unknown)} left out")


def mapping(value: object, place: str) -> Json:
    """Returns `value`, which has to be a mapping.

    Raises:
        ImportFormatError: it is not.
    """
    if not isinstance(value, dict):
        raise ImportFormatError(f"{place} must be a mapping, got {type(value).__name__}")
    return value


def items(value: object, place: str) -> list[Any]:
    """Returns `value`, which has to be a list.

    Raises:
        ImportFormatError: it is not.
    """
    if not isinstance(value, list):
        raise ImportFormatError(f"{place} must be a list, got {type(value).__name__}")
    return value


def text(value: object, place: str) -> str:
    """Returns `value`, which has to be a text.

    Raises:
        ImportFormatError: it is not.
    """
    if not isinstance(value, str):
        raise ImportFormatError(f"{place} must be a string, got {type(value).__name__}")
    return value


def milliseconds(seconds: float) -> str:
    """Returns a duration in the syntax of settings."""
    return f"{seconds * 1e3:.0f}ms"


def is_number(value: object) -> bool:
    """Returns whether a JSON value is a number from zero to `MAX_NUMBER`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MAX_NUMBER


def status_of(value: object) -> int:
    """Returns the status of an error answer.

    Raises:
        ImportFormatError: it is no status that a rule can have.
    """
    if not isinstance(value, int) or not 400 <= value <= 599:
        raise ImportFormatError(f"status {str(value)[:20]}")
    return value
