"""Regexes and grammars get the verdicts of vLLM's backends (`scripts/form_backends.py`)."""

import json
from pathlib import Path

import pytest

from app.core.engine.constraints import SchemaError
from app.extensions.forms.constraints import FormConstraints
from app.extensions.forms.schema.request_patterns import compile_regex

CASES = json.loads((Path(__file__).parent / "verdicts.json").read_text())
KNOWN_DIFFERENCES = json.loads((Path(__file__).parent / "differences.json").read_text())
"""Sources with another verdict here, by kind."""


def is_accepted(kind: str, source: str) -> bool:
    try:
        if kind == "regex":
            compile_regex(source)
        else:
            FormConstraints().compile_grammar(source)
    except SchemaError:
        return False
    return True


@pytest.mark.parametrize("kind", ["regex", "lark", "gbnf"])
def test_grammar_verdicts_differ_from_real_backends_only_in_known_cases(
    kind: str,
) -> None:
    differences = []
    for case in CASES:
        if case["kind"] == kind and is_accepted(kind, case["source"]) is not case["accepted"]:
            differences.append(case["source"])
    assert differences == KNOWN_DIFFERENCES[kind]
