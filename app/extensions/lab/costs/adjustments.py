"""Corrections of the sum over kernels, by engine version, device and format of the weights.

`python research/fit_versions.py FOLDER` fits them to measured servers, drawn toward no correction,
and writes `adjustments.json`. What no server showed is not corrected.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from app.extensions.lab.costs.adjustment import Adjustment
from app.extensions.lab.costs.error_model import GENERATIONS

TABLE = Path(__file__).with_name("adjustments.json")
LAST_SYNCHRONOUS = 13
"""Last version 0.N of vLLM whose scheduler waits for each step."""
NO_ADJUSTMENT = Adjustment(device="", weights="", has_experts=False, version=0)


@cache
def shipped_adjustments() -> Sequence[Adjustment]:
    """Returns the corrections that are shipped."""
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Adjustment])


def find_adjustment(device: str, weights: str, *, has_experts: bool, version: int) -> Adjustment:
    """Returns the correction of the nearest version with the same scheduler.

    It is that of the device, or of another device of its generation.
    """
    candidates = [
        adjustment
        for adjustment in shipped_adjustments()
        if adjustment.weights == weights
        and adjustment.has_experts == has_experts
        and (adjustment.version <= LAST_SYNCHRONOUS) == (version <= LAST_SYNCHRONOUS)
    ]
    same_device = [candidate for candidate in candidates if candidate.device == device]
    if not same_device:
        generation = GENERATIONS.get(device, device)
        same_device = [
            candidate
            for candidate in candidates
            if GENERATIONS.get(candidate.device) == generation
        ]
    candidates = same_device
    if not candidates:
        return NO_ADJUSTMENT
    distances = [
        (abs(candidate.version - version), index) for index, candidate in enumerate(candidates)
    ]
    return candidates[min(distances)[1]]
