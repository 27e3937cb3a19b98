"""Kinds of values: their texts in flags, variables and files, and the conversion by msgspec."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from config.declaration import DURATION, JSON, OBJECTS

SWITCH_WORDS = {"yes": True, "on": True, "no": False, "off": False}
"""Words of a switch, in addition to msgspec's: true, false, 1 and 0."""
MOST = sys.float_info.max

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
LONGEST = 2**63 - 1  # nanoseconds, about 292 years: the range of Go's durations
RULE = "must be a duration such as 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h), or whole milliseconds"
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)"
_TEXT = re.compile(rf"([+-]?)((?:{_PART})+)", re.ASCII)
_MICRO = str.maketrans("µμ", "uu")
"""The micro sign (U+00B5) and the Greek mu (U+03BC)."""
_MAX_CHARACTERS = 64


def parse_duration(value: object) -> float:
    """Converts a Go style text to seconds; a bare integer is milliseconds. May raise ValueError."""
    too_long = isinstance(value, str) and len(value) > _MAX_CHARACTERS
    if too_long or isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(RULE)
    text = str(value).strip().translate(_MICRO)
    text += "ms" if re.fullmatch(r"[+-]?\d+", text, re.ASCII) else ""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(RULE)
    total = sum(
        Decimal(number) * NANOSECONDS[unit]
        for number, unit in re.findall(_PART, match[2], re.ASCII)
    )
    if total > LONGEST:
        raise ValueError("must be a duration of at most 292 years")
    return round(-total if match[1] == "-" else total) / NANOSECONDS["s"]


def format_duration(seconds: float) -> str:
    """Formats seconds as Go does, to nanoseconds:

    ``250ms``, ``1.5s``, ``1m30s``, ``100µs``, ``0s``.
    """
    nanoseconds = round(seconds * NANOSECONDS["s"])
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit, name in (("ns", "ns"), ("us", "µs"), ("ms", "ms")):
        if rest < NANOSECONDS[unit] * 1_000:
            return f"{sign}{_decimal(rest, unit)}{name}"
    hours, rest = divmod(rest, NANOSECONDS["h"])
    minutes, rest = divmod(rest, NANOSECONDS["m"])
    leading = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{leading}{_decimal(rest, 's')}s"


def _decimal(nanoseconds: int, unit: str) -> str:
    return f"{nanoseconds / NANOSECONDS[unit]:.9f}".rstrip("0").rstrip(".")


class Kind(Struct, frozen=True):
    name: str
    wanted: str
    """Completes the sentence "the value ..." for a value of another kind."""
    type: Any
    prepare: Callable[[object], object] = lambda raw: raw
    """Converts a text, or a value of YAML or JSON, to msgspec's input.

    Raises ValueError with the rule.
    """

    def read(self, raw: object) -> object:
        """Converts `raw` to a value. ValueError has the rule."""
        return checked(self.prepare(raw), self.type, self.wanted, strict=False)


def checked(value: object, type: Any, rule: str, strict: bool = True) -> object:
    """Converts `value` to `type` by msgspec. Raises ValueError with `rule` on failure."""
    try:
        return msgspec.convert(value, type, strict=strict)
    except msgspec.ValidationError:
        raise ValueError(rule) from None


def limits(kind: Kind, metas: Iterable[Meta]) -> str:
    """Returns msgspec's checks beyond the kind, as the end of "the value ..."; empty without any."""
    rules = []
    for meta in metas:
        low, high = meta.ge, meta.le
        if meta.description or meta.gt is not None:
            rules.append(meta.description or f"must be longer than {format_duration(meta.gt or 0)}")
        elif low is not None and high is not None:
            rules.append(f"must be between {low} and {high}")
        elif low is not None:
            plain = low == 0 and kind is not _PLAIN[int]
            rules.append("must not be negative" if plain else f"must be at least {low}")
        elif high is not None:
            rules.append(f"must be at most {high}")
    return "; ".join(rules)


def kind_of(annotation: object, extras: Iterable[object]) -> Kind:
    """Returns the kind of a plain type with the metadata `extras` of `Annotated`."""
    markers = [extra for extra in extras if isinstance(extra, str)]
    for kind in _MARKED:
        if kind.name in markers:
            return kind
    origin = get_origin(annotation)
    if origin is Literal:
        words: tuple[str, ...] = get_args(annotation)
        *others, last = (word or '"" (empty)' for word in words)
        name = "one of " + ", ".join(word or '""' for word in words)
        return Kind(name, f"must be {', '.join(others)} or {last}", annotation, _lowered)
    return LIST if origin is tuple else _PLAIN[annotation]


def written(value: object) -> str:
    """Returns the text of `value`, as `Kind.read` accepts; durations need `format_duration`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, tuple):
        return str(value)
    text = ",".join(value)
    plain = value and not text.lstrip().startswith(("[", "{")) and tuple(_separated(text)) == value
    return text if plain else json.dumps(value, ensure_ascii=False)


def _lowered(raw: object) -> object:
    return raw.strip().lower() if isinstance(raw, str) else raw


def _number(raw: object) -> object:
    try:
        return float(raw) if isinstance(raw, str) else raw
    except ValueError:
        return raw


def _switch(raw: object) -> object:
    word = _lowered(raw)
    return SWITCH_WORDS.get(word, word) if isinstance(word, str) else raw


def _list(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    if not raw.lstrip().startswith("["):
        return _separated(raw)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON array of texts, or items separated by commas") from None


def _objects(raw: object) -> object:
    """Converts a list or JSON array of texts and objects, one JSON object, or items separated by
    commas.
    """
    found = [raw] if isinstance(raw, str) and raw.lstrip().startswith("{") else _list(raw)
    items = found if isinstance(found, list | tuple) else [found]
    return [_json(item) if isinstance(item, dict) else item for item in items]


def _json(raw: object) -> str:
    try:
        return json.dumps(json.loads(raw) if isinstance(raw, str) else raw, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("must be JSON") from None


def _separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


_WHOLE = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_FINITE = Annotated[float, Meta(ge=-MOST, le=MOST)]
LIST = Kind("list", "must be a list of texts (quote them in YAML)", tuple[str, ...], _list)
_MARKED = (
    Kind(DURATION, RULE, float, parse_duration),
    Kind(JSON, "must be JSON", str, _json),
    Kind(OBJECTS, "must be a list of texts and objects", tuple[str, ...], _objects),
)
SWITCH = Kind("switch", "must be true or false", bool, _switch)
_PLAIN: dict[object, Kind] = {
    str: Kind("text", "must be text (quote it in YAML)", str),
    int: Kind("whole number", "must be a whole number (of at most 64 bits)", _WHOLE, _lowered),
    float: Kind("number", "must be a number", _FINITE, _number),
    bool: SWITCH,
}
