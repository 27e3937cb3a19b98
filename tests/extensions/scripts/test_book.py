"""The rules of several files at work: the first that fits answers, and all is counted."""

import logging
from functools import partial
from random import Random
from typing import Any

import pytest

from app.extensions.scripts.rules import RuleFailureError, ScriptError
from app.extensions.scripts.script_file import FileRules, ScriptFile
from tests.extensions.scripts.requests import Books, reply_text, request

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = "rules: [{then: {tool_calls: [{name: get_weather, arguments: {%s}}]}}]"


def test_first_matching_rule_answers_the_request(books: Books) -> None:
    book = books.open(
        "rules: [{when: {message: a}, then: {text: A}}, {when: {message: b}, then: {text: B}}]",
        "rules: [{when: {message: b}, then: {text: late}}, {when: {message: c}, then: {text: C}}]",
    )
    assert [reply_text(book, request(text)) for text in "abcd"] == ["A", "B", "C", None]
    report = book.report()
    assert [[rule["answered"] for rule in file["rules"]] for file in report["files"]] == [
        [1, 1],
        [0, 1],
    ]
    assert report["unanswered"] == 1
    (line,) = book.files.unused()
    assert line.endswith("1.yaml: 1 of 2 rules never answered: rule 1")


def test_script_file_for_one_model_applies_only_to_that_model(books: Books) -> None:
    book = books.open("rules: [{then: {text: of big}}]", model="big")
    assert [reply_text(book, request("a", model=name)) for name in ("big", "small")] == [
        "of big",
        None,
    ]


def test_nth_condition_counts_requests_per_server_key_or_conversation(books: Books) -> None:
    rule = "{when: {nth: {count: 2, per: %s}}, then: {text: '{{ count }}'}}"
    requests = [request("x"), request("y"), request("x", key="key:2"), request("x")]
    for scope, expected in (
        ("server", [None, "2", None, None]),
        ("key", [None, "2", None, None]),
        ("conversation", [None, None, None, "2"]),
    ):
        book = books.open(f"rules: [{rule % scope}]")
        assert [reply_text(book, matched_request) for matched_request in requests] == expected, (
            scope
        )
    book = books.open("rules: [{when: {nth: {count: {at_least: 3}}}, then: {text: '{{ count }}'}}]")
    assert [reply_text(book, requests[0]) for _ in range(4)] == [None, None, "3", "4"]


def test_random_choices_are_determined_by_the_seed_of_the_file_or_request(books: Books) -> None:
    text = "{seed: 3, rules: [{when: {chance: 0.5}, then: {text: x}}]}"
    first, same = (
        [reply_text(book, request("a")) for _ in range(200)]
        for book in (books.open(text), books.open(text))
    )
    assert first == same and 60 < first.count("x") < 140
    book = books.open("rules: [{then: {text: '{{ hex(16) }}'}}]")
    texts = []
    for _ in range(2):
        decision = book.decide(request("a"), Random("own"))
        assert decision is not None and decision.answer is not None
        texts.append(decision.answer.reply.text)
    assert texts[0] == texts[1] != reply_text(book, request("a"))


def test_embedding_rule_matches_only_embedding_requests(books: Books) -> None:
    book = books.open("rules: [{then: {embedding: [1, 0.5]}}, {then: {text: words}}]")
    assert reply_text(book, request("a")) == "words"
    decision = book.decide(request("a", api="embeddings"))
    assert decision is not None and decision.answer is not None
    assert decision.answer.embedding == (1.0, 0.5)


def test_rule_whose_fault_no_longer_fires_leaves_the_answer_to_later_rules(books: Books) -> None:
    book = books.open(
        "rules: [{then: {fault: {action: error, status: 503, times: 1}}},"
        " {then: {text: a, fault: {action: truncate, after: 2, nth: 2}}}]"
    )
    first, second, third = (book.decide(request("a")) for _ in range(3))
    assert first is not None and first.answer is None
    assert (
        first.fault is not None
        and first.fault.error is not None
        and first.fault.error.status == 503
    )
    assert second is not None and second.answer is not None and second.fault is None
    assert third is not None and third.answer is not None
    assert third.fault is not None and third.fault.name == "truncate"


def test_scripted_calls_are_validated_against_the_tools_of_the_request(books: Books) -> None:
    book = books.open(CALL % "city: '{{ message }}'")
    decision = book.decide(request("Rome", tools={"get_weather": CITY}))
    assert decision is not None and decision.answer is not None
    assert decision.answer.reply.calls == (("get_weather", '{"city": "Rome"}', ""),)
    book = books.open(CALL % "town: Rome")
    with pytest.raises(
        RuleFailureError, match=r"schema of the tool 'get_weather' does not allow .*town"
    ):
        book.decide(request("Rome", tools={"get_weather": CITY}))
    assert book.report()["files"][0]["rules"][0]["failed"] == 1
    book = books.open("rules: [{then: {tool_calls: [{name: any, unchecked: true}]}}]")
    assert book.decide(request("Rome")) is not None


def test_rule_that_calls_a_tool_that_is_not_offered_is_skipped(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    call = "{when: {nth: 1}, then: {tool_calls: [{name: get_weather}], fault: {action: truncate, times: 1}}}"
    book = books.open(
        f"{{tools: {{get_weather: true}}, rules: [{call}, {{then: {{text: next}}}}]}}"
    )
    assert [reply_text(book, request("Rome", tools=tools)) for tools in ({"a": True}, {})] == [
        "next",
        "next",
    ]
    (line,) = caplog.messages
    assert (
        "rule 1 was skipped: the rule calls the tool 'get_weather', which the request does not offer"
        in line
    )
    assert line.endswith(": a")
    decision = book.decide(request("Rome", tools={"get_weather": True}))
    assert decision is not None and decision.answer is not None
    assert decision.answer.reply.calls and decision.fault is not None, (
        "neither nth nor times was used up"
    )
    rules = book.report()["files"][0]["rules"]
    assert [(rule["answered"], rule["failed"], rule["unoffered"]) for rule in rules] == [
        (1, 0, 2),
        (2, 0, 0),
    ]


def test_scripted_calls_are_validated_at_startup_if_the_script_has_schemas(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    tools = "tools: {get_weather: {type: object, required: [city]}}\n"
    books.open(tools + CALL % "city: Rome")
    assert caplog.messages == []
    for call in (
        "town: Rome",
        "city: Rome}, unchecked: true}, {name: get_weather, arguments: {town: Rome",
    ):
        flaw = r"rule 1: then.tool_calls.\d: the schema of the tool 'get_weather' does not allow .*town"
        with pytest.raises(ScriptError, match=flaw):
            books.open(tools + CALL % call)
    books.open(tools + CALL % "town: '{{ message }}'")
    books.open(tools + "rules: [{then: {tool_calls: [{name: get_weather, unchecked: true}]}}]")
    assert caplog.messages == []
    books.open(tools + "rules: [{name: x, then: {tool_calls: [{name: get_money}]}}]")
    books.open(CALL % "")
    unknown, later = caplog.messages
    assert "the tool calls of rule 1 (x) are checked only when requests offer the tools" in unknown
    assert "the tool calls of rule 1 are checked only when requests offer the tools" in later


def test_failing_script_rule_is_logged_once(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    book = books.open(
        "rules: [{when: {message: {regex: '(a|aa)+$'}}, then: {text: x}}, {then: {text: y}}]"
    )
    assert [reply_text(book, request("a" * 60 + "b")) for _ in range(3)] == ["y"] * 3
    assert len(caplog.messages) == 1 and "takes too long; the rule is skipped" in caplog.messages[0]
    assert book.report()["files"][0]["rules"][0]["too_slow"] == 3
    caplog.clear()
    book = books.open("rules: [{then: {text: '{{ 1 / turn - 1 / 0 }}'}}]")
    for _ in range(3):
        with pytest.raises(RuleFailureError, match="division by zero"):
            book.decide(request("a"))
    (line,) = caplog.messages
    assert "rule 1: template" in line and "division by zero" in line


def test_unchanged_rules_of_a_reloaded_script_keep_their_counts(
    books: Books,
) -> None:
    book = books.open("rules: [{when: {nth: 2}, then: {text: second}}, {then: {text: old}}]")
    assert reply_text(book, request("a")) == "old"
    books.write(
        "rules: [{then: pass, when: {message: x}}, {when: {nth: 2}, then: {text: second}}]",
        "0.yaml",
    )
    book.files.refresh()
    assert reply_text(book, request("a")) == "second"
    assert [rule["rule"] for rule in book.report()["files"][0]["rules"]] == [1, 2]
    assert reply_text(book, request("a")) is None and book.report()["unanswered"] == 1
    book.restart()
    assert book.report()["unanswered"] == 0
    assert [reply_text(book, request("a")) for _ in range(2)] == [None, "second"]


def test_rules_of_several_changed_files_replace_the_old_rules_at_once(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "rules: [{when: {message: x}, then: {text: %s}}]"
    book = books.open(rules % "old", rules % "unused")
    seen: list[str | None] = []
    read = ScriptFile.read

    def reading(file: ScriptFile, *arguments: Any) -> FileRules:
        seen.append(reply_text(book, request("x")))
        return read(file, *arguments)

    monkeypatch.setattr(ScriptFile, "read", reading)
    book.on_change = partial(seen.append, "reloaded")
    for number in range(2):
        books.write(rules % "newest", f"{number}.yaml")
    book.files.refresh()
    book.files.refresh()
    assert seen == ["old", "old", "reloaded"]
    assert reply_text(book, request("x")) == "newest"


def test_script_file_that_becomes_invalid_keeps_its_previous_rules_active(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    book = books.open("rules: [{then: {text: old}}]")
    caplog.set_level(logging.INFO)
    books.write("rules: [{then: {txt: new}}]", "0.yaml")
    for _ in range(3):
        book.files.refresh()
    assert reply_text(book, request("a")) == "old"
    (line,) = caplog.messages
    assert "unknown key 'txt'" in line and line.endswith("keeping the old rules")
    assert "unknown key 'txt'" in str(book.report()["files"][0]["error"])
    (books.folder / "0.yaml").unlink()
    book.files.refresh()
    assert reply_text(book, request("a")) == "old"
    books.write("rules: [{then: {text: newest}}]", "0.yaml")
    book.files.refresh()
    assert reply_text(book, request("a")) == "newest" and book.report()["files"][0]["error"] is None


def test_text_of_arguments_is_sent_unchanged_if_it_is_a_json_object(books: Books) -> None:
    book = books.open(
        """rules: [{then: {tool_calls: [{name: f, arguments: '{ "b" : 1 }'}]}}]""",
    )
    decision = book.decide(request("x", tools={"f": {}}))
    assert decision is not None
    assert decision.answer is not None
    assert decision.answer.reply.calls[0].arguments == '{ "b" : 1 }'


@pytest.mark.parametrize("arguments", ['{"city": ', "[]", "", "text"])
def test_checked_text_of_arguments_has_to_be_a_json_object(books: Books, arguments: str) -> None:
    call = f"{{name: f, arguments: {arguments!r}}}"
    with pytest.raises(ScriptError, match="arguments: must be a JSON object unless `unchecked`"):
        books.open(f"rules: [{{then: {{tool_calls: [{call}]}}}}]")
    books.open(f"rules: [{{then: {{tool_calls: [{call[:-1]}, unchecked: true}}]}}}}]")
