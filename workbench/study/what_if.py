"""Changes of a measured fleet, such as `rate x2` or `device=h200`. Start at `read_change`."""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from config.declaration import UsageError, suggestion
from config.flags import FlagTable, long_name, number_of, whole_number
from workbench.engine.costs import EngineOptions
from workbench.plan import plan_flags
from workbench.runs import simulate_flags
from workbench.runs.job_flags import SYNTHETIC_FLAGS
from workbench.runs.job_reader import read_table
from workbench.runs.job_spec import JobSpec
from workbench.runs.sweeps import MAX_VALUES, PODS

Number = TypeVar("Number", int, float)
_RELATIVE_TOKEN = re.compile(r"(?:--)?(?P<name>rate|pods)(?P<value>[x*/+-].*)", re.IGNORECASE)
"""A change such as `pods-1` or `ratex2`."""

RATE = "rate"
PREFILL_SHARE = "prefill_share"
RELATIVE = (RATE, PODS)
"""Names whose values may be relative to today's."""
STEPS = "x*/+-"
"""First characters of a value that is relative to today's: `x2`, `/2`, `+1`, `-1`, `+50%`."""
FORMS = "such as pods=3, pods-1, 'rate x2', rate+50%, rate=10 or device=h200"
MAX_CHANGE_LENGTH = 4096
MAX_FACTOR = 1000.0
SHORT_NAMES: Mapping[str, str] = {
    "prefix-caching": "enable-prefix-caching",
    "chunked-prefill": "enable-chunked-prefill",
    "expert-parallel": "enable-expert-parallel",
    "num-gpu-blocks": "num-gpu-blocks-override",
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
}
"""Other names of flags."""
SWITCH_WORDS: Mapping[str, bool] = {"on": True, "off": False, "true": True, "false": False}
COMPUTED = frozenset(
    (
        "device",
        "model_config",
        "loras",
        "max_loras",
        "max_lora_rank",
        *EngineOptions.__struct_fields__,
    )
) - {"speculative_config"}
"""Flags that need a profile that is computed from data sheets."""
EXCLUDED = frozenset(
    (
        *SYNTHETIC_FLAGS,
        "help",
        "trace",
        "study",
        "trace_block_size",
        "trace_columns",
        "conversations",
        "in_flight",
        "turnaround",
        "autoscale",
        "cold_start",
        "autoscale_every",
        "scrape_interval",
        "priorities",
        "prefill_pods",
        "decode_pods",
        "json",
        "requests",
        "plot",
        "html",
        "compare",
        "sweep",
        "goodput",
        "slo",
        "device_watts",
        "processes",
        "seed",
    )
)
"""Flags of `simulate` that do not change the fleet, or that have another form here."""


class Change(Struct, frozen=True, kw_only=True):
    """A change of a fleet or of its load."""

    text: str
    """The change as it was written."""
    engine: JobSpec = JobSpec()
    """Its written fields replace flags of the fleet."""
    names: frozenset[str] = frozenset()
    """Names of the changed fields; `rate` stands for the load."""
    rate_factor: float = 1.0
    pods: int | None = None
    """Number of pods during the whole study; None for the measured numbers."""
    prefill_share: float = 0.0
    """Share of the pods that only prefill."""

    @property
    def is_computed(self) -> bool:
        """Returns whether the engine has a profile that is computed from data sheets."""
        return bool(self.names & COMPUTED)


def join_words(texts: Sequence[str]) -> list[str]:
    """Returns changes whose two words were not quoted, such as `rate x2`, as one text each."""
    joined: list[str] = []
    for text in texts:
        if joined and joined[-1].lower() in RELATIVE and _is_relative(text):
            joined[-1] += f" {text}"
        else:
            joined.append(text)
    return joined


def read_change(text: str, measured_rate: float, *, pods: int) -> Change:
    """Reads changes that apply together, such as `pods=3 rate x1.5`.

    Args:
        text: The changes.
        measured_rate: Mean number of requests per second of the study.
        pods: Today's number of pods.

    Raises:
        UsageError: A change is not a flag of `simulate` or `plan`, or has a wrong value.
    """
    try:
        return _read(text, measured_rate, today_pods=pods)
    except UsageError as error:
        raise UsageError(f"--what-if {_shown(text)}: {error}") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _read(text: str, measured_rate: float, *, today_pods: int) -> Change:
    if len(text) > MAX_CHANGE_LENGTH:
        raise UsageError(f"must have at most {MAX_CHANGE_LENGTH} characters")
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(str(error).lower()) from None
    if not tokens:
        raise UsageError("must not be empty")
    flags: FlagTable = {}
    names: set[str] = set()
    rate_factor = 1.0
    pods = None
    prefill_share = 0.0
    for name, value in _pairs(tokens):
        if name == RATE:
            rate_factor = _rate_factor(value, measured_rate)
            names.add(RATE)
            continue
        action = _action_of(name)
        if action.dest in names:
            raise UsageError(f"{name} is specified twice")
        names.add(action.dest)
        if action.dest == PODS:
            pods = _pods(value, today_pods)
        elif action.dest == PREFILL_SHARE:
            prefill_share = _value(number_of(0, 1, zero=True), name, value)
        elif isinstance(action, BooleanOptionalAction):
            flags[long_name(action)] = _switch(name, value)
        else:
            flags[long_name(action)] = value
    return Change(
        text=" ".join(text.split()),
        engine=read_table(flags),
        names=frozenset(names),
        rate_factor=rate_factor,
        pods=pods,
        prefill_share=prefill_share,
    )


def _pairs(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Returns names with their values; a relative value may be the next word."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        relative = _RELATIVE_TOKEN.fullmatch(token)
        if relative is not None:
            pairs.append((relative["name"].lower(), relative["value"].lower()))
            continue
        name, equals, value = token.partition("=")
        name = name.removeprefix("--").replace("_", "-").lower()
        if not equals:
            follows = position < len(tokens) and _is_relative(tokens[position])
            if name not in RELATIVE or not follows:
                raise UsageError(f"{_shown(token)} must be NAME=VALUE, {FORMS}")
            value = tokens[position]
            position += 1
        pairs.append((name, value.lower() if name in RELATIVE else value))
    return pairs


def _is_relative(text: str) -> bool:
    return bool(text) and text[0].lower() in STEPS


def _rate_factor(value: str, measured_rate: float) -> float:
    """Returns the factor of the load."""
    if not _is_relative(value):
        rate = _value(number_of(0, MAX_VALUES[RATE]), RATE, value)
        factor = rate / measured_rate
    else:
        factor = _relative(RATE, value, measured_rate) / measured_rate
    if factor <= 0:
        raise UsageError(f"rate {value}: no requests remain")
    if factor > MAX_FACTOR:
        raise UsageError(f"rate: must be at most {MAX_FACTOR:g} times the measured rate")
    return factor


def _pods(value: str, today_pods: int) -> int:
    """Returns the number of pods."""
    text = value
    if _is_relative(value):
        text = f"{_relative(PODS, value, today_pods):g}"
    return _value(whole_number(1, MAX_VALUES[PODS]), PODS, text)


def _relative(name: str, value: str, today: float) -> float:
    """Returns today's number after a step, such as `x2`, `/2`, `+1`, `-1`, or `+50%`."""
    sign = value[0]
    text = value[1:]
    is_percent = sign in "+-" and text.endswith("%")
    if is_percent:
        text = text.removesuffix("%")
    number = _value(number_of(0, MAX_FACTOR), f"{name} {sign}", text.strip())
    if sign in "x*":
        return today * number
    if sign == "/":
        return today / number
    change = number
    if is_percent:
        change = today * number / 100
    return today + change if sign == "+" else today - change


def _value(read: Callable[[str], Number], name: str, value: str) -> Number:
    try:
        return read(value)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name}: {error}") from None


def _action_of(name: str) -> argparse.Action:
    """Returns the action of a flag of `simulate`, or that of the prefill share of `plan`."""
    form = f"--{SHORT_NAMES.get(name, name)}"
    if name == "prefill-share":
        return plan_flags.make_parser().actions()[form]
    actions = {
        flag: action
        for flag, action in simulate_flags.make_parser().actions().items()
        if action.dest not in EXCLUDED and flag.startswith("--") and not flag.startswith("--no-")
    }
    action = actions.get(form)
    if action is None:
        names = [RATE, "prefill-share", *SHORT_NAMES, *(flag[2:] for flag in actions)]
        raise UsageError(
            f"{_shown(name)} cannot be changed{suggestion(name, names)}; use rate, prefill-share,"
            " or a flag of simulate that describes the fleet"
        )
    return action


def _switch(name: str, value: str) -> bool:
    is_on = SWITCH_WORDS.get(value.lower())
    if is_on is None:
        raise UsageError(f"{name} must be on or off")
    return is_on
