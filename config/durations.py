"""Conversion of durations between texts (``250ms``, ``1m30s``) and seconds."""

import re
from decimal import Decimal

NANOSECONDS: dict[str, int] = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign, U+00B5
    "μs": 1_000,  # Greek mu, U+03BC
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
LONGEST = 2**63 - 1  # nanoseconds, about 292 years: the range of Go's durations
RULE = "must be a duration such as 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h), or whole milliseconds"

_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_TEXT = re.compile(rf"([+-]?)((?:{_PART})+)", re.ASCII)
_PARTS = re.compile(_PART, re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_MAX_CHARACTERS = 64


def parse_duration(value: object) -> float:
    """Converts a Go style text to seconds; a bare integer is milliseconds. May raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(RULE)
    text = str(value).strip() if isinstance(value, int) or len(value) <= _MAX_CHARACTERS else ""
    if _WHOLE.fullmatch(text):
        nanoseconds = int(text) * NANOSECONDS["ms"]
    elif match := _TEXT.fullmatch(text):
        total = sum(Decimal(number) * NANOSECONDS[unit] for number, unit in _PARTS.findall(match[2]))
        nanoseconds = round(-total if match[1] == "-" else total)
    else:
        raise ValueError(RULE)
    if abs(nanoseconds) > LONGEST:
        raise ValueError("must be a duration of at most 292 years")
    return nanoseconds / NANOSECONDS["s"]


def format_duration(seconds: float) -> str:
    """Formats seconds as Go does, to nanoseconds: ``250ms``, ``1.5s``, ``1m30s``, ``100µs``, ``0s``."""
    nanoseconds = round(seconds * NANOSECONDS["s"])
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit in ("ns", "µs", "ms"):
        if rest < NANOSECONDS[unit] * 1_000:
            return f"{sign}{_decimal(rest, unit)}{unit}"
    hours, rest = divmod(rest, NANOSECONDS["h"])
    minutes, rest = divmod(rest, NANOSECONDS["m"])
    leading = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{leading}{_decimal(rest, 's')}s"


def _decimal(nanoseconds: int, unit: str) -> str:
    whole, fraction = divmod(nanoseconds, NANOSECONDS[unit])
    if not fraction:
        return str(whole)
    digits = len(str(NANOSECONDS[unit])) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")
