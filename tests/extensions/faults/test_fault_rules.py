"""Fault rules as they are written, which requests they strike, and what they then decide."""

import json
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.fault import RequestFacts
from app.core.settings import load
from app.extensions.faults.fault import PATHS, FaultScript
from app.extensions.faults.fault_rules import (
    DisconnectRule,
    ErrorRule,
    FaultRule,
    StallRule,
    parse_fault,
    parse_fault_rules,
    rule_kinds,
)
from app.extensions.faults.settings import FAILURE_TYPES, FailureSettings
from config import ConfigError
from tests.extensions.faults.client import CHAT, TEXT, asking


@pytest.mark.parametrize(
    ("rule", "flaw"),
    [
        ({"action": "disconect"}, "did you mean disconnect?"),
        ({}, "actions are error, rate-limit"),
        ("error", "a rule must be an object"),
        ({"action": "error", "stauts": 500}, "unknown field `stauts`"),
        ({"action": "error", "status": 200}, "`int` >= 400 - at `$.status`"),
        ({"action": "stall", "seconds": float("nan")}, "at `$.seconds`"),
        ({"action": "rate-limit", "rate": 1e-300}, "at `$.rate`"),
        ({"action": "empty", "api": "chats"}, "at `$.api`"),
        ({"action": "empty", "name": "\ud800"}, "an unpaired surrogate"),
    ],
)
def test_error_for_an_invalid_fault_rule_names_the_rule_number(rule: object, flaw: str) -> None:
    text = json.dumps([{"action": "empty"}, rule])
    with pytest.raises(ConfigError) as refused:
        load(["--fault-rules", text], {})
    line = str(refused.value)
    assert (
        line.startswith("setting fault-rules: ")
        and "(flag --fault-rules) is wrong: rule 2: " in line
    )
    assert flaw in line


def test_fault_rules_in_a_settings_file_may_be_written_as_yaml_objects(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "fault-rules:\n- action: disconnect\n  after: 3\n  every: 2\n- {action: error, status: 503}\n"
    )
    loaded = load(["--config", str(path)], {})
    assert parse_fault_rules(loaded.section(FailureSettings).fault_rules) == (
        DisconnectRule(after=3, every=2),
        ErrorRule(status=503),
    )
    assert loaded.dump()["fault-rules"][0] == {"action": "disconnect", "after": 3, "every": 2}


def test_fault_header_accepts_the_short_form_and_json() -> None:
    assert parse_fault("disconnect; after=3") == DisconnectRule(after=3)
    assert parse_fault(' {"action": "disconnect", "after": 3}') == DisconnectRule(after=3)
    assert parse_fault("error;status=429;retry_after=2;times=1;message=a = b;") == ErrorRule(
        status=429, retry_after=2, times=1, message="a = b"
    )
    assert parse_fault("stall; seconds=0.5") == StallRule(seconds=0.5)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("after=3", "unknown action 'after=3'"),
        ("disconnect; after", "must have the form FIELD=VALUE"),
        ("disconnect; after=1; after=2", "no field may be repeated"),
        ("x" * 8000, "unknown action 'xxx"),
        ("{", "not JSON"),
        ('{"a":' * 9000, "not JSON"),
    ],
)
def test_error_for_an_invalid_fault_header_states_the_problem(text: str, flaw: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_fault(text)
    assert flaw in str(refused.value) and len(str(refused.value)) < 300


@settings(max_examples=25)
@given(
    st.text(max_size=60)
    | st.sampled_from(list(rule_kinds())).flatmap(lambda a: st.just(a + ";x=") | st.just(a))
)
def test_fault_header_parser_raises_only_value_errors_for_any_text(text: str) -> None:
    try:
        assert parse_fault(text).action in rule_kinds()
    except ValueError as error:
        assert str(error)


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "faults.md").read_text("utf-8")
REFERENCE = (DOCS / "reference-scripts.md").read_text("utf-8")


def test_documented_yaml_file_is_a_valid_settings_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "faults.yaml"
    path.write_text(example)
    rules = parse_fault_rules(
        load(["--config", str(path)], {}).section(FailureSettings).fault_rules
    )
    actions = ["disconnect", "error", "error", "stall", "rate-limit"]
    assert [rule.action for rule in rules] == actions


def test_every_documented_fault_header_is_valid() -> None:
    headers = re.findall(r"-H 'X-Fault: (.+)'", PAGE)
    assert len(headers) >= 3 and all(
        parse_fault(header).action in rule_kinds() for header in headers
    )


def test_all_actions_and_fields_of_fault_rules_are_documented() -> None:
    fields = {
        name for kind in (*rule_kinds().values(), FaultRule) for name in kind.__struct_fields__
    }
    for word in (*rule_kinds(), *FAILURE_TYPES, *PATHS, *fields):
        assert f"`{word}`" in PAGE + REFERENCE, word


RNG = Random(7)


def script(*rules: dict[str, Any]) -> FaultScript:
    return FaultScript(parse_fault_rules(json.dumps(rules)), 0.0)


def struck(fault_script: FaultScript, *requests: RequestFacts, now_s: float = 0.0) -> list[bool]:
    return [
        bool((fault := fault_script.fault_for(request, RNG, now_s)) and fault.name)
        for request in requests
    ]


@pytest.mark.parametrize(
    ("matcher", "hit", "miss"),
    [
        ({"model": "m"}, asking(), asking(model=None)),
        ({"api": "completions"}, asking(TEXT), asking(CHAT)),
        ({"path": "/v1/chat/*"}, asking(CHAT), asking(TEXT)),
        ({"headers": {"X-Team": "a", "X-B": None}}, asking(X_Team="a", X_B=""), asking(X_Team="a")),
        ({"model": "m", "path": TEXT}, asking(TEXT), asking(CHAT)),
    ],
)
def test_fault_applies_only_to_requests_that_its_matcher_matches(
    matcher: dict[str, Any], hit: RequestFacts, miss: RequestFacts
) -> None:
    assert struck(script({"action": "empty", **matcher}), miss, hit) == [False, True]


@pytest.mark.parametrize("pattern", ["*a", "[!", "*?"])
def test_hostile_path_pattern_is_matched_quickly(pattern: str) -> None:
    slow = script({"action": "empty", "path": (pattern * 256)[:256]})
    begun_s = time.process_time()
    struck(slow, asking("/v1/chat/completions" * 2))
    assert time.process_time() - begun_s < 0.02


def test_nth_and_every_conditions_count_only_matching_requests() -> None:
    fits = asking()
    other = asking(model="other")
    nth = script({"action": "empty", "model": "m", "nth": 2})
    assert struck(nth, fits, other, other, fits, fits) == [False, False, False, True, False]
    every = script({"action": "empty", "model": "m", "every": 2})
    assert struck(every, fits, other, fits, fits, fits) == [False, False, True, False, True]


def test_times_field_limits_how_often_a_fault_rule_fires() -> None:
    assert struck(script({"action": "empty", "times": 2}), *[asking()] * 4) == [
        True,
        True,
        False,
        False,
    ]
    later = script({"action": "empty", "times": 1, "every": 2})
    assert struck(later, *[asking()] * 4) == [False, True, False, False]


def test_fault_rule_fires_with_its_configured_probability() -> None:
    hits = struck(script({"action": "empty", "probability": 0.25}), *[asking()] * 4000)
    assert sum(hits) == pytest.approx(1000, abs=100)
    assert not any(struck(script({"action": "empty", "probability": 0}), *[asking()] * 100))


def test_later_fault_rule_counts_requests_that_an_earlier_rule_failed() -> None:
    rules = script({"action": "empty", "nth": 1}, {"action": "error", "every": 2, "name": "second"})
    first, second = (rules.fault_for(asking(), RNG, 0.0) for _ in range(2))
    assert first and first.name == "empty"
    assert second and second.name == "second" and second.error and second.error.status == 500


def test_rate_limit_headers_show_the_quota_and_the_exact_retry_time() -> None:
    rules = script({"action": "rate-limit", "rate": 30, "burst": 2})
    headers = []
    for _ in range(2):
        fault = rules.fault_for(asking(), RNG, 0.0)
        assert fault and not fault.name and fault.error is None
        headers.append(fault.headers)
    assert headers[0] == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "2s",
    }
    assert headers[1]["x-ratelimit-remaining-requests"] == "0"
    limited = rules.fault_for(asking(), RNG, 0.5)
    assert limited and limited.name == "rate-limit" and limited.error
    assert (limited.error.status, limited.error.headers) == (429, {"Retry-After": "2"})
    assert limited.headers["x-ratelimit-reset-requests"] == "3.5s"
    assert struck(rules, asking(), now_s=1.9) == [True]
    assert struck(rules, asking(), now_s=2.5) == [False]


def test_request_above_the_token_quota_uses_no_request_quota() -> None:
    rules = script({"action": "rate-limit", "rate": 600, "token_rate": 60, "token_burst": 100})
    assert struck(rules, asking(tokens=80), asking(tokens=30)) == [False, True]
    fault = rules.fault_for(asking(tokens=20), RNG, 0.0)
    assert fault and not fault.name
    assert fault.headers["x-ratelimit-remaining-requests"] == "598"
    assert fault.headers["x-ratelimit-remaining-tokens"] == "0"
    assert fault.headers["x-ratelimit-reset-tokens"] == "1m40s"
