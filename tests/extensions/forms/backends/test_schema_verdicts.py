"""Schemas get the status of a real vLLM 0.32, whichever backend it chooses (`fidelity.judge_schemas`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.extensions.forms.schema.backends.verdicts import verdict_on

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "schemas.jsonl").read_text().splitlines()
]
"""Random schemas with the status and the backend of vLLM."""


def status_of(schema: Any) -> int:
    verdict = verdict_on(schema)
    if verdict.refusal:
        return 400
    return 500 if verdict.fails else 200


@pytest.mark.parametrize("backend", ["xgrammar", "guidance", "outlines"])
def test_random_schemas_have_the_status_of_the_backend_that_vllm_chooses(backend: str) -> None:
    cases = [case for case in CASES if case["backend"] == backend]
    assert len(cases) > 50
    differences = []
    for case in cases:
        status = status_of(case["schema"])
        if status != case["status"]:
            differences.append((case["schema"], case["status"], status))
    assert differences == []
