"""Tokens of a step in a version of vLLM, as its source decides. Start reading at `step_limits`."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from app.extensions.costs.default_steps import default_step_tokens
from app.extensions.costs.shapes import CostShape
from app.extensions.costs.version_rules import StepDefaults
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.owned_device import OwnedDevice
from workbench.check.combinations import number_of, positive_number

WHOLE_ITEM_TOKENS = 32 * (70 + 2 + 6)
"""Tokens of a video in Gemma 4: frames, each with its soft tokens, two marks, and a time."""
WHOLE_ITEM_MODELS = ("Gemma4ForConditionalGeneration",)
TEXT_ONLY = ("language-model-only", "skip-mm-profiling")
"""Options without a profiling run of encoders."""


class StepLimits(NamedTuple):
    """The most tokens of a step, and of all steps that run at a time."""

    tokens: int
    in_flight: int


def step_limits(
    values: FlagValues, shape: CostShape, device: OwnedDevice, defaults: StepDefaults
) -> StepLimits:
    """Returns the limits of a server with these options, in a version with these `defaults`."""
    default = default_step_tokens(device, defaults)
    if defaults.holds_whole_items and reads_whole_items(shape) and not is_text_only(values):
        default = max(default, WHOLE_ITEM_TOKENS)
    tokens = positive_number(values, "max-num-batched-tokens", default)
    steps = 1
    if defaults.keeps_steps_in_flight:
        steps = number_of(values, "pipeline-parallel-size") or 1
        if values.get("async-scheduling") != "false":
            steps += 1
    return StepLimits(tokens=tokens, in_flight=tokens * steps)


def reads_whole_items(shape: CostShape) -> bool:
    """Returns whether images and videos must be in one step.

    The larger models of Gemma 4 read them in both directions. The smaller ones, whose last layers
    share a cache, do not.
    """
    is_gemma = shape.architectures[0] in WHOLE_ITEM_MODELS
    return is_gemma and not shape.num_kv_shared_layers


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
