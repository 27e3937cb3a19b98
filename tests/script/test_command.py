"""`python -m app script check`, with rules that can never be reached, and `script try`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from app.serving.scripts.command import unreachable
from tests.running_server import ROOT
from tests.script.requests import Books

EXAMPLE = str(ROOT / "examples" / "scripts" / "weather.yaml")
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
)


def test_a_check_names_rules_or_the_first_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["script", "check", EXAMPLE]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: 5 rules are in order\n"
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {txt: a}}]")
    assert main(["script", "check", EXAMPLE, str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: script {path}: rule 1: then: unknown key 'txt'; did you mean text?\n"


def test_a_try_tells_the_rule_and_its_answer_and_why_others_do_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "messages.json"
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    asked = {"role": "user", "content": "the weather in Rome"}
    answered = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
    path.write_text(json.dumps([asked, {"role": "assistant", "tool_calls": [call]}, answered]))
    assert main(["script", "try", EXAMPLE, "--messages", "the weather in Rome", "--tools", TOOLS]) == 0
    place, _, told = capsys.readouterr().out.partition("\n")
    assert place.endswith("rule 1 (ask the tool)")
    calls = [{"name": "get_weather", "arguments": {"city": "Rome"}}]
    assert json.loads(told) == {"text": "Let me look.", "calls": calls}
    assert main(["script", "try", EXAMPLE, "--why", "--messages", f"@{path}"]) == 0
    why, place, *lines = capsys.readouterr().out.splitlines()
    assert why.endswith("rule 1 (ask the tool): when.tool_result does not hold")
    assert place.endswith("rule 2 (answer with its result)")
    assert json.loads("".join(lines)) == {"text": "The weather: sunny."}


def test_a_try_asks_so_often_with_headers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["script", "try", EXAMPLE, "--messages", "Hello"]) == 0
    assert '"fault": "error"' in capsys.readouterr().out
    again = ["--times", "2", "--header", "X-User: Ada"]
    assert main(["script", "try", EXAMPLE, "--messages", "Hello", *again]) == 0
    assert '"text": "Hello Ada!"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--messages", "[{"], "--messages: is no JSON"),
        (["--messages", "[1]"], "--messages: must be a text, or a JSON list of messages"),
        (["--messages", "a", "--tools", "[1]"], "--tools: must be a JSON list of tools"),
        (["--messages", "@/nowhere"], "No such file"),
        (
            ["--messages", "weather in Rome", "--tools", '{"get_weather": false}'],
            "does not allow the arguments",
        ),
    ],
)
def test_what_cannot_be_tried_costs_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["script", "try", EXAMPLE, *arguments]) == 1
    told = capsys.readouterr().err
    assert line in told and told.startswith("error: ") and told.count("\n") == 1


HIDDEN = [
    ("{}", "{message: a}"),
    ("{message: {contains: A, ignore_case: true}}", "{message: {exact: [ba, Ab]}}"),
    ("{message: {regex: a+}}", "{message: [{regex: a+}, {which: first, contains: b}]}"),
    ("{message: {which: any, contains: a}}", "{message: {role: user, contains: a}}"),
    ("{model: [a, b], api: [chat, messages]}", "{model: a, api: chat}"),
    ("{tool_result: true}", "{tool_result: weather}"),
    ("{headers: {X-A: null}}", "{headers: {X-A: null, X-B: a}}"),
]
REACHED = [
    ("{message: a}", "{}"),
    ("{nth: 1}", "{}"),
    ("{message: {exact: a}}", "{message: {exact: A, ignore_case: true}}"),
    ("{message: {which: first, contains: a}}", "{message: {contains: a}}"),
    ("{model: a}", "{model: [a, b]}"),
    ("{turn: {at_most: 4}}", "{turn: {at_least: 2}}"),
    ("{tool_result: false}", "{tool_result: weather}"),
    ("{tools: [a, b]}", "{tools: a}"),
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
        ("{fault: {action: disconnect, times: 1}}", "{text: a}", False),
        ("{tool_calls: [{name: a, unchecked: true}]}", "{text: a}", True),
        ("{tool_calls: [{name: a}]}", "{tool_calls: [{name: a}, {name: b}]}", True),
    ],
)
def test_what_is_said_decides_whom_a_rule_answers(books: Books, first: str, second: str, hides: bool) -> None:
    assert hidden(books, f"{{then: {first}}}", f"{{then: {second}}}") == ([(1, 2)] if hides else [])


def test_the_command_names_them(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    path = books.write("rules: [{then: {text: a}}, {name: late, then: {text: b}}]")
    assert main(["script", "check", str(path)]) == 0
    (line,) = caplog.messages
    assert line == f"script {path}: rule 2 (late) can never be reached: rule 1 fits all that it does"
