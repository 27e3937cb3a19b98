"""Understudy's steps with cache groups equal those that vLLM's scheduler made."""

import pytest

from app.core.protocol.versions import VERSIONS
from tests.judge_steps.difference import first_difference
from tests.judge_steps.driving import drive
from tests.judge_steps.kinds import GROUP_KINDS
from tests.judge_steps.our_engine import OurEngine, rules_of
from tests.judge_steps.records import read_records

CASES = [(version, kind) for version in VERSIONS for kind in GROUP_KINDS]


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_steps_and_block_tables_equal_those_of_vllm(version: str, kind: str) -> None:
    records = [record for record in read_records(version) if record.load.kind == kind]
    assert records
    for record in records:
        assert not record.steps.error
        steps = drive(record.load, OurEngine(record.load, rules_of(version)))
        assert first_difference(record.steps, steps) is None
