"""Compares the options of `vllm serve` in two versions, as their `--help` describes them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"(?m)^  (-.*)((?:\n(?: {3,}.*)?)*)")
_NAME = re.compile(r"--[a-z][a-z0-9-]*")
_VALUES = re.compile(r"\{([^}]*)\}")
_DEFAULT = re.compile(r".*\(default: ?(.*)\)$")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `vllm serve`.

    Attributes:
        values: The only values that it takes; empty for other options.
    """

    values: frozenset[str]
    default: str


def options_in(help_text: str) -> dict[str, Option]:
    """Returns the options in the output of `--help` by their long names."""
    options: dict[str, Option] = {}
    for line, description in _ENTRY.findall(help_text):
        usage = _usage_in(line)
        values = _VALUES.search(usage)
        default = _DEFAULT.match(" ".join(f"{line} {description}".split()))
        option = Option(
            frozenset() if values is None else frozenset(values[1].split(",")),
            "" if default is None else default[1],
        )
        options.update(dict.fromkeys(_NAME.findall(usage), option))
    return options


def option_differences(
    first_help: str, second_help: str, versions: tuple[str, str]
) -> Iterator[str]:
    """Yields a line for options, values and defaults that only one of two versions has."""
    first = _by_affirmed_name(options_in(first_help))
    second = _by_affirmed_name(options_in(second_help))
    for version, options, others in ((versions[0], first, second), (versions[1], second, first)):
        only = sorted(options.keys() - others.keys())
        if only:
            yield f"options that only {version} has: {', '.join(only)}"
        for name in sorted(options.keys() & others.keys()):
            values = options[name].values - others[name].values
            if values and not others[name].values:
                yield f"values of {name} that only {version} lists: all"
            elif values and others[name].values:
                yield f"values of {name} that only {version} has: {', '.join(sorted(values))}"
    for name in sorted(first.keys() & second.keys()):
        old_default = _differing_part(first[name].default, second[name].default)
        new_default = _differing_part(second[name].default, first[name].default)
        if old_default != new_default:
            yield (
                f"default of {name}: {old_default} in {versions[0]}, {new_default} in {versions[1]}"
            )


def _differing_part(default: str, other: str) -> str:
    """Returns the items of a default that the other one lacks; many are fields of an object."""
    other_items = other.split(", ")
    items = [item for item in default.split(", ") if item not in other_items]
    return ", ".join(items) or "less"


def _usage_in(line: str) -> str:
    """Returns names and values: the beginning of an entry's first line, up to the description."""
    return re.split(r" {2,}", line, maxsplit=1)[0]


def _by_affirmed_name(options: Mapping[str, Option]) -> dict[str, Option]:
    """Returns options by their names without negations, which a release may spell differently."""
    return {_affirmed(name): option for name, option in options.items()}


def _affirmed(option: str) -> str:
    name = option.removeprefix("--").removeprefix("no-")
    for prefix in ("enable-", "disable-"):
        name = name.removeprefix(prefix)
    return f"--{name}"
