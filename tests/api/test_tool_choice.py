"""Which tool calls a chat allows, and which form its reply must have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.chat.tools import ANY_OBJECT, constraint_of, tool_calls_of
from app.engine.request import Constraint, ToolCalls
from app.http.errors import ApiError
from app.protocol.chat import ChatCompletionRequest
from app.protocol.decoding import decode
from app.protocol.options import StructuredOutputs
from app.schema import Schemas
from config.settings import ToolSettings

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
CHOOSING = ToolSettings(enable_auto_tool_choice=True)


def calls(settings: ToolSettings = CHOOSING, **fields: Any) -> ToolCalls | None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    request = decode(json.dumps(body).encode(), "application/json", ChatCompletionRequest)
    return tool_calls_of(request, settings, Schemas())


def told(found: ToolCalls | None) -> tuple[list[str], int, int, bool] | None:
    return found and ([tool.name for tool in found.tools], found.least, found.most, found.named)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [tool for tool in TOOLS if tool["function"]["name"] in names]  # type: ignore[index]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (["look", "go"], 0, 2, False)),
        ({"tool_choice": "auto"}, (["look", "go"], 0, 2, False)),
        ({"tool_choice": "required"}, (["look", "go"], 1, 2, False)),
        ({"tool_choice": "none"}, None),
        ({"parallel_tool_calls": False}, (["look", "go"], 0, 1, False)),
        ({"parallel_tool_calls": True}, (["look", "go"], 0, 2, False)),
        ({"tool_choice": {"type": "function", "function": {"name": "go"}}}, (["go"], 1, 1, True)),
        ({"tool_choice": allowed("auto", "go")}, (["go"], 0, 1, False)),
        ({"tool_choice": allowed("auto", "look", "go")}, (["look", "go"], 0, 2, False)),
        ({"tool_choice": allowed("required", "look", "go")}, (["look", "go"], 1, 2, False)),
    ],
)
def test_a_choice_says_which_tools_are_called_and_how_often(
    fields: dict[str, Any], expected: tuple[list[str], int, int, bool] | None
) -> None:
    assert told(calls(tools=TOOLS, **fields)) == expected


def test_without_tools_there_is_no_call() -> None:
    assert calls() is None and calls(tools=None) is None


def test_a_tool_named_twice_is_one_when_it_must_be_called() -> None:
    choice = {"type": "function", "function": {"name": "look"}}
    assert told(calls(tools=[TOOLS[0], TOOLS[0]], tool_choice=choice)) == (["look"], 1, 1, True)


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}])
def test_a_server_may_leave_no_choice(fields: dict[str, Any]) -> None:
    settings = ToolSettings(enable_auto_tool_choice=False)
    with pytest.raises(ApiError) as caught:
        calls(settings, tools=TOOLS, **fields)
    assert "--enable-auto-tool-choice" in caught.value.message
    assert told(calls(settings, tools=TOOLS, tool_choice="required")) == (["look", "go"], 1, 2, False)


def test_a_tool_whose_schema_is_wrong_is_refused_unless_nobody_looks() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "thing"}}}]
    with pytest.raises(ApiError) as caught:
        calls(tools=tools)
    assert caught.value.param == "tools" and "look" in caught.value.message
    found = calls(ToolSettings(enable_auto_tool_choice=True, skip_tool_validation=True), tools=tools)
    assert found is not None and found.lenient
    plain = calls(tools=TOOLS)
    assert plain is not None and not plain.lenient


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("wanted", "constraint"),
    [
        (None, None),
        (StructuredOutputs(json=SCHEMA), Constraint(schema=SCHEMA)),
        (StructuredOutputs(json=json.dumps(SCHEMA)), Constraint(schema=SCHEMA)),
        (StructuredOutputs(json_object=True), Constraint(schema=ANY_OBJECT)),
        (StructuredOutputs(regex="a+"), Constraint(regex="a+")),
        (StructuredOutputs(choice=["yes", "no"]), Constraint(choices=("yes", "no"))),
        (StructuredOutputs(choice=[]), None),
    ],
)
def test_a_form_is_a_constraint(wanted: StructuredOutputs | None, constraint: Constraint | None) -> None:
    assert constraint_of(wanted, Schemas()) == constraint


def test_a_grammar_is_a_constraint() -> None:
    found = constraint_of(StructuredOutputs(grammar='root ::= "a"'), Schemas())
    assert found is not None and found.grammar is not None


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (StructuredOutputs(json="{"), "no JSON"),
        (StructuredOutputs(json="[" * 100_000), "no JSON"),
        (StructuredOutputs(json={"type": "thing"}), "schema of the reply"),
        (StructuredOutputs(grammar="root ::= ("), "Invalid grammar specification"),
        (StructuredOutputs(structural_tag="{}"), "Invalid structural tag specification"),
    ],
)
def test_what_is_no_form_is_refused(wanted: StructuredOutputs, word: str) -> None:
    with pytest.raises(ApiError) as caught:
        constraint_of(wanted, Schemas())
    assert caught.value.status == 400 and word in caught.value.message
