"""An option of vLLM's `serve`: its facts, as in options.json, and the values that it accepts."""

import json
import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

Kind = Literal["switch", "text", "int", "float", "JSON", "size", "size or auto"]
NOTHING = frozenset({"", "None"})
"""Texts for no value, in an optional option."""
UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_SIZE = re.compile(r"\s*([+-]?\d{1,18})(\.\d{1,9})?([kKmMgGtT]?)\s*", re.ASCII)


def _size(text: str) -> int:
    """Parses a whole number, or a size such as 8k (8,000), 25.6k or 8K (8,192), as vLLM does."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size")
    number, fraction, unit = match.groups()
    if fraction is None:
        return int(number) * UNITS[unit]
    if not unit.islower():
        raise ValueError("not a size")
    return int(float(number + fraction) * UNITS[unit])


def _size_or_auto(text: str) -> int:
    """Parses a size; -1 for the word auto."""
    return -1 if text == "auto" else _size(text)


def _whole(text: str) -> int:
    if _size(text) != int(text):
        raise ValueError("not a whole number")
    return int(text)


_SIZES = "a whole number, which may end in k, m, g or t (8.5k, too), or in K, M, G or T (of 1024)"
_KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "text": (str, "text"),
    "int": (_whole, "a whole number"),
    "float": (float, "a number"),
    "JSON": (json.loads, "JSON"),
    "size": (_size, _SIZES),
    "size or auto": (_size_or_auto, _SIZES),
}
"""Kind -> function that raises ValueError for another text, and the words of the rule."""


class Option(Struct, frozen=True, kw_only=True):
    """The facts of an option."""

    kind: Kind
    many: bool = False
    optional: bool = False
    """Texts in `NOTHING` are valid."""
    off: bool = False
    """Switch with a negative form, --no-NAME."""
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """Values that vLLM's parser knows."""
    names: tuple[str, ...] = ()
    """Values that vLLM knows when it starts; its parser takes any text."""
    names_from: str = ""
    """Option with a plugin that may register further names."""
    any_case: bool = False
    """`names` are upper case, and a value may be lower case."""
    paths: bool = False
    """A dotted Python path is valid, too."""
    # Limits of a number.
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
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
        """Returns a valid `text` unchanged; sizes as plain numbers.

        Raises:
            ValueError: The text is invalid; the message has the rule.
        """
        if self.optional and text in NOTHING:
            return ""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"must be one of {', '.join(self.choices)}")
            return text
        read, rule = _KINDS[self.kind]
        try:
            value = read(text)
        except (ValueError, RecursionError):
            raise ValueError(f"must be {rule}") from None
        if self.kind.startswith("size"):
            return str(value)
        return text

    def broken_limit(self, text: str) -> str:
        """Returns the limit that a number breaks; an empty text for a valid number."""
        if self.at_least is not None and not float(text) >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.above is not None and not float(text) > self.above:
            return f"must be more than {self.above:g}"
        if self.at_most is not None and not float(text) <= self.at_most:
            return f"must be at most {self.at_most:g}"
        if self.below is not None and not float(text) < self.below:
            return f"must be less than {self.below:g}"
        return ""
