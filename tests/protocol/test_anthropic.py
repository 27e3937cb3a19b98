"""A request of the Anthropic family: what it may be, and the chat that it means."""

import json
from typing import Any

import pytest

from app.serving.protocol.anthropic import BILLING_HEADER, Asked, CountTokensRequest, MessagesRequest
from app.serving.protocol.anthropic import chat_request as to_chat
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.decoding import decode
from app.serving.protocol.messages import Message
from app.serving.protocol.options import NamedToolChoice
from tests.protocol.refused import refused

HELLO = {"role": "user", "content": "hi"}
WEATHER = {"name": "weather", "description": "How it is", "input_schema": {"properties": {"city": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def decoded(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [HELLO], **fields}
    return decode(json.dumps(body).encode(), "application/json", MessagesRequest)


def chat_request(asked: Asked, merges: bool = False) -> ChatCompletionRequest:
    return to_chat(asked, lambda: merges, lambda: "none")


def chat(**fields: Any) -> ChatCompletionRequest:
    return chat_request(decoded(**fields))


def messages(*turns: dict[str, Any], **fields: Any) -> list[Message]:
    return chat(messages=list(turns), **fields).messages


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


TOOL = {"type": "tool_reference", "name": "weather"}
DEFINED = {"type": "tool_definition", "definition": WEATHER}


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    return refused(lambda: chat(**fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "body.model"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "body.messages.0.role"),
        ({"messages": [user({"type": "audio"})]}, "body.messages.0.content"),
        ({"messages": [user({"type": "tool_addition", "tool": TOOL})]}, "body.messages.0"),
        (
            {"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]},
            "body.messages.0.content",
        ),
        ({"messages": [change("tool_removal", DEFINED)]}, "body.messages.0.content"),
        ({"system": [{"type": "tool_addition", "tool": TOOL}]}, "body.system"),
        ({"max_tokens": 0}, "body.max_tokens"),
        ({"stop_sequences": list("abcde")}, "body.stop_sequences"),
        ({"tools": [{"name": "weather"}]}, "body.tools.0.input_schema"),
        ({"tool_choice": {"type": "tool"}}, "body.tool_choice"),
        ({"tool_choice": {"type": "maybe"}}, "body.tool_choice.type"),
        ({"thinking": {"type": "deep"}}, "body.thinking"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "body.thinking.adaptive.display"),
        ({"thinking": {"type": "enabled"}}, "body.thinking.enabled.budget_tokens"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 4096},
            "body.thinking.enabled.budget_tokens",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "body"),
        ({"cache_salt": ""}, "body.cache_salt"),
    ],
)
def test_what_does_not_fit_the_schema_is_a_bad_request_at_its_place(
    fields: dict[str, Any], param: str
) -> None:
    assert refusal(**fields) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"tool_choice": {"type": "tool", "name": "other"}, "tools": [WEATHER]}, "tool_choice"),
    ],
)
def test_what_breaks_a_rule_of_chats_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields) == (400, "BadRequestError", param)


def test_sampling_and_limits_keep_their_values() -> None:
    asked = chat(
        max_tokens=7,
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stream=True,
        cache_salt="salt",
        kv_transfer_params={"do_remote_decode": True},
        vllm_xargs={"a": 1},
        priority=-2,
    )
    assert asked.model == "m"
    assert asked.max_tokens == asked.max_completion_tokens == 7
    assert (asked.stop, asked.temperature, asked.top_p, asked.top_k) == (["END"], 0.5, 0.9, 3)
    assert asked.stream is True
    assert (asked.cache_salt, asked.vllm_xargs, asked.priority) == ("salt", {"a": 1}, -2)
    assert asked.kv_transfer_params == {"do_remote_decode": True}


def test_system_turns_stay_unless_the_template_wants_all_of_them_first() -> None:
    note, blocks = {"role": "system", "content": "Now be long."}, [text(f"{BILLING_HEADER}: cc=1"), text("!")]
    asked = decoded(messages=[note, HELLO, {"role": "system", "content": blocks}], system="Be brief. ")
    first = {"role": "system", "content": "Be brief. "}
    assert chat_request(asked).messages == [first, note, HELLO, {"role": "system", "content": "!"}]
    assert chat_request(asked, merges=True).messages == [
        {"role": "system", "content": "Be brief. Now be long.!"},
        HELLO,
    ]


def test_system_turns_add_and_remove_tools() -> None:
    later, other = {**WEATHER, "defer_loading": True}, {**WEATHER, "name": "time"}
    defined = {"type": "tool_definition", "definition": other}
    added = [change("tool_addition", TOOL), change("tool_addition", defined)]
    for turns, names in (
        ([], ["weather"]),
        (added, ["weather", "time"]),
        ([change("tool_removal", TOOL)], []),
    ):
        tools = chat(messages=[HELLO, *turns], tools=[later]).tools or []
        assert [tool.function.name for tool in tools] == names
    assert (chat(messages=[HELLO, *added], tools=[later]).tools or [])[0].function.defer_loading is None
    unknown = change("tool_removal", {"type": "tool_reference", "name": "oven"})
    assert refusal(messages=[HELLO, unknown]) == (400, "BadRequestError", None)


def test_a_round_of_tools_becomes_calls_and_their_results() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    thought = {"type": "thinking", "thinking": "Look outside.", "signature": "s"}
    assert messages(HELLO, assistant(thought, text("Let me see."), call), user(text("And?"), result)) == [
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


def test_a_result_of_several_items_is_one_text_then_images_then_references() -> None:
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
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "tool_reference", "name": "weather"}]},
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "none", "name": "weather"}, "none"),
    ],
)
def test_a_choice_among_tools_keeps_its_meaning(choice: dict[str, Any] | None, wanted: str) -> None:
    assert chat(tools=[WEATHER], tool_choice=choice).tool_choice == wanted


def test_a_named_tool_stays_named() -> None:
    choice = chat(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}).tool_choice
    assert isinstance(choice, NamedToolChoice)
    assert choice.function is not None and choice.function.name == "weather"


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize(
    "choice", [None, *({"type": kind, "name": "weather"} for kind in ("auto", "any", "none", "tool"))]
)
def test_without_tools_none_is_called(
    tools: list[dict[str, Any]] | None, choice: dict[str, Any] | None
) -> None:
    asked = chat(tools=tools, tool_choice=choice)
    assert (asked.tools, asked.tool_choice) == (None, "none")


def test_a_wanted_schema_becomes_the_response_format() -> None:
    form = chat(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}).response_format
    assert form is not None and form.json_schema is not None
    assert (form.type, form.json_schema.json_schema) == ("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("fields", "effort", "budget"),
    [
        ({}, None, None),
        ({"output_config": {"effort": "max"}}, "max", None),
        ({"thinking": {"type": "disabled"}}, "none", None),
        ({"thinking": {"type": "disabled", "budget_tokens": 5000}}, "none", None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "none", None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}, None, 1024),
    ],
)
def test_thinking_is_bounded_by_a_budget_and_switched_off_by_effort_none(
    fields: dict[str, Any], effort: str | None, budget: int | None
) -> None:
    asked = chat(**fields)
    assert (asked.reasoning_effort, asked.thinking_token_budget) == (effort, budget)


def test_counting_takes_the_same_conversation() -> None:
    body = {
        "model": "m",
        "messages": [HELLO],
        "system": "Be brief.",
        "tools": [WEATHER],
        "chat_template_kwargs": {"enable_thinking": False},
        "output_config": {"effort": "low"},
        "thinking": {"type": "disabled"},
    }
    counted = chat_request(decode(json.dumps(body).encode(), "application/json", CountTokensRequest))
    sent = chat(**body)
    assert counted.messages == sent.messages
    assert counted.tools == sent.tools
    assert counted.reasoning_effort == sent.reasoning_effort == "none"
    assert counted.chat_template_kwargs == sent.chat_template_kwargs == {"enable_thinking": False}


HEADER = f"{BILLING_HEADER}: cc=1"
ASKED = text("What is it?")


@pytest.mark.parametrize(
    ("block", "url"),
    [
        ({"source": {"type": "url", "url": "http://a/b.png"}}, "http://a/b.png"),
        (
            {"source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
            "data:image/png;base64,QQ==",
        ),
        ({"source": {"data": "QUI="}}, "data:image/jpeg;base64,QUI="),
    ],
)
def test_an_image_becomes_a_url(block: dict[str, Any], url: str) -> None:
    (message,) = messages(user({"type": "image", **block}, ASKED))
    assert message["content"] == [{"type": "image_url", "image_url": {"url": url}}, ASKED]


@pytest.mark.parametrize(
    ("turns", "system", "expected"),
    [
        ([HELLO], [text(HEADER), text("Be brief. "), text("Be kind.")], "Be brief. Be kind."),
        ([{"role": "system", "content": HEADER}, HELLO], [text(HEADER)], None),
        ([user(text("hi"))], None, None),
        *(([user(block, text("hi"))], None, None) for block in ({"type": "image"}, {"type": "text"})),
        ([HELLO, user(text(""))], None, None),
    ],
)
def test_only_what_shows_something_is_left(turns: list[Any], system: Any, expected: str | None) -> None:
    first = [{"role": "system", "content": expected}] if expected else []
    assert messages(*turns, system=system) == [*first, HELLO]


@pytest.mark.parametrize(("content", "told"), [("sunny", "Tool result: sunny"), (None, "Tool result: ")])
def test_a_result_that_the_assistant_tells_is_its_text(content: str | None, told: str) -> None:
    assert messages(HELLO, assistant({"type": "tool_result", "content": content}))[-1]["content"] == told
