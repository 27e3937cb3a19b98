"""Each code of the page has an example with this finding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet

from tests.workbench.check.conftest import Check
from workbench.check.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "check-codes.md"
ROW = re.compile(
    r"^\| (?P<code>[A-Z]\d{3}) \| (?P<severity>\w+) \| (?P<title>[^|]+) \|"
    r"(?: (?P<file>[\w.]+) \|)? (?P<example>.+) \|$",
    re.MULTILINE,
)

RULE = "groups: [{{rules: [{{alert: A, expr: {expression}}}]}}]"
"""A file with the expression of an example."""
TESTED_ELSEWHERE = ("W814", "W815", "U604", "U605")
"""Codes that need a missing package, a server, or a recording."""


class Example(NamedTuple):
    code: str
    severity: str
    title: str
    file: str | None
    text: str


def read_examples() -> list[Example]:
    """Returns the rows of the tables."""
    return [Example(*match.groups()) for match in ROW.finditer(PAGE.read_text("utf-8"))]


def test_page_lists_all_codes_with_their_severities() -> None:
    examples = read_examples()
    listed = {each.code: (each.severity, each.title) for each in examples}
    assert listed == {code: (rule.severity, rule.title) for code, rule in RULES.items()}
    assert len(examples) == len(RULES)


def examples_with_files() -> Iterator[ParameterSet]:
    """Yields the rows with an example; those of queries need the parser."""
    for example in read_examples():
        if example.code not in TESTED_ELSEWHERE:
            marks = [pytest.mark.check] if example.code.startswith("W") else []
            yield pytest.param(example, id=example.code, marks=marks)


@pytest.mark.parametrize("example", list(examples_with_files()))
def test_example_of_the_page_has_its_finding(
    example: Example, check: Check, tmp_path: Path
) -> None:
    words = example.text.strip("`")
    if example.code.startswith("W") and not example.file:
        flags, _, expression = words.rpartition("-- ")
        (tmp_path / "rules.yaml").write_text(RULE.format(expression=json.dumps(expression)))
        findings = check(f"{flags} rules.yaml")
    elif example.file:
        (tmp_path / example.file).write_text(words.replace("⏎", "\n"))
        findings = check(example.file)
    elif " -- " in words:
        findings = check(words)
    else:
        command = words if "vllm serve" in words else f"vllm serve {words}"
        (tmp_path / "run.sh").write_text(f"{command}\n")
        findings = check("run.sh")
    matches = [each for each in findings if each["code"] == example.code]
    assert matches, findings
    assert {each["severity"] for each in matches} == {example.severity}
    errors = {each["code"] for each in findings if each["severity"] == "error"}
    assert errors <= {example.code}, "the example has one error only"
