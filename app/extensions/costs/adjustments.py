"""Corrections of the sum over kernels, by engine version, device and format of the weights.

`python research/fit_versions.py FOLDER` fits them to measured servers, drawn toward no correction,
and writes `adjustments.json`. What no server showed is not corrected.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec.structs import replace

from app.extensions.costs.adjustment import Adjustment
from app.extensions.costs.version_rules import is_asynchronous
from vllm_facts.devices import GENERATIONS
from vllm_facts.version_order import nearest_minor

TABLE = Path(__file__).with_name("adjustments.json")
NO_ADJUSTMENT = Adjustment(device="", weights="", has_experts=False, version=0)


@cache
def shipped_adjustments() -> Sequence[Adjustment]:
    """Returns the corrections that are shipped."""
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Adjustment])


def find_adjustment(device: str, weights: str, *, has_experts: bool, version: int) -> Adjustment:
    """Returns the correction of the nearest version with the same scheduler.

    Without one, a model with experts has that of another device of the generation, whose constants
    of experts are the same. It is not of a later version, whose kernels may be faster. The time
    before the scheduler depends on the host, not on the model: it is the mean of the device's
    corrections, and launches of prompts are not corrected.
    """
    same_scheduler = [
        adjustment
        for adjustment in shipped_adjustments()
        if is_asynchronous(adjustment.version) == is_asynchronous(version)
    ]
    candidates = [
        adjustment
        for adjustment in same_scheduler
        if adjustment.weights == weights and adjustment.has_experts == has_experts
    ]
    own = [adjustment for adjustment in candidates if adjustment.device == device]
    if own:
        return _nearest(own, version)
    others = []
    generation = GENERATIONS.get(device)
    if has_experts and generation is not None:
        others = [
            adjustment
            for adjustment in candidates
            if GENERATIONS.get(adjustment.device) == generation
        ]
    return replace(
        _nearest(others, version, is_earlier=True),
        prompt_launch_us=None,
        front_ms=host_front_ms(device, version),
    )


def host_front_ms(device: str, version: int) -> float:
    """Returns the mean time before the scheduler of a device's corrections; 0 without any.

    It depends on the host, not on the model or its kernels.
    """
    fronts_ms = [
        adjustment.front_ms
        for adjustment in shipped_adjustments()
        if adjustment.device == device
        and is_asynchronous(adjustment.version) == is_asynchronous(version)
    ]
    return fmean(fronts_ms) if fronts_ms else 0.0


def _nearest(
    candidates: Sequence[Adjustment], version: int, *, is_earlier: bool = False
) -> Adjustment:
    """Returns the first candidate of the nearest version, or of the nearest one up to `version`."""
    versions = [candidate.version for candidate in candidates]
    nearest = nearest_minor(version, versions, is_earlier=is_earlier)
    matching = (candidate for candidate in candidates if candidate.version == nearest)
    return next(matching, NO_ADJUSTMENT)
