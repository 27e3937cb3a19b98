"""Kinds of values: texts of values in flags, variables and files, and rules of types."""

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Literal, get_args, get_origin

from msgspec import Meta

from config.declaration import DURATION, JSON, OBJECTS, SIZE
from config.durations import DURATION_RULE, format_duration, parse_duration
from config.kind import Kind, lower, split_items, to_json, to_list, to_number, to_switch, to_texts
from config.sizes import SIZE_RULE, whole_size

MAX_FLOAT = sys.float_info.max
_WHOLE = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_FINITE = Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
LIST = Kind("list", "must be a list of texts (quote them in YAML)", tuple[str, ...], to_list)
SWITCH = Kind("switch", "must be true or false", bool, to_switch)
_MARKED = (
    Kind(DURATION, DURATION_RULE, float, parse_duration),
    Kind(SIZE, SIZE_RULE, _WHOLE, whole_size),
    Kind(JSON, "must be valid JSON", str, to_json),
    Kind(OBJECTS, "must be a list of texts and objects", tuple[str, ...], to_texts),
)
_PLAIN: dict[object, Kind] = {
    str: Kind("text", "must be text (quote it in YAML)", str),
    int: Kind("whole number", "must be a whole number (of at most 64 bits)", _WHOLE, lower),
    float: Kind("number", "must be a number", _FINITE, to_number),
    bool: SWITCH,
}


def limits(kind: Kind, metas: Iterable[Meta]) -> str:
    """Returns msgspec's checks beyond the kind, as the end of the sentence "the value ...".

    The text is empty without checks.
    """
    rules = []
    for meta in metas:
        low = meta.ge
        high = meta.le
        if meta.description or meta.gt is not None:
            rules.append(meta.description or f"must be longer than {format_duration(meta.gt or 0)}")
        elif low is not None and high is not None:
            rules.append(f"must be between {low} and {high}")
        elif low is not None:
            rule = f"must be at least {low}"
            if low == 0 and kind is not _PLAIN[int]:
                rule = "must not be negative"
            rules.append(rule)
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
        return Kind(name, f"must be {', '.join(others)} or {last}", annotation, lower)
    if origin is tuple:
        return LIST
    return _PLAIN[annotation]


def written(value: object) -> str:
    """Returns the text of `value`, as `Kind.read` accepts; durations need `format_duration`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, tuple):
        return str(value)
    text = ",".join(value)
    is_json = text.lstrip().startswith(("[", "{"))
    if value and not is_json and tuple(split_items(text)) == value:
        return text
    return json.dumps(value, ensure_ascii=False)
