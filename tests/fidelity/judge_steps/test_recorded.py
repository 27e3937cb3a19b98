"""Understudy's steps of small loads equal those that vLLM's scheduler made of them."""

import pytest

from fidelity.judge_steps.kinds import GROUP_KINDS, KINDS, TIER_KINDS
from fidelity.judge_steps.recorded_loads import assert_steps_equal
from vllm_facts.version import DESCRIBED

CORE_KINDS = [kind for kind in KINDS if kind not in (*GROUP_KINDS, *TIER_KINDS)]
CASES = [(version, kind) for version in DESCRIBED for kind in CORE_KINDS]


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_steps_equal_those_of_vllm(version: str, kind: str) -> None:
    assert_steps_equal(version, kind)
