"""Understudy's steps with a tier of CPU blocks equal those that vLLM's scheduler made."""

import pytest

from fidelity.judge_steps.kinds import TIER_KINDS
from fidelity.judge_steps.recorded_loads import assert_steps_equal
from vllm_facts.version import DESCRIBED

CASES = [(version, kind) for version in DESCRIBED for kind in TIER_KINDS]


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_steps_and_events_of_the_tier_equal_those_of_vllm(version: str, kind: str) -> None:
    assert_steps_equal(version, kind)
