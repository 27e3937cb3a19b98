"""Compares the options of `vllm serve` in two versions, as their `--help` describes them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"(?m)^  (-.*)((?:\n(?: {3,}.*)?)*)")
_NAME = re.compile(r"--[a-z][a-z0-9-]*")
_VALUES = re.compile(r"\{([^}]*)\}")
_DEFAULT = re.compile(r"\(default: (.*)\)$")


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
        default = _DEFAULT.search(" ".join(f"{line} {description}".split()))
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
            values = sorted(options[name].values - others[name].values)
            if values:
                yield f"values of {name} that only {version} has: {', '.join(values)}"
    for name in sorted(first.keys() & second.keys()):
        defaults = (first[name].default, second[name].default)
        if defaults[0] != defaults[1]:
            yield (
                f"default of {name}: {defaults[0]} in {versions[0]}, {defaults[1]} in {versions[1]}"
            )


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
