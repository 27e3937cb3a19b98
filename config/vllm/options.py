"""Every option of vLLM 0.32's `serve`: how it is written and which values it takes, as its parser tells.

The facts are in options.json, by groups; this is how a value is read.
"""

import json
import re
from argparse import ArgumentTypeError
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FACTS = Path(__file__).with_name("options.json")
Kind = Literal["switch", "text", "int", "float", "JSON", "size", "size or auto"]
NOTHING = frozenset({"", "None"})
"""Texts that stand for no value, where an option may have none."""
DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_LONGEST = 18
"""Digits of a number; no option of vLLM means more."""


class Option(Struct, frozen=True, kw_only=True):
    """One option, by its name without dashes."""

    kind: Kind
    many: bool = False
    """Several values may follow it."""
    optional: bool = False
    """`NOTHING` is a value."""
    off: bool = False
    """A switch with a twin: --no-NAME."""
    also: tuple[str, ...] = ()
    """Other names, with their dashes."""
    choices: tuple[str, ...] = ()
    default: object = msgspec.UNSET
    """Unset where vLLM finds it out itself."""

    def read(self, text: str) -> str:
        """`text`, if it can be a value; sizes as plain numbers. ArgumentTypeError says what it must be."""
        if self.optional and text in NOTHING:
            return ""
        if self.choices:
            if text not in self.choices:
                raise ArgumentTypeError(f"{text!r} must be one of {', '.join(self.choices)}")
            return text
        if self.kind in ("size", "size or auto"):
            return str(_size(text)) if text != "auto" or self.kind == "size" else "-1"
        if not _IS[self.kind](text):
            raise ArgumentTypeError(f"{_short(text)} must be {_WANTED[self.kind]}")
        return text


def _size(text: str) -> int:
    """A whole number, also as 8k (8,000), 25.6k or 8K (8,192), as vLLM reads it."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        if not _is_whole(text):
            raise ArgumentTypeError(f"{_short(text)} must be a whole number, which may end in k, M or G")
        return int(text)
    number, suffix = found.groups()
    if len(number) > _LONGEST:
        raise ArgumentTypeError(f"{_short(text)} has too many digits")
    if suffix in DECIMAL:
        return int(float(number) * DECIMAL[suffix])
    if "." in number:
        raise ArgumentTypeError(f"{text!r} cannot be a fraction of 2**10; {number}{suffix.lower()} can")
    return int(number) * BINARY[suffix]


def _is_whole(text: str) -> bool:
    return len(text) <= _LONGEST and _WHOLE.fullmatch(text.strip()) is not None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _short(text: str, longest: int = 80) -> str:
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}…"


_IS = {"text": lambda text: True, "int": _is_whole, "float": _is_number, "JSON": _is_json}
_WANTED = {"int": "a whole number", "float": "a number", "JSON": "JSON"}


@cache
def groups() -> dict[str, dict[str, Option]]:
    """Group to its options by name, in vLLM's order."""
    return msgspec.json.decode(FACTS.read_bytes(), type=dict[str, dict[str, Option]])


@cache
def options() -> dict[str, Option]:
    return {name: option for group in groups().values() for name, option in group.items()}
