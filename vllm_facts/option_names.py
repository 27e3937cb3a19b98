"""The dates of options and keys: the part of the history that the described versions need.

`vllm_facts.history` has all tables.
"""

import msgspec
from msgspec import Struct

from vllm_facts.names import FILE, Periods
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

    def values_of(self, name: str) -> dict[str, Periods]:
        """Returns the values of an option such as tool-call-parser."""
        parsers = {
            "tool-call-parser": self.tool_parsers,
            "reasoning-parser": self.reasoning_parsers,
        }
        if name in parsers:
            return {parser: dated.periods for parser, dated in parsers[name].items()}
        option = self.options.get(f"--{name}")
        if option is None:
            return {}
        return option.choices


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


def later_fields() -> dict[str, str]:
    """Returns the fields of the speculative configuration that a described version added.

    Each has that version, which is not the first described one.
    """
    return {
        name.removeprefix(SPECULATION): first
        for name, first in read_key_names().items()
        if name.startswith(SPECULATION) and first in DESCRIBED[1:]
    }
