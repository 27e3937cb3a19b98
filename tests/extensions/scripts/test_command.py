"""`understudy script check` and `script try`, in this process."""

import json
from pathlib import Path

import pytest

from app.core.cli import main
from app.extensions.scripts.command import EXAMPLE_SCRIPT
from app.extensions.scripts.matched_request import MatchBudget
from tests.running_server import ROOT

EXAMPLE = str(ROOT / "examples" / "scripts" / "weather.yaml")
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
)


def test_check_command_prints_the_number_of_rules_or_the_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["script", "check", EXAMPLE]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: 5 rules are valid\n"
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{then: {txt: a}}]")
    assert main(["script", "check", EXAMPLE, str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err
        == f"error: script {path}: rule 1: then: unknown key 'txt'; did you mean text? The keys here"
        " are blocks, classes, delays, embedding, fault, finish_reason, input_tokens, json, pass,"
        " reasoning, score, text, tool_calls, usage\n"
    )


def test_try_command_prints_the_matching_rule_and_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "messages.json"
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    question = {"role": "user", "content": "the weather in Rome"}
    answered = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
    path.write_text(json.dumps([question, {"role": "assistant", "tool_calls": [call]}, answered]))
    assert (
        main(["script", "try", EXAMPLE, "--messages", "the weather in Rome", "--tools", TOOLS]) == 0
    )
    place, _, answer = capsys.readouterr().out.partition("\n")
    assert place.endswith("rule 1 (ask the tool)")
    calls = [{"name": "get_weather", "arguments": {"city": "Rome"}}]
    assert json.loads(answer) == {"text": "Let me look.", "calls": calls}
    assert main(["script", "try", EXAMPLE, "--why", "--messages", f"@{path}"]) == 0
    why, place, *lines = capsys.readouterr().out.splitlines()
    assert why.endswith("rule 1 (ask the tool): when.tool_result does not hold")
    assert place.endswith("rule 2 (answer with its result)")
    assert json.loads("".join(lines)) == {"text": "The weather: sunny."}


def test_try_command_can_repeat_a_request_and_set_headers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["script", "try", EXAMPLE, "--messages", "Hello"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert json.loads("".join(lines)) == {"fault": "error", "status": 503}
    repeat_flags = ["--times", "2", "--header", "X-User: Ada"]
    assert main(["script", "try", EXAMPLE, "--messages", "Hello", *repeat_flags]) == 0
    assert '"text": "Hello Ada!"' in capsys.readouterr().out


def test_the_script_in_the_help_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["script", "--help"])
    assert EXAMPLE_SCRIPT in capsys.readouterr().out
    path = tmp_path / "help.yaml"
    path.write_text(EXAMPLE_SCRIPT)
    assert main(["script", "try", str(path), "--messages", "Any weather?"]) == 0
    assert '"text": "It is sunny."' in capsys.readouterr().out


def test_each_repetition_of_the_try_command_has_the_full_matching_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets: set[MatchBudget] = set()

    def record_budget(budget: MatchBudget) -> None:
        budgets.add(budget)

    monkeypatch.setattr(MatchBudget, "check", record_budget)
    assert main(["script", "try", EXAMPLE, "--messages", "Hello", "--times", "3"]) == 0
    assert len(budgets) == 3


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--messages", "[{"], "--messages: invalid JSON"),
        (["--messages", "[1]"], "--messages: must be a string or a JSON list of messages"),
        (["--messages", "a", "--tools", "[1]"], "--tools: must be a JSON list of tools"),
        (["--messages", "@/nowhere"], "No such file"),
        (
            ["--messages", "weather in Rome", "--tools", '{"get_weather": false}'],
            "does not allow the arguments",
        ),
    ],
)
def test_try_command_with_invalid_input_prints_a_one_line_error(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["script", "try", EXAMPLE, *arguments]) == 1
    message = capsys.readouterr().err
    assert line in message and message.startswith("error: ") and message.count("\n") == 1
