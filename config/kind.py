"""A kind of values: its name, its type, and the conversion of texts to msgspec's input."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from config.untrusted import UntrustedDataError, decode_untrusted, python_json

SWITCH_WORDS = {"yes": True, "on": True, "no": False, "off": False}
"""Words of a switch, in addition to msgspec's: true, false, 1 and 0."""


def unchanged(raw: object) -> object:
    """Returns `raw`."""
    return raw


class Kind(Struct, frozen=True):
    """A kind of values: its name, its type, and the conversion of texts."""

    name: str
    wanted: str
    """Completes the sentence "the value ..." for a value of another kind."""
    type: Any
    prepare: Callable[[object], object] = unchanged
    """Converts a text, or a value of YAML or JSON, to msgspec's input.

    Raises ValueError with the rule.
    """

    def read(self, raw: object) -> object:
        """Converts `raw` to a value.

        Raises:
            ValueError: `raw` is of another kind; the message has the rule.
        """
        return checked(self.prepare(raw), self.type, self.wanted, strict=False)


def checked(value: object, type: Any, rule: str, strict: bool = True) -> object:
    """Converts `value` to `type` by msgspec.

    Raises:
        ValueError: `value` is invalid; the message is `rule`.
    """
    try:
        return msgspec.convert(value, type, strict=strict)
    except msgspec.ValidationError:
        raise ValueError(rule) from None


def lower(raw: object) -> object:
    """Returns a text in lower case, without surrounding spaces; any other value unchanged."""
    if isinstance(raw, str):
        return raw.strip().lower()
    return raw


def to_number(raw: object) -> object:
    """Returns the number in a text; any other value unchanged."""
    if isinstance(raw, str):
        with suppress(ValueError):
            return float(raw)
    return raw


def to_switch(raw: object) -> object:
    """Returns the value of a word of a switch; any other value unchanged."""
    word = lower(raw)
    if isinstance(word, str):
        return SWITCH_WORDS.get(word, word)
    return raw


def to_list(raw: object) -> object:
    """Returns the items of a text: a JSON array, or items separated by commas.

    Raises:
        ValueError: The text begins as an array, but is not JSON.
    """
    if not isinstance(raw, str):
        return raw
    if not raw.lstrip().startswith("["):
        return split_items(raw)
    try:
        return decode_untrusted(raw, decoder=python_json)
    except UntrustedDataError:
        raise ValueError("must be a JSON array of strings or a comma-separated list") from None


def to_texts(raw: object) -> object:
    """Converts texts and objects to texts.

    `raw` is a list, a JSON array, a JSON object, or items split_items by commas.
    """
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        return [raw]
    items = to_list(raw)
    if not isinstance(items, list | tuple):
        items = [items]
    return [to_json(item) if isinstance(item, dict) else item for item in items]


def to_json(raw: object) -> str:
    """Returns JSON text: of a text that is JSON, or of a value of YAML.

    Raises:
        ValueError: The text is not JSON, or the value has no form in JSON.
    """
    try:
        value = decode_untrusted(raw, decoder=python_json) if isinstance(raw, str) else raw
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("must be valid JSON") from None


def split_items(text: str) -> list[str]:
    """Returns the items of a text with commas; none for a blank text."""
    if not text.strip():
        return []
    return [item.strip() for item in text.split(",")]
