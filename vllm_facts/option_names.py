"""The dates of options and keys: the part of the history that the described versions need.

`vllm_facts.history` has all tables.
"""

import msgspec
from msgspec import Struct

from vllm_facts.names import FILE, Periods, holds
from vllm_facts.version import DESCRIBED

SPECULATION = "--speculative-config."
"""Beginning of the keys of the speculative configuration."""


class DatedName(Struct):
    """An option or a parser, with the values that the type of an option lists."""

    periods: Periods
    choices: dict[str, Periods] = {}


class OptionNames(Struct):
    """The part of the tables that dates the options of the described versions."""

    options: dict[str, DatedName]
    tool_parsers: dict[str, DatedName]
    reasoning_parsers: dict[str, DatedName]
    quantizations: dict[str, DatedName]

    def values_of(self, name: str) -> dict[str, Periods]:
        """Returns the values of an option such as tool-call-parser."""
        tables = {
            "tool-call-parser": self.tool_parsers,
            "reasoning-parser": self.reasoning_parsers,
            "quantization": self.quantizations,
        }
        if name in tables:
            return {value: dated.periods for value, dated in tables[name].items()}
        option = self.options.get(f"--{name}")
        if option is None:
            return {}
        return {value: periods or option.periods for value, periods in option.choices.items()}

    def values_in(self, name: str, version: str) -> list[str]:
        """Returns the values of an option in a version, in alphabetical order."""
        return [value for value, periods in self.values_of(name).items() if holds(periods, version)]


class Keys(Struct):
    """The part of the tables with the keys of options whose values are JSON."""

    keys: dict[str, DatedName]


def read_option_names() -> OptionNames:
    """Reads a part of the tables, which takes half a millisecond."""
    return msgspec.json.decode(FILE.read_bytes(), type=OptionNames)


def read_key_names() -> dict[str, str]:
    """Reads the keys of JSON options, as in --a.b, each with the first version that has the key."""
    keys = msgspec.json.decode(FILE.read_bytes(), type=Keys).keys
    return {name: key.periods[0][0] for name, key in keys.items()}


def read_shorthands(version: str) -> dict[str, list[str]]:
    """Reads the names that a version accepts in place of a JSON object, by keys such as --a.b."""
    keys = msgspec.json.decode(FILE.read_bytes(), type=Keys).keys
    shorthands: dict[str, list[str]] = {}
    for key, dated in keys.items():
        names = [
            name
            for name, periods in dated.choices.items()
            if holds(periods or dated.periods, version)
        ]
        if names:
            shorthands[key] = names
    return shorthands


def later_fields() -> dict[str, str]:
    """Returns the fields of the speculative configuration that a described version added.

    Each has that version, which is not the first described one.
    """
    return {
        name.removeprefix(SPECULATION): first
        for name, first in read_key_names().items()
        if name.startswith(SPECULATION) and first in DESCRIBED[1:]
    }
