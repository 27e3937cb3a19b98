"""Understudy's steps with cache groups equal those that vLLM's scheduler made."""

import pytest

from config.vllm.version import DESCRIBED
from tests.judge_steps.kinds import GROUP_KINDS
from tests.judge_steps.recorded_loads import assert_steps_equal

CASES = [(version, kind) for version in DESCRIBED for kind in GROUP_KINDS]


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_steps_and_block_tables_equal_those_of_vllm(version: str, kind: str) -> None:
    assert_steps_equal(version, kind)
