"""A rule of the scheduler that is broken on purpose is found by the recorded loads."""

import pytest

from app.core.versions.chain import played_version
from fidelity.judge_steps.broken_rules import BREAKS, differing_loads
from fidelity.judge_steps.kinds import GROUP_KINDS, TIER_KINDS
from fidelity.judge_steps.records import read_records

VERSION = "0.32"


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_found(name: str) -> None:
    records = [
        (record.load, record.steps)
        for record in read_records(VERSION)
        if record.load.kind not in (*GROUP_KINDS, *TIER_KINDS)
    ]
    assert differing_loads(BREAKS[name], played_version(VERSION), records)
