"""The values that fake metrics may have: numbers, functions of time, counts of buckets, adapters.

A reader takes the value's place in the object (for the error) and the value as JSON has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from config.durations import parse_duration
from config.kinds import kind_of

SHAPES = ("oscillate", "ramp", "rampreset", "squarewave")
FINISH_REASONS = (
    *("stop", "length", "abort", "error", "repetition"),
    *("tool_calls", "remote_decode", "cache_threshold"),
)
"""vLLM's, then those that only the reference simulator knows."""
MOST_ADAPTERS = 1000
"""Entries of the list of adapters."""

_LEVEL = "must be a number or a function such as ramp:0:10:30s (shape:start:end:period)"
_number, _whole = kind_of(float).read, kind_of(int).read


class FakeMetricsError(ValueError):
    """The value at `where` breaks a rule; the text is one sentence with both."""

    def __init__(self, where: str, rule: str) -> None:
        super().__init__(f"{where} {rule}")


@dataclass(frozen=True, slots=True)
class Function:
    """A value that follows time from `start` to `end`; `shape` is one of SHAPES, `period_s` > 0."""

    shape: str
    start: float
    end: float
    period_s: float


Reader = Callable[[str, Any], Any]
Level = float | Function
Counts = tuple[int, ...]
"""Observations per bucket, not cumulative; those after the last are 0."""


@dataclass(frozen=True, slots=True)
class FakeAdapters:
    """LoRA adapters at a time: names with commas between them, and Unix seconds."""

    running: str
    waiting: str
    timestamp: float


def read_requests(where: str, value: Any) -> Level:
    """A number of requests, or a function that gives one."""
    level = _level(where, value)
    if min(_extremes(level)) < 0:
        raise FakeMetricsError(where, "must not be negative at any time")
    return level


def read_share(where: str, value: Any) -> Level:
    """A number from 0 to 1, or a function that gives one."""
    level = _level(where, value)
    if min(_extremes(level)) < 0 or max(_extremes(level)) > 1:
        raise FakeMetricsError(where, "must be between 0 and 1 at all times")
    return level


def read_count(where: str, value: Any) -> int:
    """A whole number from 0 on."""
    try:
        count: int = _whole(value)
    except ValueError as error:
        raise FakeMetricsError(where, str(error)) from None
    if count < 0:
        raise FakeMetricsError(where, "must not be negative")
    return count


def read_counts(longest: int) -> Reader:
    """A reader of lists of at most `longest` counts."""

    def read(where: str, value: Any) -> Counts:
        items = _list(where, value, longest)
        return tuple(read_count(f"{where}[{place}]", item) for place, item in enumerate(items))

    return read


def read_reasons(where: str, value: Any) -> dict[str, int]:
    """Finish reason to count."""
    if not isinstance(value, dict):
        raise FakeMetricsError(where, "must be an object of finish reasons and counts")
    if unknown := next((reason for reason in value if reason not in FINISH_REASONS), None):
        raise FakeMetricsError(where, f"must not have {unknown!r}, only {', '.join(FINISH_REASONS)}")
    return {reason: read_count(f"{where}.{reason}", count) for reason, count in value.items()}


def read_adapters(where: str, value: Any) -> tuple[FakeAdapters, ...]:
    """A list of objects with running, waiting and timestamp, or of their JSON texts."""
    items = _list(where, value, MOST_ADAPTERS)
    return tuple(_adapters(f"{where}[{place}]", item) for place, item in enumerate(items))


def _adapters(where: str, item: Any) -> FakeAdapters:
    try:
        found = json.loads(item) if isinstance(item, str) else item
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.keys() - {"running", "waiting", "timestamp"}:
        raise FakeMetricsError(where, "must be an object with running, waiting and timestamp")
    return FakeAdapters(
        _names(f"{where}.running", found.get("running") or ""),
        _names(f"{where}.waiting", found.get("waiting") or ""),
        _finite(f"{where}.timestamp", found.get("timestamp") or 0),
    )


def _names(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _is_unicode(value):
        raise FakeMetricsError(where, "must be text: names with commas between them")
    return value


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _list(where: str, value: Any, longest: int) -> list[Any]:
    if not isinstance(value, list):
        raise FakeMetricsError(where, "must be a list")
    if len(value) > longest:
        raise FakeMetricsError(where, f"must have at most {longest} items")
    return value


def _finite(where: str, value: Any, rule: str = "must be a number") -> float:
    try:
        number: float = _number(value)
    except ValueError:
        raise FakeMetricsError(where, rule) from None
    return number


def _level(where: str, value: Any) -> Level:
    if not isinstance(value, str) or ":" not in value:
        return _finite(where, value, _LEVEL)
    parts = value.split(":")
    if len(parts) != 4:
        raise FakeMetricsError(where, _LEVEL)
    shape, start, end, period = parts
    if shape not in SHAPES:
        raise FakeMetricsError(where, f"must have one of the shapes {', '.join(SHAPES)}, not {shape!r}")
    return Function(shape, _finite(where, start, _LEVEL), _finite(where, end, _LEVEL), _period(where, period))


def _period(where: str, text: str) -> float:
    try:
        period_s = parse_duration(text)
    except ValueError as error:
        raise FakeMetricsError(f"{where}: its period", str(error)) from None
    if period_s <= 0:
        raise FakeMetricsError(f"{where}: its period", "must be longer than 0s")
    return period_s


def _extremes(level: Level) -> tuple[float, ...]:
    return (level.start, level.end) if isinstance(level, Function) else (level,)
