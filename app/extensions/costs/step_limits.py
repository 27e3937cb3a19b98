"""Tokens of a step of a server, by its options. Start reading at `step_limits`."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from app.extensions.costs.shapes import CostShape
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.accelerator import DeviceMemory
from vllm_facts.option_numbers import number_of, positive_number
from vllm_facts.step_defaults import StepDefaults

TEXT_ONLY = ("language-model-only", "skip-mm-profiling")
"""Options without a profiling run of encoders."""


class StepLimits(NamedTuple):
    """The most tokens of a step, and of all steps that run at a time."""

    tokens: int
    in_flight: int


def step_limits(
    values: FlagValues, shape: CostShape, device: DeviceMemory, defaults: StepDefaults
) -> StepLimits:
    """Returns the limits of a server with these options, in a version with these `defaults`."""
    reads_whole_items = shape.reads_whole_items and not is_text_only(values)
    default = defaults.tokens(device, reads_whole_items=reads_whole_items)
    tokens = positive_number(values, "max-num-batched-tokens", default)
    steps = 1
    if defaults.keeps_steps_in_flight:
        steps = number_of(values, "pipeline-parallel-size") or 1
        if values.get("async-scheduling") != "false":
            steps += 1
    return StepLimits(tokens=tokens, in_flight=tokens * steps)


def is_text_only(values: FlagValues) -> bool:
    """Returns whether the options leave out the profiling run of encoders."""
    if any(values.get(name) == "true" for name in TEXT_ONLY):
        return True
    text = str(values.get("limit-mm-per-prompt") or "")
    limits: object = dict(re.findall(r"(\w+)=(\d+)", text))
    with suppress(UntrustedDataError):
        limits = limits or decode_untrusted(text, decoder=python_json)
    if not isinstance(limits, dict):
        return False
    return all(str(limits.get(kind)) == "0" for kind in ("image", "video"))
