"""Durations as texts: Go's style, such as ``250ms`` or ``1m30s``."""

import re
from decimal import Decimal

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
MAX_NANOSECONDS = 2**63 - 1
"""About 292 years: the range of Go's durations."""
DURATION_RULE = (
    "must be a duration such as 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h), "
    "or whole milliseconds"
)
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)"
_TEXT = re.compile(rf"([+-]?)((?:{_PART})+)", re.ASCII)
_MICRO = str.maketrans("µμ", "uu")
"""The micro sign (U+00B5) and the Greek mu (U+03BC)."""
_MAX_CHARACTERS = 64


def parse_duration(value: object) -> float:
    """Converts a Go style text to seconds; a bare integer is milliseconds.

    Raises:
        ValueError: `value` is not a duration; the message has the rule.
    """
    too_long = isinstance(value, str) and len(value) > _MAX_CHARACTERS
    if too_long or isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(DURATION_RULE)
    text = str(value).strip().translate(_MICRO)
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        text += "ms"
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(DURATION_RULE)
    total = sum(
        Decimal(number) * NANOSECONDS[unit]
        for number, unit in re.findall(_PART, match[2], re.ASCII)
    )
    if total > MAX_NANOSECONDS:
        raise ValueError("must be a duration of at most 292 years")
    if match[1] == "-":
        total = -total
    return round(total) / NANOSECONDS["s"]


def format_duration(seconds: float) -> str:
    """Formats seconds as Go does, such as ``250ms``, ``1.5s``, ``1m30s``, ``100µs`` or ``0s``."""
    nanoseconds = abs(round(seconds * NANOSECONDS["s"]))
    if nanoseconds == 0:
        return "0s"
    text = "-" if seconds < 0 else ""
    for unit, name in (("ns", "ns"), ("us", "µs"), ("ms", "ms")):
        if nanoseconds < NANOSECONDS[unit] * 1_000:
            return f"{text}{_decimal(nanoseconds, unit)}{name}"
    minutes, nanoseconds = divmod(nanoseconds, NANOSECONDS["m"])
    hours, minutes = divmod(minutes, 60)
    if hours:
        text += f"{hours}h{minutes}m"
    elif minutes:
        text += f"{minutes}m"
    return f"{text}{_decimal(nanoseconds, 's')}s"


def _decimal(nanoseconds: int, unit: str) -> str:
    return f"{nanoseconds / NANOSECONDS[unit]:.9f}".rstrip("0").rstrip(".")
