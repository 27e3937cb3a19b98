"""The options of vLLM's `serve`: flags, and effects as sentences."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from config.flag_words import Flag
from config.settings import Table
from vllm_facts.facts import OPTIONS
from vllm_facts.option import NOTHING, Option
from vllm_facts.version import DESCRIBED

PREFIX = "vllm "
"""Prefix of vLLM's options among the values of flags; settings have no prefix."""


def options_of(versions: Sequence[str]) -> dict[str, Option]:
    """Returns the options of the last of `versions`, which are in order from the first one."""
    if versions[-1] not in DESCRIBED:
        from vllm_facts.history import read_history
        from vllm_facts.past_options import past_options

        return past_options(read_history(), versions[-1])
    return {
        name: option.as_of(versions)
        for name, option in OPTIONS.items()
        if option.since in ("", *versions)
    }


def options_with_effect(table: Table, options: Mapping[str, Option] = OPTIONS) -> list[str]:
    """Returns names in order of application: later effects on the same setting win."""
    special = [name for name in options if options[name].effect and name not in table.by_name]
    return special + [name for name in options if name in table.by_name]


def option_flags(name: str, option: Option, help: str = "", version: str = "") -> Iterator[Flag]:
    """Yields the flags of an option; objects are checked as in a `version`, if there is one."""
    takes: Literal["nothing", "maybe", "one", "some"] = "one"
    metavar = option.kind.partition(" ")[0].upper()
    if option.choices:
        metavar = "VALUE"
    if option.kind == "switch":
        takes = "nothing"
        metavar = ""
    if option.bare:
        takes = "maybe"
    if option.many and not option.each:
        takes = "some"
        metavar = f"{metavar} [{metavar} ...]"
    read = option.read
    if option.kind == "JSON" and version:
        read = partial(_read_object, name, option, version)
    yield Flag(
        name=PREFIX + name,
        forms=(f"--{name}", *option.also),
        takes=takes,
        repeated=option.each,
        read=read,
        metavar=metavar,
        help=help,
    )
    if option.off:
        yield Flag(name=PREFIX + name, forms=(f"--no-{name}",), takes="nothing", const="false")


def _read_object(name: str, option: Option, version: str, text: str) -> str:
    from vllm_facts.objects import read_object  # few command lines have objects

    if option.optional and text in NOTHING:
        return ""
    return read_object(name, version, text)


def names_of(name: str, options: Mapping[str, Option] = OPTIONS) -> Iterator[str]:
    """Yields all flags of an option."""
    for flag in option_flags(name, options[name]):
        yield from flag.forms


def effect(name: str, table: Table) -> str:
    """Returns the effect of an option, in a sentence; empty if it has none."""
    option = OPTIONS.get(name)
    if option is not None and option.effect:
        return option.effect
    row = table.by_name.get(name)
    if row is None:
        return ""
    return f"Setting `{row.name}`: {row.help}"
