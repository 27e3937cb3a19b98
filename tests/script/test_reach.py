"""Rules that can never be reached, as `script check` names them."""

from __future__ import annotations

import pytest

from app.cli import main
from app.serving.scripts.command import unreachable
from tests.script.requests import Books

HIDDEN = [
    ("{}", "{message: a}"),
    ("{message: a}", "{message: a, turn: 2, nth: 3, chance: 0.5}"),
    ("{message: {exact: [a, b]}}", "{message: {exact: b}}"),
    ("{message: {contains: [we, x]}}", "{message: {contains: weather}}"),
    ("{message: {contains: A, ignore_case: true}}", "{message: {exact: [ba, Ab]}}"),
    ("{message: {regex: a+}}", "{message: [{regex: a+}, {which: first, contains: b}]}"),
    ("{message: {which: any, contains: a}}", "{message: {role: user, contains: a}}"),
    ("{model: [a, b], api: [chat, messages]}", "{model: a, api: chat}"),
    ("{turn: [1, 2, 3]}", "{turn: [1, 3]}"),
    ("{nth: {count: {at_least: 1}}}", "{}"),
    ("{tool_result: true}", "{tool_result: weather}"),
    ("{tools: a}", "{tools: [b, a]}"),
    ("{headers: {X-A: null}}", "{headers: {X-A: null, X-B: a}}"),
]
REACHED = [
    ("{message: a}", "{}"),
    ("{nth: 1}", "{}"),
    ("{chance: 0.9}", "{}"),
    ("{message: {contains: weather}}", "{message: {contains: we}}"),
    ("{message: {exact: a}}", "{message: {exact: A, ignore_case: true}}"),
    ("{message: {regex: a+}}", "{message: {regex: a}}"),
    ("{message: {role: user, contains: a}}", "{message: {contains: a}}"),
    ("{message: {which: first, contains: a}}", "{message: {contains: a}}"),
    ("{model: a}", "{model: [a, b]}"),
    ("{turn: [1, 2]}", "{turn: {at_least: 1, at_most: 2}}"),
    ("{turn: {at_most: 4}}", "{turn: {at_least: 2}}"),
    ("{turn: 2}", "{}"),
    ("{tool_result: false}", "{tool_result: weather}"),
    ("{tool_result: weather}", "{tool_result: true}"),
    ("{tools: [a, b]}", "{tools: a}"),
    ("{tools: false}", "{tools: true}"),
    ("{headers: {X-A: b}}", "{headers: {X-A: null}}"),
]


def hidden(books: Books, *rules: str) -> list[tuple[int, int]]:
    """Numbers of the rules that hide another, and of the other."""
    (file,) = books.open(f"rules: [{', '.join(rules)}]").files
    return [(earlier.number, later.number) for earlier, later in unreachable(file.rules)]


@pytest.mark.parametrize(
    ("earlier", "later", "hides"),
    [*((*rules, True) for rules in HIDDEN), *((*rules, False) for rules in REACHED)],
)
def test_a_rule_behind_one_that_fits_more_is_named(
    books: Books, earlier: str, later: str, hides: bool
) -> None:
    rules = [f"{{when: {when}, then: {{text: a}}}}" for when in (earlier, later)]
    assert hidden(books, *rules) == ([(1, 2)] if hides else [])


@pytest.mark.parametrize(
    ("first", "second", "hides"),
    [
        ("{text: a}", "{score: 1}", False),
        ("{text: a}", "{usage: {prompt_tokens: 1}, pass: true}", False),
        ("pass", "{score: 1}", True),
        ("{fault: {action: disconnect, times: 1}}", "{text: a}", False),
        ("{text: a, fault: {action: disconnect, times: 1}}", "{text: a}", True),
        ("{tool_calls: [{name: a}]}", "{text: a}", False),
        ("{tool_calls: [{name: a, unchecked: true}]}", "{text: a}", True),
        ("{tool_calls: [{name: a}]}", "{tool_calls: [{name: a}, {name: b}]}", True),
    ],
)
def test_what_is_said_decides_whom_a_rule_answers(books: Books, first: str, second: str, hides: bool) -> None:
    assert hidden(books, f"{{then: {first}}}", f"{{then: {second}}}") == ([(1, 2)] if hides else [])


def test_hundreds_of_exact_messages_are_compared_by_their_text(books: Books) -> None:
    rules = [f"{{when: {{message: m{number % 600}}}, then: {{text: a}}}}" for number in range(601)]
    assert hidden(books, *rules) == [(1, 601)]


def test_the_command_names_them(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    path = books.write("rules: [{then: {text: a}}, {name: late, then: {text: b}}]")
    assert main(["script", "check", str(path)]) == 0
    (line,) = caplog.messages
    assert line == f"script {path}: rule 2 (late) can never be reached: rule 1 fits all that it does"
