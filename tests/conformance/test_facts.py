"""Every recorded exchange again:

the same status, keys in the same order, kinds, words and token counts.
"""

import json
from pathlib import Path

import pytest

from research.derive_facts import derive
from tests.conformance.recording import CASES

FACTS = json.loads(Path(__file__).with_name("facts.json").read_text())


@pytest.mark.shared
def test_facts_file_equals_the_facts_derived_from_the_vllm_recording() -> None:
    derived = derive(CASES.read_text().splitlines())
    assert derived == FACTS, (
        "python -m research.derive_facts RECORDING.jsonl > tests/conformance/facts.json"
    )
