"""All options of vLLM 0.32's `serve`: spellings and valid values, from vLLM's parser.

options.json has the facts, by group; this module validates values.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FACTS = Path(__file__).with_name("options.json")
Kind = Literal["switch", "text", "int", "float", "JSON", "size", "size or auto"]
OBSOLETE = "obsolete"
NOTHING = frozenset({"", "None"})
"""Texts for no value, in an optional option."""
DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_LONGEST = 18
"""Most digits of a number; no option of vLLM needs more."""


class Option(Struct, frozen=True, kw_only=True):
    kind: Kind
    many: bool = False
    optional: bool = False
    """Texts in `NOTHING` are valid."""
    off: bool = False
    """Switch with a negative form, --no-NAME."""
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    setting: str = ""
    """Setting that the option sets, where its name is another."""
    values: dict[str, str | None] = {}
    """Value -> value of the setting, where that is another; None sets nothing."""
    effect: str = ""
    """Effect, in a sentence, where it is not that of the setting."""
    unplayed: str = ""
    """Effect in vLLM that a client would notice, and that the option does not have here."""
    default: object = msgspec.UNSET
    """Unset if vLLM determines the default at run time."""

    def read(self, text: str) -> str:
        """Returns a valid `text` unchanged; sizes as plain numbers. ValueError has the rule."""
        if self.optional and text in NOTHING:
            return ""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"{text!r} must be one of {', '.join(self.choices)}")
            return text
        if self.kind in ("size", "size or auto"):
            return "-1" if text == "auto" and self.kind != "size" else str(_size(text))
        read, wanted = _KINDS[self.kind]
        try:
            read(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{_short(text)} must be {wanted}") from None
        return text


def _size(text: str) -> int:
    """Parses a whole number, or a size such as 8k (8,000), 25.6k or 8K (8,192), as vLLM does."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        try:
            return _whole(text)
        except ValueError:
            rule = "must be a whole number, which may end in k, M or G"
            raise ValueError(f"{_short(text)} {rule}") from None
    number, suffix = found.groups()
    if len(number) > _LONGEST:
        raise ValueError(f"{_short(text)} has too many digits")
    if suffix in DECIMAL:
        return int(float(number) * DECIMAL[suffix])
    if "." in number:
        raise ValueError(f"{text!r} cannot be a fraction of 2**10; {number}{suffix.lower()} can")
    return int(number) * BINARY[suffix]


def _whole(text: str) -> int:
    if len(text) > _LONGEST or not _WHOLE.fullmatch(text.strip()):
        raise ValueError("not a whole number")
    return int(text)


def _short(text: str, longest: int = 80) -> str:
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}…"


_KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "text": (str, "text"),
    "int": (_whole, "a whole number"),
    "float": (float, "a number"),
    "JSON": (json.loads, "JSON"),
}
"""Kind -> function that raises ValueError for another text, and the words of the rule."""


@cache
def _facts() -> dict[str, dict[str, Option]]:
    return msgspec.json.decode(FACTS.read_bytes(), type=dict[str, dict[str, Option]])


def groups() -> dict[str, dict[str, Option]]:
    return {group: members for group, members in _facts().items() if group != OBSOLETE}


@cache
def options() -> dict[str, Option]:
    return {name: option for group in groups().values() for name, option in group.items()}


def obsolete() -> dict[str, Option]:
    """Returns options of earlier versions of vLLM, accepted for old command lines."""
    return _facts()[OBSOLETE]
