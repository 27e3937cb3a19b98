"""Rules that a test sets while the server runs:

tried before those of files, counted, removed again.
"""

import re
from collections.abc import Mapping
from tempfile import TemporaryFile
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.extensions.scripts.kept import KeptChanges
from tests.application import app_of
from tests.extensions.scripts.requests import Books, request
from tests.extensions.scripts.requests import reply_text as book_reply

RULES = "/admin/script/rules"
TEXT = {"text": "yes"}


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1").test_client()


def reply_text(client: FlaskClient, text: str = "hi", scope: str = "") -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 9}
    headers = {"X-Understudy-Scope": scope} if scope else {}
    answer: Any = client.post("/v1/chat/completions", json=body, headers=headers).json
    return str(answer["choices"][0]["message"]["content"])


def rules(
    client: FlaskClient, query: str = "", method: str = "GET", body: Any = None
) -> list[dict[str, Any]]:
    answer = client.open(RULES + query, method=method, json=body)
    assert answer.status_code == 200, answer.text
    rows: list[Any] = answer.json["rules"]  # type: ignore[index]
    return rows


def rule(text: str, **when: Any) -> dict[str, Any]:
    return {"name": text, "when": when, "then": {"text": text}}


def test_rules_can_be_set_appended_counted_and_removed(client: FlaskClient) -> None:
    plain = reply_text(client)
    rules(client, "", "PUT", {"rules": [rule("one", message="hi"), rule("two", message="x")]})
    [third] = rules(client, "", "POST", rule("three"))
    assert [reply_text(client), reply_text(client, "x")] == ["one", "two"]
    assert [(row["name"], row["answered"]) for row in rules(client)] == [
        ("one", 1),
        ("two", 1),
        ("three", 0),
    ]
    assert third.items() >= rule("three").items()
    assert [row["name"] for row in rules(client, f"?id={third['id']}", "DELETE")] == [
        "one",
        "two",
    ]
    rules(client, "", "PUT", {"rules": [rule("other")]})
    assert reply_text(client) == "other" and len(rules(client)) == 1
    assert rules(client, "", "DELETE") == [] and reply_text(client) not in ("other", "") and plain


def test_each_scope_has_separate_rules(client: FlaskClient) -> None:
    rules(client, "?scope=a", "PUT", {"rules": [rule("of a")]})
    rules(client, "?scope=b", "POST", rule("of b"))
    rules(client, "", "POST", rule("of all"))
    assert [reply_text(client, "hi", scope) for scope in ("a", "b", "c", "")] == [
        "of a",
        "of b",
        "of all",
        "of all",
    ]
    rules(client, "?scope=a", "PUT", {"rules": [rule("of a again")]})
    rules(client, "?scope=b", "DELETE")
    assert [reply_text(client, "hi", scope) for scope in ("a", "b")] == ["of a again", "of all"]
    assert [row["scope"] for row in rules(client)] == ["a", None]
    assert [row["name"] for row in rules(client, "?scope=a")] == ["of a again"]


def test_rules_are_numbered_in_each_scope(client: FlaskClient) -> None:
    for scope in ("a", "a", "b", "a"):
        rules(client, f"?scope={scope}", "POST", rule("x", message="never"))
    assert [(row["scope"], row["number"]) for row in rules(client)] == [
        *(("a", 1), ("a", 2), ("b", 1), ("a", 3))
    ]
    rules(client, "?scope=a", "DELETE")
    [added] = rules(client, "?scope=a", "POST", rule("x"))
    assert added["number"] == 1
    assert [row["number"] for row in rules(client, "?scope=b", "PUT", {"rules": [rule("x")]})] == [
        1
    ]
    answer = client.post(f"{RULES}?scope=a", json={"when": {"x": 1}, "then": TEXT})
    assert "script at run time: rule 2: when: unknown key" in answer.text


@pytest.mark.parametrize(
    ("when", "then", "message"),
    [
        ({"contains": "x"}, TEXT, "when: unknown key 'contains'; it belongs elsewhere: write when: "
         "{message: {contains: TEXT}}."),
        ({"contain": "x"}, TEXT, "did you mean contains? Write when: {message: {contains: TEXT}}."),
        ({}, {"text": "x", "status": 429}, "write then: {fault: {action: error, status: 503}}."),
        ({"error": "x"}, TEXT, "write then: {fault: {action: error, status: 503}}."),
        ({"text": "x"}, TEXT, "when: unknown key 'text'; it belongs elsewhere: write then: {text: ..."),
        ({}, {"tools": True, **TEXT}, "then: unknown key 'tools'; it belongs elsewhere: write when: "
         "{tools: ...}."),
        ({"message": {"xyz": "x"}}, TEXT, "when.message: unknown key 'xyz'. The keys here are "
         "contains, exact, ignore_case, regex, role, which"),
        ({}, {"tool_calls": [{"name": "f", "args": {}}]}, "unknown key 'args'. The keys here are "
         "arguments, id, name, unchecked"),
    ],
)  # fmt: skip
def test_misplaced_key_is_told_where_it_belongs(
    when: Any, then: Any, message: str, client: FlaskClient
) -> None:
    answer = client.post(RULES, json={"when": when, "then": then})
    assert answer.status_code == 400
    text: str = answer.get_json()["error"]["message"]
    assert message in text
    for key in (*when, *then):
        assert f"unknown key {key!r}; did you mean {key}?" not in text


def test_runtime_rules_take_precedence_over_file_rules(books: Books) -> None:
    path = books.write("rules: [{then: {text: of the file}}]")
    client = app_of("--script", str(path)).test_client()
    rules(client, "", "POST", rule("of the test", message="hi"))
    assert [reply_text(client), reply_text(client, "x")] == ["of the test", "of the file"]


@pytest.mark.parametrize(
    ("conditions", "action", "is_fast"),
    [
        ({}, TEXT, True),
        ({"message": "hi"}, TEXT, True),
        ({"message": {"contains": ["a", "b"], "ignore_case": True}}, TEXT, True),
        ({"model": "m", "api": "chat", "turn": 2, "nth": 3, "chance": 0.5}, TEXT, True),
        ({"headers": {"x-test": "a"}, "tools": False, "tool_result": False}, TEXT, True),
        ({}, {"json": {"a": 1}, "delays": {"first_token": "1s"}}, True),
        ({}, {"tool_calls": [{"name": "f", "arguments": {"a": 1}}]}, True),
        ({}, "pass", True),
        ({"message": {"regex": "h+i"}}, TEXT, False),
        ({"message": {"contains": "hi", "which": "any"}}, TEXT, False),
        ({"message": {"contains": [str(number) for number in range(201)]}}, TEXT, False),
        ({"tool_result": "f"}, TEXT, False),
        ({}, {"text": "{{ message }}"}, False),
        ({}, {"fault": {"action": "error", "status": 503}}, False),
    ],
)
def test_simple_rules_keep_chats_on_the_fast_path(
    conditions: dict[str, Any], action: Any, is_fast: bool
) -> None:
    app = app_of("--seed", "1")
    client = app.test_client()
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    [plain] = [row.plain for row in app.routes if row.path == "/v1/chat/completions"]
    assert plain is not None
    assert plain.recognise(body)
    rules(client, "", "POST", {"when": conditions, "then": action})
    assert (plain.recognise(body) is not None) is is_fast
    rules(client, "", "DELETE")
    assert plain.recognise(body)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            {"when": {"mesage": "hi"}, "then": "pass"},
            "rule 1: when: unknown key 'mesage'; did you",
        ),
        (
            {"rules": [rule("a"), {"then": "stop"}]},
            "rule 2: then: must be 'pass' or a mapping, got 'stop'.",
        ),
        ({"rules": []}, "rules: Expected `array` of length >= 1."),
        (
            {"then": {"text": "{{ x"}},
            "rule 1: then.text: template '{{ x': unexpected end of template",
        ),
        (
            {"when": {"message": {"regex": "("}}, "then": "pass"},
            "rule 1: invalid regex '('",
        ),
        (
            {"then": {"text": "{% for _ in range(9) %}{% endfor %}"}},
            "For is not supported in a script (line 1).",
        ),
        (
            {"then": {"text": "{% macro f() %}{{ f() }}{% endmacro %}"}},
            "Macro is not supported in a script (line 1)",
        ),
        (
            {"then": {"json": [[[]] * 3] * 3, "delays": {"first_token": "25h"}}},
            "must be between 0 and 24h.",
        ),
        (
            {"rules": [{"then": {"text": "x" * 250_000}}] * 9},
            "the rules together exceed 2 MiB",
        ),
        (
            {
                "tools": {"f": {"properties": {"city": {"type": "string"}}}},
                "rules": [{"then": {"tool_calls": [{"name": "f", "arguments": {"city": 1}}]}}],
            },
            "rule 1: then.tool_calls.0: the schema of the tool 'f' does not allow the arguments",
        ),
    ],
)
def test_invalid_rule_is_rejected_without_changing_the_existing_rules(
    client: FlaskClient, body: Mapping[str, Any], line: str
) -> None:
    rules(client, "", "POST", rule("there"))
    later_line = re.sub(r"^rule (\d)", lambda match: f"rule {int(match[1]) + 1}", line)
    for method, expected in (("PUT", line), ("POST", later_line)):
        answer = client.open(RULES, method=method, json=body)
        answer_body: Any = answer.json
        assert answer.status_code == 400, answer_body
        assert expected in answer_body["error"]["message"], answer_body
    deep = b'{"then": {"json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    assert client.post(RULES, data=deep, content_type="application/json").status_code == 400
    assert [row["name"] for row in rules(client)] == ["there"]


def test_slow_regex_is_skipped(client: FlaskClient) -> None:
    slow = {"when": {"message": {"regex": "(a|aa)+$"}}, "then": {"text": "never"}}
    rules(client, "", "PUT", {"rules": [slow, rule("next")]})
    assert reply_text(client, "a" * 2000 + "!") == "next"
    assert [row["too_slow"] for row in rules(client)] == [1, 0]


def test_template_with_a_huge_result_returns_a_one_line_error(client: FlaskClient) -> None:
    template = "{{ " + "|".join(["message", *["replace('a', 'aaaaaaaa')"] * 20]) + " }}"
    rules(client, "", "POST", {"then": {"text": template}})
    body = {"messages": [{"role": "user", "content": "a"}]}
    answer: Any = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 500
    assert answer.json["error"]["message"].endswith(
        "the result of the replace filter exceeds 262144 characters."
    )


def test_server_without_simulated_text_rejects_rules() -> None:
    client = app_of("--mm-encoder-only").test_client()
    for method in ("GET", "PUT", "POST", "DELETE"):
        answer_body: Any = client.open(RULES, method=method, json=rule("one")).json
        assert answer_body["error"]["message"].startswith(
            "Rules for replies require the simulated engine"
        )


def test_next_worker_knows_the_answers_of_a_rule_whose_scope_is_not_the_first(
    books: Books,
) -> None:
    once = {"rules": [{"times": 2, "then": {"text": "yes"}}]}
    with TemporaryFile() as file:
        book = books.open()
        book.added.restore(KeptChanges(file.fileno()))
        for scope in ("a", "b"):
            book.added.use([*book.added.rules, *book.added.read(once, scope)])
        asked = request("hi", headers={"x-understudy-scope": "b"})
        assert book_reply(book, asked) == "yes"
        next_book = books.open()
        next_book.added.restore(KeptChanges(file.fileno()))
        counts = {rule.scope: rule.state.use_count for rule in next_book.added.rules}
        assert counts == {"a": 0, "b": 1}
        assert [book_reply(next_book, asked) for _ in range(2)] == ["yes", None]
