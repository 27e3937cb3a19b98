"""A request of the Anthropic family: what it may be, and the chat that it means."""

import json
from typing import Any

import pytest

from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.decoding import decode
from app.extensions.anthropic.protocol import BILLING_HEADER, AnthropicRequest, MessagesRequest
from app.extensions.anthropic.protocol import chat_request as to_chat
from tests.core.protocol.refused import refused

HELLO = {"role": "user", "content": "hi"}
WEATHER = {
    "name": "weather",
    "description": "How it is",
    "input_schema": {"properties": {"city": {}}},
}


def decoded(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [HELLO], **fields}
    return decode(json.dumps(body).encode(), "application/json", MessagesRequest)


def chat_request(
    anthropic_request: AnthropicRequest, merges: bool = False
) -> ChatCompletionRequest:
    return to_chat(anthropic_request, lambda: merges, lambda: "none")


def chat(**fields: Any) -> ChatCompletionRequest:
    return chat_request(decoded(**fields))


def messages(*turns: dict[str, Any], **fields: Any) -> list[Message]:
    return chat(messages=list(turns), **fields).messages


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    return refused(chat, **fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "robot", "content": "hi"}]}, "body.messages.0.role"),
        ({"messages": [user({"type": "tool_addition"})]}, "body.messages.0.content"),
        ({"max_tokens": 0}, "body.max_tokens"),
        ({"tool_choice": {"type": "tool"}}, "body.tool_choice"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 4096},
            "body.thinking.enabled.budget_tokens",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "body"),
    ],
)
def test_error_for_a_field_that_violates_the_schema_names_the_field(
    fields: dict[str, Any], param: str
) -> None:
    assert refusal(**fields) == (400, "Bad Request", param)


def test_message_fields_become_the_equivalent_chat_fields() -> None:
    same = {
        **{
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "stream": True,
            "priority": -2,
        },
        **{
            "cache_salt": "salt",
            "kv_transfer_params": {"do_remote_decode": True},
            "vllm_xargs": {"a": 1},
        },
    }
    form = {"type": "json_schema", "schema": {"type": "object"}}
    converted = chat(**same, stop_sequences=["END"], output_config={"format": form})
    assert {name: getattr(converted, name) for name in same} == same
    assert (converted.stop, converted.max_completion_tokens) == (["END"], 7)
    assert (
        converted.response_format is not None and converted.response_format.json_schema is not None
    )
    assert converted.response_format.json_schema.json_schema == form["schema"]


def test_system_messages_are_merged_only_if_the_template_requires_it() -> None:
    note = {"role": "system", "content": "Now be long."}
    blocks = [text(f"{BILLING_HEADER}: cc=1"), text("!")]
    converted = decoded(
        messages=[note, HELLO, {"role": "system", "content": blocks}], system="Be brief. "
    )
    first = {"role": "system", "content": "Be brief. "}
    assert chat_request(converted).messages == [
        first,
        note,
        HELLO,
        {"role": "system", "content": "!"},
    ]
    assert chat_request(converted, merges=True).messages == [
        {"role": "system", "content": "Be brief. Now be long.!"},
        HELLO,
    ]


def test_tool_use_blocks_become_calls_and_results_become_tool_messages() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    thought = {"type": "thinking", "thinking": "Look outside.", "signature": "s"}
    assert messages(
        HELLO, assistant(thought, text("Let me see."), call), user(text("And?"), result)
    ) == [
        HELLO,
        {
            "role": "assistant",
            "reasoning": "Look outside.",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
                }
            ],
            "content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "user", "content": "And?"},
    ]


def test_tool_result_items_become_text_then_images_then_references() -> None:
    items = [
        text("one"),
        {"type": "image", "source": {"type": "url", "url": "http://a"}},
        text("two"),
        {"type": "tool_reference", "tool_name": "weather"},
        {"type": "tool_reference", "tool_name": {"not": "a name"}},
        {"type": "unknown"},
        {"type": "image"},
        {"type": "document", "source": {"type": "url", "url": "http://b"}},
    ]
    assert messages(user({"type": "tool_result", "tool_use_id": "t1", "content": items})) == [
        {"role": "tool", "tool_call_id": "t1", "content": "one\ntwo"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]},
        {
            "role": "tool",
            "tool_call_id": "t1",
            "content": [{"type": "tool_reference", "name": "weather"}],
        },
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
    ],
)
def test_anthropic_tool_choice_is_converted_to_its_openai_equivalent(
    choice: dict[str, Any] | None, wanted: str
) -> None:
    assert chat(tools=[WEATHER], tool_choice=choice).tool_choice == wanted


@pytest.mark.parametrize(
    ("fields", "effort", "budget"),
    [
        ({}, None, None),
        ({"output_config": {"effort": "max"}}, "max", None),
        ({"thinking": {"type": "disabled"}}, "none", None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}, None, 1024),
    ],
)
def test_thinking_budget_and_effort_are_converted_to_chat_fields(
    fields: dict[str, Any], effort: str | None, budget: int | None
) -> None:
    converted = chat(**fields)
    assert (converted.reasoning_effort, converted.thinking_token_budget) == (effort, budget)


ASKED = text("What is it?")


@pytest.mark.parametrize(
    ("block", "url"),
    [
        ({"source": {"type": "url", "url": "http://a/b.png"}}, "http://a/b.png"),
        (
            {"source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
            "data:image/png;base64,QQ==",
        ),
    ],
)
def test_image_block_becomes_an_image_url(block: dict[str, Any], url: str) -> None:
    (message,) = messages(user({"type": "image", **block}, ASKED))
    assert message["content"] == [{"type": "image_url", "image_url": {"url": url}}, ASKED]


def test_calls_have_the_order_of_keys_that_templates_see() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    [_, message] = messages(HELLO, assistant(call))
    assert json.dumps(message["tool_calls"]) == (
        '[{"id": "t1", "function": {"arguments": "{\\"city\\": \\"Rome\\"}", "name": "weather"}, '
        '"type": "function"}]'
    )
