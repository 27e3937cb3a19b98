"""An engine whose requests share steps, on a virtual clock."""

from __future__ import annotations

from typing import Any

from config.profile import read_profile
from config.settings import StepSettings
from tests.engine.harness import START_S, Harness

PROFILE = read_profile("qwen3-14b-h100")


def stepped(**fields: Any) -> Harness:
    fields = {"slots": 3, "profile": PROFILE, **fields}
    return Harness(sections={"steps": StepSettings(timing="steps")}, **fields)


def moments(harness: Harness, request_id: str) -> list[float]:
    return [event.at_s - START_S for event in harness.tokens(request_id) for _ in event.ids]
