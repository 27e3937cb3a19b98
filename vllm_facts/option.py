"""An option of vLLM's `serve`: its facts, as in options.json, and the values that it accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from config.declaration import closest, suggestion
from config.flag_words import FlagRule, WrongValueError
from config.sizes import COUNT_UNITS
from config.untrusted import decode_untrusted, python_json

Kind = Literal["switch", "text", "int", "float", "JSON", "text or JSON", "size", "size or auto"]
NOTHING = frozenset({"", "None"})
"""Texts for no value, in an optional option."""
_SIZE = re.compile(r"\s*(\d{1,18})(\.\d{1,9})?([kKmMgGtT])\s*", re.ASCII)
_BRACED = re.compile(r"\s*\{.*\}\s*", re.DOTALL)
"""A text that vLLM reads as JSON, where other texts are valid, too."""
WHOLE_NUMBERS = frozenset({"int", "size", "size or auto"})
"""Kinds whose values have several spellings."""
MAX_BRIEF_NAMES = 12
"""Most names that the brief text of an error lists."""
MAX_DIGITS = 300
"""Maximum length of a whole number; without a limit, a word could take seconds to convert."""


def _size(text: str) -> int:
    """Parses a whole number, or a size such as 8k (8,000), 25.6k or 8K (8,192), as vLLM does."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return _whole(text)
    number, fraction, unit = match.groups()
    if fraction is None:
        return int(number) * COUNT_UNITS[unit]
    if not unit.islower():
        raise ValueError("must end in a lowercase letter if it contains a fraction")
    return int(float(number + fraction) * COUNT_UNITS[unit])


def _size_or_auto(text: str) -> int:
    """Parses a size; -1 for the word auto."""
    return -1 if text.strip().lower() == "auto" else _size(text)


def _whole(text: str) -> int:
    """Parses a whole number as Python does, such as +3 and 1_000."""
    if len(text) > MAX_DIGITS:
        raise ValueError("must be a whole number")
    return int(text)


def _text_or_json(text: str) -> object:
    """Returns a text as it is, and decodes one in braces."""
    if _BRACED.fullmatch(text) is None:
        return text
    return decode_untrusted(text, decoder=python_json)


VALID_JSON = "valid JSON"
_SIZES = "a whole number, which may end in k, m, g, or t (8.5k, too), or in K, M, G, or T (of 1024)"
_KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    "text": (str, "text"),
    "int": (_whole, "a whole number"),
    "float": (float, "a number"),
    "JSON": (partial(decode_untrusted, decoder=python_json), VALID_JSON),
    "text or JSON": (_text_or_json, VALID_JSON),
    "size": (_size, _SIZES),
    "size or auto": (_size_or_auto, _SIZES),
}
"""Kind -> function that raises ValueError for another text, and the words of the rule."""


class Option(Struct, frozen=True, kw_only=True):
    """The facts of an option."""

    kind: Kind
    many: bool = False
    each: bool = False
    """Each flag adds one of many values."""
    bare: bool = False
    """The flag is valid without a value, too."""
    optional: bool = False
    """Texts in `NOTHING` are valid."""
    off: bool = False
    """Switch with a negative form, --no-NAME."""
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """Values that vLLM's parser knows."""
    names: tuple[str, ...] = ()
    """Values that vLLM knows when it starts; its parser takes any text."""
    listed: bool = False
    """History.json lists the `names`, too; `vllm_facts.facts` adds them."""
    names_from: str = ""
    """Option with a plugin that may register further names."""
    plugins: dict[str, str] = {}
    """Name that is not vLLM's -> public plugin of vLLM that adds it to `names`."""
    # History.json has these dates; `vllm_facts.facts` reads them.
    since: str = ""
    """First version with the option; empty if all supported versions have it."""
    later: dict[str, str] = {}
    """Value that a later version added to `choices` or `names` -> that version."""
    gone: dict[str, str] = {}
    """Value of `choices` or `names` that a later version removed -> that version."""
    folded: bool = False
    """`choices` may be in upper case, and with dashes for underscores."""
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

    def as_of(self, versions: Sequence[str]) -> Option:
        """Returns the option of the last of `versions`, which are in order from the first one."""
        if not (self.later or self.gone):
            return self
        added = [value for value, name in self.later.items() if name in versions]
        later = {value: name for value, name in self.later.items() if name not in versions}
        removed = [value for value, name in self.gone.items() if name in versions]

        def in_version(values: tuple[str, ...]) -> tuple[str, ...]:
            if not values:
                return ()
            return tuple(value for value in (*values, *added) if value not in removed)

        return replace(
            self, choices=in_version(self.choices), names=in_version(self.names), later=later
        )

    def hint(self, value: str) -> str:
        """Returns which version knows a value that this one does not know; empty for none."""
        if value not in self.later:
            return ""
        return f"; vLLM {self.later[value]} knows it (--vllm-version)"

    def name_error(self, value: str) -> WrongValueError | None:
        """Returns why `value` is not one of `names`; None for a known name."""
        name = value
        if self.any_case:
            name = value.upper()
        is_path = self.paths and "." in value
        if is_path or name in self.names or value in self.plugins:
            return None
        return unknown_name(name, self.names, also=self.hint(name))

    def read(self, text: str) -> str:
        """Returns a valid `text` unchanged; sizes as plain numbers.

        Raises:
            ValueError: The text is invalid; the message has the rule.
        """
        if self.optional and text in NOTHING:
            return ""
        if self.choices:
            if self.folded:
                text = text.lower().replace("-", "_")
            if text not in self.choices:
                raise WrongValueError(
                    rule_of(self.choices),
                    advice=self.hint(text),
                    brief=rule_of(self.choices, MAX_BRIEF_NAMES),
                )
            return text
        read, rule = _KINDS[self.kind]
        try:
            value = read(text)
        except (ValueError, RecursionError):
            flag_rule: FlagRule = "valid value"
            if rule == VALID_JSON:
                flag_rule = "valid JSON"
            raise WrongValueError(f"must be {rule}", rule=flag_rule) from None
        if self.kind in WHOLE_NUMBERS:
            return str(value)
        return text

    def broken_limit(self, text: str) -> str:
        """Returns the limit that a number breaks; an empty text for a valid number."""
        if self.at_least is not None and not float(text) >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.above is not None and not float(text) > self.above:
            return f"must be greater than {self.above:g}"
        if self.at_most is not None and not float(text) <= self.at_most:
            return f"must be at most {self.at_most:g}"
        if self.below is not None and not float(text) < self.below:
            return f"must be less than {self.below:g}"
        return ""


def rule_of(names: Sequence[str], max_names: int | None = None) -> str:
    """Returns the rule for a value with given names; it lists `max_names` names at most."""
    listed = list(names[:max_names])
    if len(listed) < len(names):
        listed.append(f"and {len(names) - len(listed)} more")
    return f"must be one of {', '.join(listed)}"


def unknown_name(
    name: str, names: tuple[str, ...], *, subject: str = "", also: str = ""
) -> WrongValueError:
    """Returns the error for an unknown `name`, with all `names`.

    `subject` begins the message, and `also` is the end of the advice.
    """
    return WrongValueError(
        f"{subject}{rule_of(names)}",
        brief=f"{subject}{rule_of(names, MAX_BRIEF_NAMES)}",
        fix=closest(name, names),
        advice=suggestion(name, names=names) + also,
    )
