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


@pytest.mark.parametrize("multiple_first", [True, False])
def test_parts_of_a_conjunction_keep_the_multiple_of_either(multiple_first: bool) -> None:
    parts = [{"type": "integer", "multipleOf": 2, "minimum": 3, "maximum": 3}, {"type": "integer"}]
    verdict = verdict_on({"allOf": parts if multiple_first else parts[::-1]})
    assert verdict.refusal.endswith("range [3, 3] does not contain a multiple of 2")


def test_reference_to_a_missing_name_is_refused_with_the_name() -> None:
    other_backend = {"patternProperties": {"^a": {"type": "string"}}}
    verdict = verdict_on({**other_backend, "properties": {"b": {"$ref": "#/missing"}}})
    assert verdict.refusal == "Invalid reference path: missing"
