"""Values of rows of traces: numbers and times in the spellings that programs write."""

import math
from datetime import UTC, datetime
from typing import Any

from workbench.load.loads import MAX_TOKENS

MISSING = frozenset(("", "nan", "null", "none", "na", "n/a", "<na>", "nat"))
"""Texts that stand for no value, in lower case."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in a unit of time."""
EPOCH_UNITS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"))
"""Smallest number of a time since 1970 in each unit: 1973 in milliseconds is 5138 in seconds."""


def is_missing(value: object) -> bool:
    """Returns whether a cell or a field has no value."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, str) and value.strip().lower() in MISSING


def read_tokens(name: str, value: object, min_tokens: int = 1) -> int:
    """Returns the tokens in a cell or a field; pandas writes 100 as `100.0` beside an empty cell.

    Raises ValueError with the rule.
    """
    number = _number(value)
    if not number.is_integer() or not min_tokens <= number <= MAX_TOKENS:
        raise ValueError(
            f"{name} {str(value)[:40]!r} must be a whole number from {min_tokens} to {MAX_TOKENS}"
        )
    return int(number)


def has_failed(value: object) -> bool:
    """Returns whether a number of tokens is missing or 0: the request failed."""
    return is_missing(value) or _number(value) == 0


def read_seconds(name: str, value: object, max_seconds: float = 1e300) -> float:
    """Returns a number of seconds. Raises ValueError with the rule."""
    seconds = _number(value)
    if not 0 <= seconds <= max_seconds:
        raise ValueError(
            f"{name} {str(value)[:40]!r} must be a number of seconds from 0 to {max_seconds:g}"
        )
    return seconds


def read_utc_seconds(name: str, value: object) -> float:
    """Returns the seconds since the epoch of a date and a time, by default in UTC.

    Raises ValueError with the rule.
    """
    try:
        moment = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise ValueError(f"{name} {str(value)[:40]!r} must be a date and time") from None
    if not moment.tzinfo:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def read_moment(name: str, value: object, unit: str = "") -> float:
    """Returns the seconds of a number in a `unit`, or of a date and a time.

    A number without a unit is of seconds. A number that is so large that it counts smaller units
    since 1970 is of these units. Raises ValueError with the rule.
    """
    number = _number(value)
    if math.isnan(number):
        return read_utc_seconds(name, value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} {str(value)[:40]!r} must be a time from 0")
    epoch_unit = next((unit for minimum, unit in EPOCH_UNITS if number >= minimum), "s")
    if not unit or UNITS[epoch_unit] < UNITS[unit]:
        unit = epoch_unit
    return number * UNITS[unit]


def _number(value: object) -> float:
    """Returns a number, or the number in a text; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    if isinstance(value, str) and "_" in value:  # Python's notation, of no other program
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def read_block_ids(name: str, value: object) -> list[Any]:
    """Returns the ids of the blocks of a prompt.

    Raises:
        ValueError: They are not a list of numbers or texts.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(map(_is_id, value)):
        raise ValueError(f"{name} must be a list of numbers or texts")
    return value


def _is_id(value: object) -> bool:
    return isinstance(value, int | float | str)
