"""Fault rules as they are written: all fields typed, and an error that names the rule and the field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving.faults.fault import PATHS
from config import ConfigError
from config.fault_rules import (
    ACTIONS,
    DisconnectRule,
    ErrorRule,
    FaultRule,
    StallRule,
    parse_fault,
    parse_fault_rules,
)
from config.loader import load
from config.sections.api import FAILURE_TYPES


def test_a_list_of_objects_becomes_rules() -> None:
    rules = parse_fault_rules('[{"action": "disconnect", "after": 3}, {"action": "error", "status": 503}]')
    assert rules == (DisconnectRule(after=3), ErrorRule(status=503))


def test_no_rules_are_rules_too_and_an_action_needs_nothing_but_its_name() -> None:
    assert [parse_fault_rules(text) for text in (None, "", "[]")] == [()] * 3
    assert [parse_fault(action).action for action in ACTIONS] == list(ACTIONS)


@pytest.mark.parametrize(
    ("rule", "flaw"),
    [
        ({"action": "disconect"}, "did you mean disconnect?"),
        ({"action": None}, "there are error, rate-limit"),
        ({}, "there are error, rate-limit"),
        ("error", "a rule is an object"),
        ({"action": "error", "stauts": 500}, "unknown field `stauts`"),
        ({"action": "error", "status": 200}, "`int` >= 400 - at `$.status`"),
        ({"action": "error", "status": 600}, "`int` <= 599 - at `$.status`"),
        ({"action": "error", "retry_after": 1.5}, "at `$.retry_after`"),
        ({"action": "disconnect", "after": -1}, "at `$.after`"),
        ({"action": "malformed-chunk", "chunk": 0}, "at `$.chunk`"),
        ({"action": "stall", "seconds": 0}, "at `$.seconds`"),
        ({"action": "stall", "seconds": float("nan")}, "at `$.seconds`"),
        ({"action": "stall", "seconds": float("inf")}, "at `$.seconds`"),
        ({"action": "empty", "probability": 1.1}, "at `$.probability`"),
        ({"action": "rate-limit", "rate": 1e-300}, "at `$.rate`"),
        ({"action": "rate-limit", "token_rate": 1e-7}, "at `$.token_rate`"),
        ({"action": "empty", "nth": 0}, "at `$.nth`"),
        ({"action": "empty", "api": "chats"}, "at `$.api`"),
        ({"action": "empty", "name": "\ud800"}, "half a character"),
    ],
)
def test_a_wrong_rule_stops_the_start_with_its_number_and_flaw(rule: object, flaw: str) -> None:
    text = json.dumps([{"action": "empty"}, rule])
    with pytest.raises(ConfigError) as refused:
        load(["--fault-rules", text], {})
    line = str(refused.value)
    assert line.startswith("setting fault-rules: ") and "(flag --fault-rules) is wrong: rule 2: " in line
    assert flaw in line


def test_in_a_yaml_file_rules_are_written_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "fault-rules:\n- action: disconnect\n  after: 3\n  every: 2\n- {action: error, status: 503}\n"
    )
    settings = load(["--config", str(path)], {})
    assert parse_fault_rules(settings.failures.fault_rules) == (
        DisconnectRule(after=3, every=2),
        ErrorRule(status=503),
    )
    assert settings.dump()["fault-rules"][0] == {"action": "disconnect", "after": 3, "every": 2}


def test_a_header_may_be_short_or_json() -> None:
    assert parse_fault("disconnect; after=3") == DisconnectRule(after=3)
    assert parse_fault(' {"action": "disconnect", "after": 3}') == DisconnectRule(after=3)
    assert parse_fault("error;status=429;retry_after=2;times=1;message=a = b;") == ErrorRule(
        status=429, retry_after=2, times=1, message="a = b"
    )
    assert parse_fault("stall; seconds=0.5") == StallRule(seconds=0.5)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("", "no action ''"),
        ("after=3", "no action 'after=3'"),
        ("disconnect; after", "is not a field and its value"),
        ("disconnect; after=1; after=2", "each once"),
        ("disconnect; after=soon", "at `$.after`"),
        ("error; headers=a", "at `$.headers`"),
        ("x" * 8000, "no action 'xxx"),
        ("{", "not JSON"),
        ('{"action": "empty"} x', "not JSON"),
        ('{"a":' * 9000, "not JSON"),
    ],
)
def test_a_wrong_header_says_what_is_wrong(text: str, flaw: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_fault(text)
    assert flaw in str(refused.value) and len(str(refused.value)) < 300


@given(
    st.text(max_size=60) | st.sampled_from(list(ACTIONS)).flatmap(lambda a: st.just(a + ";x=") | st.just(a))
)
def test_whatever_a_header_says_it_is_a_rule_or_a_value_error(text: str) -> None:
    try:
        assert parse_fault(text).action in ACTIONS
    except ValueError as error:
        assert str(error)


PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text("utf-8")


def test_the_yaml_file_of_the_page_is_a_settings_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "faults.yaml"
    path.write_text(example)
    rules = parse_fault_rules(load(["--config", str(path)], {}).failures.fault_rules)
    assert [rule.action for rule in rules] == ["disconnect", "error", "stall", "rate-limit"]


def test_every_header_of_the_page_is_a_rule() -> None:
    headers = re.findall(r"-H 'X-Fault: (.+)'", PAGE)
    assert len(headers) >= 5 and all(parse_fault(header).action in ACTIONS for header in headers)


def test_every_action_matcher_type_and_family_is_described() -> None:
    fields = {name for kind in (*ACTIONS.values(), FaultRule) for name in kind.__struct_fields__}
    for word in (*ACTIONS, *FAILURE_TYPES, *PATHS, *fields):
        assert f"`{word}`" in PAGE, word
