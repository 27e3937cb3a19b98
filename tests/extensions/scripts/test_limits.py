"""Limits on hostile rules:

templates and regexes that are too large, and too much work for a request.
"""

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import gevent
import pytest
import regex
from flask.testing import FlaskClient
from msgspec import convert

from app.extensions.scripts import added_rules, template
from app.extensions.scripts.matched_request import BudgetSpentError, MatchBudget, SlowRegexError
from app.extensions.scripts.matching import Conditions, Groups
from app.extensions.scripts.regexes import MAX_REGEX_NODES, RegexCompiler, unrolled_nodes
from app.extensions.scripts.rules import RuleFailureError, ScriptError, When
from app.extensions.scripts.template import Template
from app.extensions.scripts.template_environment import RandomFunctions
from app.extensions.scripts.template_limits import (
    BUDGET_KEY,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NODES,
    Budget,
)
from tests.application import app_of
from tests.extensions.scripts.requests import Books, reply_text, request

RULES = "/admin/script/rules"
VALUES: dict[str, Any] = {
    "match": {"items": "group"},
    "message": "m" * 65_536,
    "user": "u",
    "turn": 1,
    "header": {}.get,
    **RandomFunctions(Random(1)).by_name(),
}


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1").test_client()


def error_of(client: FlaskClient, body: object) -> tuple[int, str]:
    answer: Any = client.put(RULES, json=body)
    return answer.status_code, answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{{ message" + "|json" * 200 + " }}",
            f"must not be nested more than {MAX_DEPTH} levels deep",
        ),
        ("{{ 'a'" + "|json" * 90 + " }}", f"must not be nested more than {MAX_DEPTH} levels deep"),
        (
            "{{ " + "[" * 60 + "]" * 60 + " }}",
            f"must not be nested more than {MAX_DEPTH} levels deep",
        ),
        (
            "{% if turn %}" * 60 + "{% endif %}" * 60,
            f"must not be nested more than {MAX_DEPTH} levels deep",
        ),
        ("{{ turn }}" * (MAX_NODES + 1), f"must not have more than {MAX_NODES} nodes"),
        ("{# #}" * 50_000, "must not have more than 4000 tokens"),
        ("{{ " + "(" * 100_000, "must not have more than 4000 tokens"),
        (
            "{{ choose(*message) }}",
            "unpacking arguments with * is not supported in a script (line 1)",
        ),
    ],
)
def test_error_for_an_oversized_template_states_the_position(
    client: FlaskClient, source: str, reason: str
) -> None:
    body = {"rules": [{"then": "pass"}, {"name": "bomb", "then": {"text": source}}]}
    status, message = error_of(client, body)
    assert status == 400
    assert message.startswith("script at run time: rule 2 (bomb): then.text: template")
    assert reason in message


def test_python_compiler_error_is_reported_as_an_error_of_the_rule(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "MAX_DEPTH", 1_000)
    status, message = error_of(
        client, {"then": {"text": "{% if turn %}" * 110 + "{% endif %}" * 110}}
    )
    assert status == 400
    assert "rule 1: then.text: template" in message
    assert "too many levels of indentation" in message


def test_templates_at_the_size_limits_compile_and_render() -> None:
    depth = MAX_DEPTH - 3
    assert Template("{{ user" + "|upper" * depth + " }}").value(VALUES) == "U"
    count = MAX_NODES - 2
    assert Template("{{ turn }}" * count).text(VALUES) == "1" * count


def test_total_template_size_of_all_added_rules_is_limited(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (template, added_rules):
        monkeypatch.setattr(module, "MAX_SCRIPT_NODES", 1_000)
    body = {"rules": [{"times": 1, "then": {"text": "{{ turn }}" * 90}}] * 10}
    assert client.post(RULES, json=body).status_code == 200
    answer: Any = client.post(RULES, json=body)
    assert answer.status_code == 400
    assert "the templates have more than 1000 nodes in total" in answer.json["error"]["message"]
    assert error_of(client, {"rules": body["rules"] * 2})[0] == 400


def test_number_of_templates_per_rule_is_limited(client: FlaskClient) -> None:
    status, message = error_of(client, {"then": {"json": ["{{ turn }}"] * 1_001}})
    assert status == 400
    assert "rule 1: then.json: a rule must not have more than 1000 templates" in message


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if message|upper %}{% endif %}" * 70, "the rule's templates process more than"),
        ("{{ " + " ~ ".join(["message"] * 5) + " }}", "more than 262144 characters"),
        ("{{ " + " + ".join(["message"] * 5) + " }}", "exceeds 262144 characters"),
        ("{{ [message, message, message, message, message] }}", "more than 262144 characters"),
        (
            "{{ [message, message, message, message, message] | string }}",
            "more than 262144 characters",
        ),
        ("{{ '%999999999d' is odd }}", "the tests odd and even require numbers"),
        ("{{ user | trim(message) }}", "trim can strip at most 100"),
        ("{{ unix | date('%c' * 2) }}", "requires numbers"),
        ("{{ 0 | date('" + "%c" * 101 + "') }}", "date format exceeds 200"),
        ("{{ [user.nothing] }}", "has no attribute 'nothing'"),
    ],
)
def test_template_that_exceeds_the_work_or_size_limit_fails_the_request(
    source: str, reason: str
) -> None:
    with pytest.raises(RuleFailureError, match=reason.replace("(", r"\(")):
        Template(source).value({**VALUES, "unix": 0})


def test_templates_of_one_reply_share_a_limit_on_processed_text(books: Books) -> None:
    book = books.open(
        "rules: [{then: {json: {a: " + json.dumps(["{{ message | length }}"] * 100) + "}}}]"
    )
    assert reply_text(book, request("x" * 1_000)) is not None
    with pytest.raises(RuleFailureError, match="the rule's templates process more than"):
        reply_text(book, request("x" * 65_536))


def test_other_requests_run_between_the_operations_of_a_script_template() -> None:
    pauses: list[int] = []
    budget = Budget(pause=partial(pauses.append, 1))
    Template("{{ user | upper | lower }}").text({**VALUES, BUDGET_KEY: budget})
    assert len(pauses) == 3  # the template, and two filters


@pytest.mark.parametrize("name", ["header", "random", "choose", "hex"])
def test_template_function_name_that_is_not_called_is_rejected(name: str) -> None:
    with pytest.raises(ScriptError, match=rf"{name} \(line 1\) is a function; write {name}"):
        Template("{{ NAME }}".replace("NAME", name))
    with pytest.raises(ScriptError, match="is a function"):
        Template("{{ choose(1, NAME) }}".replace("NAME", name))


def test_templates_can_read_members_of_values_but_call_no_methods() -> None:
    assert Template("{{ match.items }}").value(VALUES) == "group"
    for source in (
        "{{ user.upper }}",
        "{{ user['upper'] }}",
        "{{ match.keys }}",
        "{{ [1].append ~ '' }}",
    ):
        with pytest.raises(RuleFailureError, match="has no attribute"):
            Template(source).value(VALUES)


def test_negative_number_in_a_script_template_keeps_its_sign() -> None:
    assert Template("{{ -5 }}").value(VALUES) == -5


@pytest.mark.parametrize(
    "source",
    [
        "a{65535}",
        "(?:a{140}){140}",
        "(?:a{1000}[)]b){1000}",
        "(?x)(a{140}) # ]\n{140}",
        "(a{" + "9" * 5_000,
    ],
)
def test_regex_with_too_many_repetitions_is_rejected(client: FlaskClient, source: str) -> None:
    status, message = error_of(client, {"when": {"message": {"regex": source}}, "then": "pass"})
    assert status == 400
    assert "script at run time: rule 1: the regex" in message or "is too long" in message


def test_regex_repetition_count_with_a_space_inside_is_rejected() -> None:
    with pytest.raises(ScriptError, match="a space or a comment inside a repeat count"):
        RegexCompiler().compile("(?x)(?:a){1 000}", ignore_case=False)


@pytest.mark.parametrize(
    "source",
    [r"\d{4}-\d{2}-\d{2}", r"(?:\d{1,3}\.){3}\d{1,3}", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"],
)
def test_common_regexes_stay_far_below_the_size_limit(source: str) -> None:
    assert unrolled_nodes(source) < MAX_REGEX_NODES / 20
    assert isinstance(RegexCompiler().compile(source, ignore_case=True), regex.Pattern)


def test_total_regex_size_of_all_added_rules_is_limited(client: FlaskClient) -> None:
    rule = {"when": {"message": {"regex": "a{9000}"}}, "then": "pass"}
    assert client.post(RULES, json={"rules": [rule] * 30}).status_code == 200
    answer: Any = client.post(RULES, json={"rules": [rule] * 30})
    assert answer.status_code == 400
    assert "the regexes have more than 300000 elements in total" in answer.json["error"]["message"]


def ticking() -> Callable[[], float]:
    """A clock of processor time that advances by a second with each reading."""
    return map(float, range(1_000_000)).__next__


def test_text_conditions_are_skipped_after_the_matching_time_is_used_up(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ["{when: {message: {contains: [x, y]}}, then: {text: one}}"] * 5
    rows += [
        "{when: {message: {regex: a}}, then: {text: two}}",
        "{when: {turn: 1}, then: {text: three}}",
    ]
    book = books.open(f"rules: [{', '.join(rows)}]")
    matched_request = request("a")
    matched_request.budget = MatchBudget(seconds=3, now=ticking())
    assert reply_text(book, matched_request) == "three"
    files: Any = book.report()["files"]
    assert [rule["too_slow"] for rule in files[0]["rules"]] == [0, 1, 1, 1, 1, 1, 0]
    assert caplog.text.count("exceeded the time limit for this request") == 1
    assert reply_text(book, request("a")) == "two"


@pytest.mark.parametrize(
    "when", [{"contains": "b"}, {"regex": "b"}, {"contains": "b", "ignore_case": True}]
)
def test_every_kind_of_search_counts_toward_the_matching_time(
    when: dict[str, Any],
) -> None:
    conditions = Conditions(convert({"message": when}, When))
    matched_request = request("a")
    matched_request.budget = MatchBudget(seconds=1, now=ticking())
    with pytest.raises(BudgetSpentError):
        for _ in range(2):
            conditions.first_mismatch(matched_request, Groups())
    assert issubclass(BudgetSpentError, SlowRegexError)


def test_matching_time_limit_applies_to_all_prompts_of_a_request_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets = list[MatchBudget]()
    check = MatchBudget.check

    def noted(budget: MatchBudget) -> None:
        budgets.append(budget)
        check(budget)

    monkeypatch.setattr(MatchBudget, "check", noted)
    client = app_of().test_client()
    client.put(RULES, json={"when": {"message": {"contains": "no"}}, "then": {"text": "x"}})
    body = {"prompt": ["a", "b", "c"], "max_tokens": 1}
    client.post("/v1/completions", json=body, headers={"X-Understudy-Unmatched": "pass"})
    assert len(budgets) >= 3
    assert len({id(budget) for budget in budgets}) == 1


def test_message_text_is_case_folded_once_for_all_script_rules() -> None:
    matched_request = request("ABC" * 10)
    rules = [Conditions(convert({"message": {"contains": "x", "ignore_case": True}}, When))] * 3
    for conditions in rules:
        conditions.first_mismatch(matched_request, Groups())
    assert matched_request.folded == {"ABC" * 10: "abc" * 10}


def test_rules_are_compiled_one_request_at_a_time_outside_the_event_loop(books: Books) -> None:
    book = books.open("rules: [{then: pass}]")
    order = list[str]()

    def compile_rules(name: str) -> None:
        order.append(f"{name} asks")
        book.added.read({"rules": [{"then": {"text": "{{ turn }}"}}]}, None)
        order.append(f"{name} has rules")

    book.added._compiling.acquire()
    greenlets = [gevent.spawn(compile_rules, name) for name in ("first", "second")]
    gevent.idle()
    assert order == ["first asks", "second asks"]
    book.added._compiling.release()
    gevent.joinall(greenlets, raise_error=True)
    assert sorted(order[2:]) == ["first has rules", "second has rules"]


def test_json_reply_of_a_rule_is_rejected_if_it_exceeds_the_size_limits(
    client: FlaskClient,
) -> None:
    status, message = error_of(client, {"then": {"json": ["x" * 1000] * 300}})
    assert status == 400
    assert f"rule 1: then.json: must not exceed {MAX_CHARACTERS} characters" in message
    status, message = error_of(client, {"then": {"json": ["x" * 1000] * 300 + ["{{ turn }}"]}})
    assert status == 400
    assert f"then.json: JSON with templates must not exceed {MAX_CHARACTERS} characters" in message
    status, message = error_of(client, {"then": {"json": [0] * 20_000 + ["{{ turn }}"]}})
    assert status == 400
    assert "then.json: JSON with templates must not exceed 20000 values" in message
