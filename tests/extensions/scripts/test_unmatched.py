"""A request that no rule of a test answers is an error, which names the nearest rule."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.application import app_of
from tests.extensions.scripts.requests import Books, reply_text, request

RULES = "/admin/script/rules"
CHAT = "/v1/chat/completions"


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1").test_client()


def set_rules(client: FlaskClient, *rules: Any, query: str = "") -> Any:
    answer = client.post(RULES + query, json={"rules": list(rules)})
    assert answer.status_code == 200, answer.text
    return answer.json


def chat(client: FlaskClient, text: str = "hi", **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
    return client.post(CHAT, json=body, headers=names)


def message_of(answer: Any) -> str:
    assert answer.status_code == 400, answer.text
    assert answer.headers["x-understudy-unmatched"] == "error"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json["error"]["type"] == "UnmatchedRequestError"
    return str(answer.json["error"]["message"])


def test_unmatched_request_returns_an_error_with_the_nearest_rule(client: FlaskClient) -> None:
    weather = {"message": {"role": "user", "contains": "weather"}, "tool_result": False, "turn": 1}
    set_rules(
        client,
        {"name": "far", "when": {"message": "x", "turn": 9}, "then": {"text": "a"}},
        {"name": "weather", "when": weather, "then": {"text": "b"}},
    )
    assert message_of(chat(client, "the news")) == (
        "No rule answers this request. The nearest of 2 rules is script at run time: rule 2 "
        "(weather): when.message: the last message of role 'user' is 'the news', not one that "
        "contains 'weather'."
    )


def test_error_for_an_exhausted_reply_sequence_names_its_last_reply(client: FlaskClient) -> None:
    set_rules(client, *[{"name": name, "times": 1, "then": {"text": name}} for name in "abc"])
    texts = [chat(client).json["choices"][0]["message"]["content"] for _ in range(3)]
    assert texts == ["a", "b", "c"]
    assert message_of(chat(client)).endswith(
        "rule 3 (c): it has answered 1 time(s), as many as its `times` allows."
    )


def test_rule_with_another_text_is_nearer_than_a_used_up_rule(client: FlaskClient) -> None:
    set_rules(
        client,
        {"name": "weather", "when": {"message": "weather"}, "then": {"text": "sunny"}},
        {"name": "first", "when": {"turn": 1}, "times": 1, "then": {"text": "a"}},
    )
    assert chat(client, "begin").status_code == 200
    assert message_of(chat(client, "whether")).endswith(
        "rule 1 (weather): when.message: the last message is 'whether', not one that is 'weather'."
    )


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({"model": "other"}, "when.model: the request has "),
        ({"api": "messages"}, "when.api: the request has 'chat'"),
        ({"tools": ["f"]}, "when.tools: the request offers no tools"),
        ({"headers": {"authorization": "Bearer a"}}, "when.headers.authorization: the header"),
        ({"tool_result": True}, "the conversation does not end with the result of a tool"),
        ({"message": {"role": "tool"}}, "there is no message of role 'tool'"),
        ({"message": {"which": "any", "regex": "^x"}}, "no message matches the regex '^x'"),
        ({"nth": 2}, "when.nth does not hold: this is match 1"),
        ({"chance": 0.0}, "when.chance has excluded this request"),
    ],
)
def test_error_states_why_each_condition_did_not_match(
    client: FlaskClient, when: Any, reason: str
) -> None:
    set_rules(client, {"when": when, "then": {"text": "a"}})
    message = message_of(chat(client, "hi", Authorization="Bearer secret"))
    assert reason in message and "secret" not in message


def test_header_for_unmatched_requests_takes_precedence_over_the_setting(
    client: FlaskClient,
) -> None:
    assert chat(client).status_code == 200
    set_rules(client, {"when": {"message": "x"}, "then": {"text": "a"}}, query="?scope=one")
    assert chat(client).status_code == 200, "the rules of another scope do not matter"
    assert chat(client, X_Understudy_Scope="one").status_code == 400
    headers = {"X_Understudy_Scope": "one", "X_Understudy_Unmatched": "pass"}
    assert chat(client, **headers).status_code == 200
    client.post("/admin/config", json={"unmatched": "pass"})
    assert chat(client, X_Understudy_Scope="one").status_code == 200
    assert message_of(chat(client, X_Understudy_Unmatched="error")).endswith(
        ": no rules are set for it."
    )
    answer = chat(client, X_Understudy_Unmatched="maybe")
    assert answer.json["error"]["message"] == (
        "X-Understudy-Unmatched must be error or pass, got 'maybe'."
    )


def test_unmatched_request_is_rejected_even_if_no_rules_are_defined() -> None:
    client = app_of("--unmatched", "error").test_client()
    assert message_of(chat(client)) == "No rule answers this request: no rules are set for it."


def test_setting_for_unmatched_requests_can_be_changed_at_run_time(client: FlaskClient) -> None:
    client.post("/admin/config", json={"unmatched": "error"})
    assert "no rules are set" in message_of(chat(client))


def test_nth_condition_counts_requests_that_an_earlier_rule_answered(books: Books) -> None:
    book = books.open(
        "rules: [{when: {nth: 1}, then: {text: one}}, {when: {nth: 2}, then: {text: two}},"
        " {when: {nth: 3}, then: {text: three}}]"
    )
    assert [reply_text(book, request("a")) for _ in range(4)] == ["one", "two", "three", None]
    book = books.open(
        "rules: [{when: {message: a}, then: {text: plain}},"
        " {when: {message: {contains: ''}, nth: 3}, then: {text: third}}]"
    )
    assert [reply_text(book, request(text)) for text in "aab"] == ["plain", "plain", "third"]


def test_times_and_nth_counts_of_a_rule_are_separate_for_each_scope(books: Books) -> None:
    book = books.open(
        "rules: [{times: 1, then: {text: once}}, {when: {nth: 2}, then: {text: second}}]"
    )
    first_scope = {"x-understudy-scope": "one"}
    second_scope = {"x-understudy-scope": "two"}
    answers = [
        reply_text(book, request("a", headers=headers))
        for headers in (first_scope, second_scope, first_scope, {}, second_scope)
    ]
    assert answers == ["once", "once", "second", "once", "second"]


def test_unreachable_rule_is_rejected(client: FlaskClient) -> None:
    set_rules(client, {"name": "all", "then": {"text": "a"}})
    answer: Any = client.post(RULES, json={"when": {"message": "x"}, "then": {"text": "b"}})
    assert answer.status_code == 400
    assert answer.json["error"]["message"] == (
        "script at run time: rule 2: can never answer: script at run time: rule 1 (all) comes "
        "before it and answers every request; add a condition or times to that rule, or set it last."
    )
    set_rules(client, {"then": {"embedding": [1.0]}})
    set_rules(client, {"then": {"text": "c"}}, query="?scope=one")
    assert chat(client, X_Understudy_Scope="one").json["choices"][0]["message"]["content"] == "c"


@pytest.mark.parametrize("scope", ["sch%C3%B6n", "a%0Ab", "%20a", "a%20", "s" * 257])
def test_scope_that_no_header_can_name_is_rejected(client: FlaskClient, scope: str) -> None:
    answer: Any = client.post(f"{RULES}?scope={scope}", json={"then": {"text": "a"}})
    assert answer.status_code == 400 and "scope" in answer.json["error"]["message"]


def test_scope_in_use_by_one_owner_rejects_rules_of_another_with_409(client: FlaskClient) -> None:
    set_rules(client, {"times": 1, "then": {"text": "a"}}, query="?scope=one&owner=test_a")
    rule = {"times": 1, "then": {"text": "b"}}
    set_rules(client, rule, query="?scope=one&owner=test_a")
    answer: Any = client.post(f"{RULES}?scope=one&owner=test_b", json=rule)
    assert answer.status_code == 409
    assert answer.json["error"]["message"].startswith("The scope 'one' is in use by test_a; ")
    client.delete(f"{RULES}?scope=one")
    set_rules(client, rule, query="?scope=one&owner=test_b")


def test_unconditional_tool_call_rule_fails_the_request_after_50_results(
    client: FlaskClient,
) -> None:
    set_rules(client, {"then": {"tool_calls": [{"name": "f"}]}})
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(60):
        body = {"messages": messages, "tools": [tool]}
        answer: Any = client.post(CHAT, json=body)
        if answer.status_code != 200:
            break
        message = answer.json["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": call_id, "content": "done"}]
    assert answer.status_code == 500
    assert (
        "it kept calling tools until the conversation contained 50 results; add times: 1"
        in (answer.json["error"]["message"])
    )
