"""The scripts of docs/agents.md are in order, and answer agents as the page says."""

import json
import re
from typing import Any

import pytest

from app.core import built_in
from app.core.cli import main
from app.extensions.scripts.matched_request import MatchedRequest
from app.extensions.scripts.script_set import ScriptSet
from tests.extensions.scripts.requests import Books, request
from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")
JSON, DSPY, SMOLAGENTS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FINAL: dict[str, Any] = {"final_answer": True, "get_weather": True}
CODE_PROMPT = ("system", "Write code between <code> and </code>.")


def test_scripts_page_shows_the_complete_weather_example() -> None:
    text = (ROOT / "examples" / "scripts" / "weather.yaml").read_text()
    assert len(text.splitlines()) <= 20
    assert f"```yaml\n{text}```" in (ROOT / "docs" / "scripts.md").read_text()


def fields(*names: str) -> str:
    first, *others = (f"`[[ ## {name} ## ]]`" for name in names)
    later_fields = "".join(f", then {name}" for name in others)
    instruction = "Respond with the corresponding output fields, starting with the field"
    return f"{instruction} {first}{later_fields}, and ..."


STEP = fields("next_thought", "next_tool_name", "next_tool_args")


@pytest.mark.parametrize("script", [JSON, DSPY, SMOLAGENTS])
def test_documented_scripts_are_valid(
    books: Books, script: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["script", "check", str(books.write(script))]) == 0
    assert capsys.readouterr().out.endswith("rules are valid\n")
    messages = [record.message for record in caplog.records if record.name != built_in.__name__]
    assert not [line for line in messages if "only when requests offer the tools" not in line]


def reply(book: ScriptSet, matched_request: MatchedRequest) -> tuple[str, list[tuple[str, Any]]]:
    decision = book.decide(matched_request)
    assert decision is not None and decision.answer is not None
    scripted_reply = decision.answer.reply
    return scripted_reply.text, [
        (call.name, json.loads(call.arguments)) for call in scripted_reply.calls
    ]


def test_documented_json_script_answers_json_prompts_with_json(books: Books) -> None:
    text, _ = reply(books.open(JSON), request("Where? Answer in json."))
    assert set(json.loads(text)) == {"answer", "confidence", "sources"}
    assert books.open(JSON).decide(request("Hello")) is None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (f"[[ ## question ## ]]\nHow?\n\n{fields('answer')}", {"answer": "four"}),
        (fields("reasoning", "answer"), {"reasoning": "I have counted.", "answer": "3"}),
        (
            f"[[ ## question ## ]]\n1 + 2?\n\n[[ ## trajectory ## ]]\n\n\n{STEP}",
            {
                "next_thought": "I have to add.",
                "next_tool_name": "add",
                "next_tool_args": '{"a": 1, "b": 2}',
            },
        ),
        (
            f"[[ ## trajectory ## ]]\n[[ ## observation_0 ## ]]\n3\n\n{STEP}",
            {"next_thought": "I know the sum.", "next_tool_name": "finish", "next_tool_args": "{}"},
        ),
    ],
)
def test_documented_dspy_script_returns_a_value_for_each_field(
    books: Books, prompt: str, expected: dict[str, str]
) -> None:
    text, _ = reply(books.open(DSPY), request(prompt))
    *parts, completed = re.findall(r"\[\[ ## (\w+) ## \]\]\s*([^\[]*)", text)
    assert completed == ("completed", "")
    assert {name: value.strip() for name, value in parts} == expected


def test_documented_smolagents_script_returns_code_or_tool_calls(books: Books) -> None:
    book = books.open(SMOLAGENTS)
    observed = ("user", "Observation:\nsun")
    for matched_request, code in (
        (request(CODE_PROMPT, "The weather?"), 'print(get_weather(city="Rome"))'),
        (request(CODE_PROMPT, "The weather?", observed), 'final_answer("Sunny in Rome.")'),
    ):
        match = re.search(r"<code>\n(.*)\n</code>$", reply(book, matched_request)[0])
        assert match is not None and match[1] == code
    _, calls = reply(book, request("The weather?", tools=FINAL))
    assert calls == [("get_weather", {"city": "Rome"})]
    _, calls = reply(book, request("The weather?", observed, tools=FINAL))
    assert calls == [("final_answer", {"answer": "Sunny in Rome."})]
