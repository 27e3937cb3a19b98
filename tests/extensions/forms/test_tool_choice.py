"""Which tool calls a chat allows, and which form its reply must have."""

from typing import Any

import pytest
from msgspec import convert

from app.core.api.chat.constraints import constraint_of
from app.core.api.chat.tool_set import KnownTools, tool_set
from app.core.api.chat.tools import check_tool_choice, tool_calls_of
from app.core.base.caches import LimitedDict
from app.core.engine.constraints import CompiledSchema
from app.core.engine.request import ToolCalls
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.options import StructuredOutputs, Tool
from app.core.server.http.errors import ApiError
from app.core.text.huggingface import LocalTokenizer
from app.extensions.forms.constraints import FormConstraints
from config.settings import ToolSettings
from tests.application import app_of
from tests.core.protocol.refused import chat

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
CHOOSING = ToolSettings(enable_auto_tool_choice=True)


LOOK = {"type": "function", "function": {"name": "look"}}


def calls(settings: ToolSettings = CHOOSING, **fields: Any) -> ToolCalls | None:
    return tool_calls_of(chat(**fields), settings, FormConstraints())


def figures_of(calls: ToolCalls | None) -> tuple[list[str], int, int, bool] | None:
    return calls and (
        [tool.name for tool in calls.tools],
        calls.min_calls,
        calls.max_calls,
        calls.named,
    )


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
def test_tool_choice_determines_which_tools_are_called_and_how_often(
    fields: dict[str, Any], expected: tuple[list[str], int, int, bool] | None
) -> None:
    assert figures_of(calls(tools=TOOLS, **fields)) == expected


def test_unknown_named_tool_choice_is_rejected() -> None:
    assert calls() is None and calls(tools=None) is None
    with pytest.raises(ApiError, match="exactly one tool"):
        calls(tools=[TOOLS[0], TOOLS[0]], tool_choice=LOOK)
    assert figures_of(calls(tools=[TOOLS[0], TOOLS[0]], tool_choice="required")) == (
        ["look", "look"],
        1,
        2,
        False,
    )
    assert calls(CLOSED, tools=TOOLS, tool_choice=None) is None, (
        "a server without a parser finds none"
    )
    assert calls(CLOSED, tools=TOOLS, tool_choice="required") is None, "of the Responses family"


NAMED = {"type": "function", "function": {"name": "go"}}
CLOSED = ToolSettings(enable_auto_tool_choice=False)
PARSED = ToolSettings(tool_call_parser="hermes")


@pytest.mark.parametrize(
    ("settings", "choice", "refused"),
    [
        (
            CLOSED,
            "auto",
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
        ),
        (CLOSED, "required", 'tool_choice="required" requires --tool-call-parser to be set'),
        (CLOSED, NAMED, "requires --tool-call-parser to be set"),
        (CLOSED, allowed("auto", "go"), "function"),
        (PARSED, allowed("auto", "go"), "function"),
        (CHOOSING, allowed("auto", "go"), None),
        (CLOSED, None, None),
        (CLOSED, "none", None),
        (PARSED, "required", None),
        (PARSED, NAMED, None),
    ],
)
def test_tool_choice_is_rejected_if_the_server_options_do_not_allow_it(
    settings: ToolSettings, choice: object, refused: str | None
) -> None:
    request = chat(tools=TOOLS, tool_choice=choice)
    if refused is None:
        check_tool_choice(request, settings)
        return
    with pytest.raises(ApiError) as caught:
        check_tool_choice(request, settings)
    assert caught.value.status == 400 and refused in caught.value.message
    assert caught.value.param == ("tool_choice.function" if refused == "function" else None)


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (StructuredOutputs(json="{"), "Invalid JSON grammar"),
        (StructuredOutputs(json="[" * 100_000), "Invalid JSON grammar"),
        (StructuredOutputs(json='{"items": ' * 65 + "{}" + "}" * 65), "more than 64 nested levels"),
        (StructuredOutputs(json={"type": "thing"}), "Grammar error: Invalid type: thing"),
        (StructuredOutputs(grammar="root ::= ("), "Invalid grammar specification"),
        (StructuredOutputs(json={"type": "array", "uniqueItems": True}), "uniqueItems"),
    ],
)
def test_error_for_an_invalid_structured_output_states_the_reason(
    wanted: StructuredOutputs, word: str
) -> None:
    with pytest.raises(ApiError) as caught:
        constraint_of(wanted, FormConstraints())
    assert (
        caught.value.status == 400 and word in caught.value.message and caught.value.param is None
    )


def test_tools_that_exceed_the_context_are_rejected_before_tokenization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = {"type": "function", "function": {"name": "look", "description": "a" * 100_000}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "max_tokens": 1}
    client = app_of("--max-model-len", "64").test_client()
    path = "/v1/chat/completions"
    whole = {**body, "tool_choice": "none"}
    truncated = client.post(path, json={**whole, "truncate_prompt_tokens": 8}).get_json()
    assert truncated["usage"]["prompt_tokens"] == 8
    monkeypatch.delattr(LocalTokenizer, "encode")
    answer = client.post(path, json=whole)
    assert answer.status_code == 400 and answer.get_json()["error"]["param"] == "input_text"


class CountingConstraints(FormConstraints):
    """Counts the schemas that it compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = 0

    def compile(self, schema: object, lenient: bool = False) -> CompiledSchema:
        self.compiled += 1
        return super().compile(schema, lenient)


def tool(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


def known_chat(known_tools: KnownTools, **fields: Any) -> ChatCompletionRequest:
    """Returns a chat whose tools are remembered."""
    request = chat(**fields)
    assert request.tools is not None
    request.tools = tool_set(request.tools, known_tools)
    return request


def test_tools_that_were_validated_before_are_not_validated_again() -> None:
    constraints = CountingConstraints()
    known_tools: KnownTools = LimitedDict(1 << 20)
    questions = []
    for question in ("one", "two"):
        request = known_chat(
            known_tools,
            tools=[tool(type="object")],
            messages=[{"role": "user", "content": question}],
        )
        calls = tool_calls_of(request, CHOOSING, constraints)
        assert calls is not None and calls.tools[0].schema == {"type": "object"}
        questions.append(calls.question)
    assert questions == ["one", "two"]
    assert constraints.compiled == 1
    for properties in ({"a": {}, "b": {}}, {"b": {}, "a": {}}):
        request = known_chat(known_tools, tools=[tool(properties=properties)])
        calls = tool_calls_of(request, CHOOSING, constraints)
        assert calls is not None
        assert list(calls.tools[0].schema["properties"]) == [*properties]  # type: ignore[index]
    assert constraints.compiled == 3


def test_validating_server_rejects_tools_that_were_accepted_unvalidated() -> None:
    known_tools: KnownTools = LimitedDict(1 << 20)
    request = known_chat(known_tools, tools=[tool(type="no type")])
    unchecked = ToolSettings(enable_auto_tool_choice=True, skip_tool_validation=True)
    assert tool_calls_of(request, unchecked, FormConstraints())
    for _ in range(2):
        with pytest.raises(ApiError, match="parameters of tool 'look'"):
            tool_calls_of(request, CHOOSING, FormConstraints())


@pytest.mark.parametrize(("length", "has_key"), [(1_000, True), (20_000, False)])
def test_rendered_text_of_a_long_tool_list_is_not_cached(length: int, has_key: bool) -> None:
    known_tools: KnownTools = LimitedDict(1 << 22)
    tools = convert([tool(title="x" * length)], list[Tool])
    known_set = tool_set(tools, known_tools)
    assert (known_set.options.tools_key is not None) == has_key
    assert tool_set(tools, known_tools) is known_set


def test_cache_of_validated_tools_stays_within_its_memory_limit() -> None:
    known_tools: KnownTools = LimitedDict(100_000)
    lengths = []
    for number in range(200):
        known_chat(known_tools, tools=[tool(title=f"{number}")])
        lengths.append(len(known_tools))
        assert known_tools.size_bytes <= 100_000
    assert 5 < max(lengths) < 100
    for tools in (
        [tool(title="x" * 70_000)],
        [tool(title="many")] * 121,
        [tool(title="\ud800")],
    ):
        request = chat(tools=TOOLS)
        request.tools = convert(tools, list[Tool])
        request.tools = tool_set(request.tools, known_tools)
        assert request.tools.options.tools_key is None
        unchecked = ToolSettings(enable_auto_tool_choice=True, skip_tool_validation=True)
        assert tool_calls_of(request, unchecked, FormConstraints())
    assert len(known_tools) == lengths[-1], "long and many tools are not remembered"
