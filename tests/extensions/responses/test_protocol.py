"""A request of the Responses family: what it may be, its tools, and the chat that it means."""

import json
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.core.protocol.chat import Message
from app.core.protocol.coercion import ConversionError
from app.core.protocol.decoding import decode
from app.core.protocol.options import NamedToolChoice
from app.extensions.responses.chat import ResponsesChat, chat_request, echo_text
from app.extensions.responses.protocol import ResponsesRequest
from app.extensions.responses.tools import (
    CUSTOM_PARAMETERS,
    CalledTool,
    called_tools,
    convert_tool_choice,
    convert_tools,
)
from tests.core.protocol.refused import refused

WEATHER = {"type": "function", "name": "weather", "description": "How it is", "parameters": {}}
CUSTOM = {"type": "custom", "name": "shell"}
SPACE = {"type": "namespace", "name": "home", "description": "d", "tools": [WEATHER, CUSTOM]}
NAMED = {"type": "function", "name": "weather"}
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
ALLOWED = {"type": "allowed_tools", "mode": "auto"}
JSON = {"type": "json_object"}
HELLO = {"role": "user", "content": "hi"}
TOOL_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
SAME = {
    **{
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 5,
        "stop": ["E"],
        "stream": True,
    },
    **{
        "stop_token_ids": [7],
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
    },
    **{
        "logit_bias": {"5": 1},
        "ignore_eos": True,
        "user": "me",
        "cache_salt": "salt",
        "priority": -2,
    },
    **{
        "vllm_xargs": {"a": 1},
        "kv_transfer_params": {"do_remote_decode": True},
        "include_reasoning": False,
    },
}
SECRETS = [{"domain": "d", "name": "n", "value": "v"}]
ALLOWLIST = {"type": "allowlist", "allowed_domains": ["a"], "domain_secrets": SECRETS}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL_FIELDS = [
    FUNCTION,
    {
        **FUNCTION,
        "strict": "yes",
        "allowed_callers": ["direct"],
        "async": True,
        "cache_control": {"a": 1},
    },
    {"type": "web_search", "filters": {"allowed_domains": ["a"]}, "user_location": {"city": "a"}},
    {"type": "web_search_2025_08_26", "search_context_size": "low"},
    {"type": "web_search_preview", "search_content_types": ["text"]},
    {"type": "web_search_preview_2025_03_11", "user_location": {"type": "approximate"}},
    {"type": "mcp", "server_label": "l", "require_approval": {"always": {"tool_names": ["x"]}}},
    {"type": "code_interpreter", "container": {"type": "auto", "network_policy": ALLOWLIST}},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {"type": "file_search", "vector_store_ids": ["v"], "ranking_options": {"score_threshold": 1}},
    {"type": "image_generation", "svg": {}, "input_image_mask": {"file_id": "f"}},
    {"type": "tool_search", "parameters": {"b": 1, "a": 2}},
    {"type": "shell", "environment": {"type": "local", "skills": []}},
    {"type": "apply_patch"},
    {"type": "local_shell"},
    {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]},
]
CHOICE_FIELDS = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "f", "more": 1},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    {"type": "mcp", "server_label": "l"},
    {"type": "shell"},
    {"type": "computer_use"},
]


def decoded(**fields: Any) -> ResponsesRequest:
    body = json.dumps({"model": "m", "input": "hi", **fields})
    return decode(body.encode(), "application/json", ResponsesRequest)


def chat(**fields: Any) -> ResponsesChat:
    return chat_request(decoded(**fields))


def messages(*items: dict[str, Any], **fields: Any) -> list[Message]:
    return chat(input=list(items), **fields).messages


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    return refused(partial(chat, **fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "body.input"),
        ({"input": [{"type": "reasoning", "id": "r"}]}, "body.input"),
        ({"input": [user({"type": "output_text", "text": "a"})]}, "body.input"),
        (
            {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]},
            "body.input",
        ),
        ({"metadata": {"a": 1}}, "body.metadata.a"),
        ({"text": {"format": {"type": "xml"}}}, "body.text.format.ResponseFormatText.type"),
        ({"tools": [WEATHER, {"type": "oven"}]}, "body.tools.1.FunctionTool.name"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": []}},
            "body.tool_choice",
        ),
    ],
)
def test_error_for_a_field_that_violates_the_schema_names_the_field(
    fields: dict[str, Any], param: str
) -> None:
    assert refusal(**fields) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "time"}}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {**ALLOWED, "tools": [{"name": "time"}]}},
            "tool_choice",
        ),
        ({"text": {"format": JSON}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input"),
        ({"tools": [{**CUSTOM, "format": {"type": "grammar"}}]}, "tools"),
        ({"tools": [SPACE, {**SPACE, "name": "town"}], "tool_choice": NAMED}, "tool_choice"),
    ],
)
def test_error_for_a_violated_rule_names_the_field(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (400, "BadRequestError", param)


def test_sampling_fields_and_limits_become_chat_fields() -> None:
    converted = chat(
        **SAME, max_output_tokens=7, reasoning={"effort": "low"}, instructions="Be brief."
    )
    assert {name: getattr(converted, name) for name in SAME} == SAME
    assert (converted.max_completion_tokens, converted.max_tokens, converted.reasoning_effort) == (
        7,
        None,
        "low",
    )
    assert converted.messages == [{"role": "system", "content": "Be brief."}, HELLO]


def test_consecutive_assistant_items_form_one_assistant_turn() -> None:
    thought = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
    }
    message = {"role": "assistant", "content": "I look."}
    assert messages(HELLO, thought, message, CALL, {**CALL, "call_id": "c2"}, RESULT) == [
        HELLO,
        {
            "role": "assistant",
            "reasoning": "Hm",
            "content": "I look.",
            "tool_calls": [TOOL_CALL, {**TOOL_CALL, "id": "c2"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]


@pytest.mark.parametrize(
    ("last", "continued"),
    [
        ({"role": "assistant", "content": "And", "status": "in_progress"}, True),
        ({"role": "assistant", "content": "And", "status": "incomplete"}, True),
        ({"role": "assistant", "content": "And", "status": "completed"}, False),
        ({"type": "reasoning", "summary": [], "status": "incomplete"}, True),
        (HELLO, False),
    ],
)
def test_last_input_item_is_continued_if_it_is_incomplete_or_in_progress(
    last: dict[str, Any], continued: bool
) -> None:
    converted = chat(input=[HELLO, last])
    assert (converted.continue_final_message, converted.add_generation_prompt) == (
        continued,
        not continued,
    )


@pytest.mark.parametrize(
    ("items", "echoed"),
    [
        ("hi", "hi"),
        ([HELLO, CALL], 'weather({"city": "Oslo"})'),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}], "Hm"),
        (
            [
                user(
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": "http://a/b.png"},
                )
            ],
            "Look\nimage: http://a/b.png",
        ),
    ],
)
def test_echo_mode_repeats_the_last_input_item(items: Any, echoed: str) -> None:
    assert echo_text(decoded(input=items).input) == echoed


@pytest.mark.parametrize(
    ("tool", "repeated"),
    [
        (
            {"vector_store_ids": ["v"], "more": 1, "type": "file_search"},
            '{"type": "file_search", "vector_store_ids": ["v"], "filters": null, '
            '"max_num_results": null, "ranking_options": null, "more": 1}',
        ),
        (
            {"type": "tool_search"},
            '{"type": "tool_search", "description": null, "execution": null, "parameters": null}',
        ),
        (
            {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
            '{"type": "shell", "allowed_callers": null, '
            '"environment": {"container_id": "c", "type": "container_reference"}}',
        ),
        ({"more": 1, "type": "computer"}, '{"type": "computer", "more": 1}'),
    ],
)
def test_response_repeats_all_fields_of_a_tool(tool: dict[str, Any], repeated: str) -> None:
    assert json.dumps(decoded(tools=[tool]).tools[0]) == repeated


@pytest.mark.parametrize("tool", [{"type": "file_search"}, {"type": "shell", "environment": 1}])
def test_tool_with_invalid_fields_is_rejected(tool: dict[str, Any]) -> None:
    assert refusal(tools=[tool])[2] == "body.tools.0.FunctionTool.name"


def test_calls_have_the_order_of_keys_that_templates_see() -> None:
    [_, message] = messages(HELLO, CALL)
    assert json.dumps(message["tool_calls"]) == (
        '[{"id": "c1", "function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}, '
        '"type": "function"}]'
    )


def test_only_function_custom_and_namespace_tools_can_be_called() -> None:
    search = {"type": "web_search", "search_context_size": "low"}
    assert decoded(tools=[search]).tool_choice == "auto"
    assert (chat(tools=[search]).tools, chat(tools=[search]).tool_choice) == ([], "none")
    converted = chat(tools=[search, WEATHER, CUSTOM, SPACE])
    assert (converted.tool_choice, converted.draws_call) == ("auto", True)
    assert [tool.function.name for tool in converted.tools or ()] == [
        "weather",
        "shell",
        "home__weather",
    ]
    assert (converted.tools or ())[1].function.parameters == CUSTOM_PARAMETERS
    assert called_tools(decoded(tools=[WEATHER, CUSTOM, SPACE]).tools) == {
        "weather": CalledTool("weather"),
        "shell": CalledTool("shell", None, True),
        "home__weather": CalledTool("weather", "home"),
    }


@pytest.mark.parametrize(
    ("tools", "name"),
    [([SPACE], "home__weather"), ([SPACE, WEATHER], "weather"), ([WEATHER], "weather")],
)
def test_namespace_function_can_be_chosen_by_its_name(tools: list[Any], name: str) -> None:
    assert decoded(tools=tools, tool_choice=NAMED).tool_choice == {**NAMED, "name": name}
    meant = chat(tools=tools, tool_choice=NAMED).tool_choice
    assert isinstance(meant, NamedToolChoice)
    assert meant.names() == [name]


@pytest.mark.parametrize(
    ("choice", "repeated", "meant"),
    [
        (None, "auto", "auto"),
        ("required", "required", "required"),
        ("none", "none", "none"),
        (
            {"type": "mcp", "server_label": "x"},
            {"server_label": "x", "type": "mcp", "name": None},
            "auto",
        ),
    ],
)
def test_response_repeats_the_requested_tool_choice_which_defaults_to_auto(
    choice: Any, repeated: Any, meant: str
) -> None:
    fields = {"tools": [WEATHER], **({} if choice is None else {"tool_choice": choice})}
    converted = chat(**fields)
    assert (decoded(**fields).tool_choice, converted.tool_choice) == (repeated, meant)
    assert converted.draws_call is (choice is None)
    assert converted.parallel_tool_calls is False


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "weather"}])
def test_forced_tool_choice_becomes_auto_after_a_tool_result(
    choice: Any,
) -> None:
    later = [HELLO, CALL, RESULT, {"role": "assistant", "content": "Rain."}, HELLO]
    for conversation in (later[:3], later[:4]):
        converted = chat(tools=[WEATHER], tool_choice=choice, input=conversation)
        assert (converted.tool_choice, converted.after_results) == ("auto", True)
    converted = chat(tools=[WEATHER], tool_choice=choice, input=later)
    first = chat(tools=[WEATHER], tool_choice=choice, input=[HELLO])
    assert (converted.tool_choice, converted.after_results) == (first.tool_choice, False)
    assert chat(tools=[WEATHER], tool_choice="none", input=later).tool_choice == "none"


@pytest.fixture(scope="module")
def sdk_tools() -> TypeAdapter[Any]:
    """What the SDK takes for a tool. Importing its types takes half a second."""
    from openai.types.responses.tool import Tool

    return TypeAdapter(Tool)


@pytest.fixture(scope="module")
def sdk_choices() -> TypeAdapter[Any]:
    """What the SDK takes for a choice of tools."""
    from openai.types.responses.response import ToolChoice

    return TypeAdapter(ToolChoice)


@pytest.mark.parametrize("tool_fields", TOOL_FIELDS, ids=itemgetter("type"))
def test_tool_schema_accepts_the_same_tools_as_the_openai_sdk(
    tool_fields: dict[str, Any], sdk_tools: TypeAdapter[Any]
) -> None:
    wrong = [
        {**tool_fields, key: value}
        for key in tool_fields
        for value in (None, 5, "x", [], {}, [5], {"type": "x"})
    ]
    for tool in (tool_fields, *wrong):
        try:
            expected = sdk_tools.validate_python(tool).model_dump(mode="json", by_alias=True)
        except ValueError:
            with pytest.raises(ConversionError) as caught:
                convert_tools([tool])
            assert tool is not tool_fields and caught.value.path[:2] == (0, "FunctionTool")
            continue
        (converted,) = convert_tools([tool])
        assert tool is not tool_fields or list(converted.items()) == list(expected.items())


@pytest.mark.parametrize("choice", CHOICE_FIELDS, ids=itemgetter("type"))
def test_returned_tool_choice_has_all_fields_that_the_openai_sdk_defines(
    choice: dict[str, Any], sdk_choices: TypeAdapter[Any]
) -> None:
    expected = sdk_choices.validate_python(choice).model_dump(mode="json", by_alias=True)
    assert list(convert_tool_choice(choice).items()) == list(expected.items())
