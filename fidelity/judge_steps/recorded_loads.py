"""Compares the steps of recorded loads with those that vLLM's scheduler made of them."""

from app.core.versions.chain import played_version
from fidelity.judge_steps.difference import first_difference
from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.our_engine import OurEngine
from fidelity.judge_steps.records import read_records


def assert_steps_equal(version: str, kind: str) -> None:
    """Fails if a load of a kind has other steps here than in a version of vLLM."""
    records = [record for record in read_records(version) if record.load.kind == kind]
    assert records
    for record in records:
        assert not record.steps.error
        steps = drive(record.load, OurEngine(record.load, played_version(version)))
        assert first_difference(record.steps, steps) is None
