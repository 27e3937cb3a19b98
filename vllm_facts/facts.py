"""The facts of all options of vLLM's `serve`, as options.json has them.

History.json has the versions that added or removed an option or one of its values.
"""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from vllm_facts.option import Option
from vllm_facts.option_names import OptionNames, read_option_names
from vllm_facts.version import DESCRIBED

FILE = Path(__file__).with_name("options.json")


def _dated(name: str, option: Option, names: OptionNames) -> Option:
    """Returns the option with the described versions that changed it after the first one."""
    if option.listed:
        known_names = {*option.names, *names.values_in(name, DESCRIBED[0])}
        option = replace(option, names=tuple(sorted(known_names)))
    since = option.since
    later: dict[str, str] = {}
    gone: dict[str, str] = {}
    dated_option = names.options.get(f"--{name}")
    if dated_option is not None and dated_option.periods[0][0] in DESCRIBED[1:]:
        since = dated_option.periods[0][0]
    if option.choices or option.names:
        for value, periods in names.values_of(name).items():
            for first, end in periods:
                if first in DESCRIBED[1:]:
                    later[value] = first
                if end in DESCRIBED[1:]:
                    gone[value] = end
    if (since, later, gone) == (option.since, {}, {}):
        return option
    return replace(option, since=since, later=later | option.later, gone=gone | option.gone)


def _read_groups() -> dict[str, dict[str, Option]]:
    names = read_option_names()
    groups = msgspec.json.decode(FILE.read_bytes(), type=dict[str, dict[str, Option]])
    return {
        group: {name: _dated(name, option, names) for name, option in options.items()}
        for group, options in groups.items()
    }


GROUPS = _read_groups()
OPTIONS = {name: option for group in GROUPS.values() for name, option in group.items()}
"""Options of all supported versions."""
