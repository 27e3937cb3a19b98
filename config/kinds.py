"""The types a setting can have: how each is read from a flag, a variable or YAML, and written as text."""

import json
import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from config.durations import format_duration, parse_duration

DURATION = "duration"
Duration = Annotated[float, DURATION]
"""Seconds inside the program, a Go style text outside of it."""

JSON = "JSON"
Json = Annotated[str | None, JSON]
"""JSON text (None for nothing); in YAML it may be written as YAML."""

OBJECTS = "list of objects"
Objects = Annotated[tuple[str, ...], OBJECTS]
"""Texts, of which some are JSON objects; in YAML those may be written as mappings."""

TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` takes a text or a YAML value and raises ValueError with the rule; `write` gives a text that
    `read` understands."""

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], str] = str


def kind_of(annotation: Any) -> Kind:
    """The kind of a field, from its type annotation (with extras)."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and DURATION in arguments:
        return Kind(DURATION, parse_duration, format_duration)
    if origin is Annotated and JSON in arguments:
        return _optional(Kind(JSON, _read_json))
    if origin is Annotated and OBJECTS in arguments:
        return Kind(OBJECTS, _read_objects, json.dumps)
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, types.UnionType):
        return _optional(kind_of(next(argument for argument in arguments if argument is not type(None))))
    if origin is tuple:
        return Kind("list", _read_list, _write_list)
    return _PLAIN[annotation]


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text (quote it in YAML)")
    return value


def _read_whole(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError("must be a whole number (of at most 64 bits)")
    return value


def _read_number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("must be a number")
    return number


def _read_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError("must be true or false")


def _read_list(value: Any) -> tuple[str, ...]:
    """A list of texts, a JSON array, or items separated by commas."""
    if isinstance(value, str):
        value = _json_array(value) if value.lstrip().startswith("[") else _separated(value)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of texts (quote them in YAML)")
    return tuple(value)


def _read_json(value: Any) -> str:
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("must be JSON") from None


def _read_objects(value: Any) -> tuple[str, ...]:
    """A list of texts and objects, a JSON array of them, one JSON object, or items separated by commas."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = [value]
    if isinstance(value, str):
        value = _json_array(value) if value.lstrip().startswith("[") else _separated(value)
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | dict) for item in items):
        raise ValueError("must be a list of texts and objects")
    return tuple(item if isinstance(item, str) else _read_json(item) for item in items)


def _separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _json_array(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON array of texts, or items separated by commas") from None


def _write_list(items: tuple[str, ...]) -> str:
    text = ",".join(items)
    plain = not text.startswith("[") and _read_list(text) == items
    return text if plain and items else json.dumps(items, ensure_ascii=False)


def _choice(words: tuple[str, ...]) -> Kind:
    named = [word or '"" (empty)' for word in words]
    rule = f"must be {', '.join(named[:-1])} or {named[-1]}"

    def read(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in words:
            raise ValueError(rule)
        return word

    return Kind("one of " + ", ".join(word or '""' for word in words), read)


def _optional(kind: Kind) -> Kind:
    """An empty text or a YAML null means "none"."""

    def read(value: Any) -> Any:
        return None if value is None or value == "" else kind.read(value)

    return replace(kind, read=read, write=lambda value: "" if value is None else kind.write(value))


_PLAIN: dict[Any, Kind] = {
    str: Kind("text", _read_text),
    int: Kind("whole number", _read_whole),
    float: Kind("number", _read_number, repr),
    bool: Kind("switch", _read_switch, lambda value: "true" if value else "false"),
}
