"""Parse-time rules of chats and of text completions, and the forms of a prompt."""

from typing import Any

import pytest

from app.core.protocol.completions import MAX_PROMPTS
from app.core.protocol.rules import check_structured_outputs
from app.core.server.http.errors import ApiError
from tests.core.protocol.refused import chat, completion, refused

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DEVELOPER = "body.messages.0.ChatCompletionDeveloperMessageParam"
TOOL_CALL = "body.0.ChatCompletionMessageFunctionToolCallParam"


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    return refused(chat, **fields)


def named(name: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def allowed(tools: object) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": -2, "logprobs": True}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        *(({"prompt_logprobs": number}, "prompt_logprobs") for number in (-2, -0.5)),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        (
            {"logprob_token_ids": [1], "logprobs": True, "use_beam_search": True},
            "logprob_token_ids",
        ),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": named("tides"), "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": allowed([]), "tools": [TOOL]}, "tool_choice.allowed_tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, None),
        (
            {
                "structured_outputs": {"regex": "a"},
                "tools": [TOOL],
                "tool_choice": named("weather"),
            },
            None,
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, None),
        *(
            ({"cache_salt": salt}, "cache_salt")
            for salt in ("", 5, "a@b", "a" * 129, "/", "\\", "\0")
        ),
        *(
            ({"thinking_token_budget": budget}, "thinking_token_budget")
            for budget in (-2, True, 1.0, "1")
        ),
        ({"repetition_detection": {"max_pattern_size": 3, "min_count": 1}}, None),
    ],
)
def test_chat_validation_error_names_the_top_level_field(
    fields: dict[str, Any], param: str | None
) -> None:
    assert refusal(**fields) == (400, "BadRequestError", param)


@pytest.mark.parametrize("tag", [None, '{"a": NaN}', "", "[]", "{", {}, 7])
def test_structural_tag_must_be_a_json_object_in_a_string(tag: object) -> None:
    if tag in (None, '{"a": NaN}'):
        check_structured_outputs({"structural_tag": tag}, None)
        return
    with pytest.raises(ApiError, match="Invalid structured_outputs structural_tag"):
        check_structured_outputs({"structural_tag": tag}, None)


def test_first_invalid_chat_field_in_the_order_of_vllm_is_reported() -> None:
    assert refusal(tools=[], cache_salt="", stream_options={"include_usage": True})[2] == "tools"
    assert refusal(cache_salt="", stream_options={"include_usage": True})[2] == "stream_options"
    assert refusal(cache_salt="", response_format={"type": "json_schema"})[2] == "response_format"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "name": "n"},
        {"role": "narrator", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
        {"role": "function", "content": None, "name": "f"},
        {"role": "user", "content": "x", "anything": {"else": 1}},
        {"role": "narrator", "tool_call_id": "a", "reasoning": "b", "task": "c", "tools": None},
    ],
)
def test_messages_of_every_role_keep_their_keys(message: dict[str, Any]) -> None:
    assert chat(messages=[message]).messages == [message]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (5, DEVELOPER),
        ({"content": "x"}, DEVELOPER + ".role"),
        ({"role": "user", "content": 5}, DEVELOPER + ".content"),
        ({"role": "developer", "content": "x", "name": 5}, DEVELOPER + ".name"),
        (
            {"role": "narrator", "content": "x", "tools": [{"type": "function", "function": {}}]},
            DEVELOPER + ".role",
        ),
        ({"role": "function", "content": None}, DEVELOPER + ".content"),
        ({"role": "assistant", "content": {}, "function_call": {"name": "f"}}, DEVELOPER + ".role"),
        ({"role": "assistant", "tool_calls": [5]}, TOOL_CALL),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, TOOL_CALL + ".function"),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]},
            TOOL_CALL + ".function",
        ),
    ],
)
def test_error_for_an_invalid_message_refers_to_the_developer_schema(
    message: object, param: str
) -> None:
    assert refusal(messages=[message]) == (400, "Bad Request", param)


def test_reasoning_content_is_accepted_as_an_alias_of_reasoning() -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": "because"}
    assert chat(messages=[message]).messages == [
        {"role": "assistant", "content": "x", "reasoning": "because"}
    ]


# Text completions


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "body.prompt"),
        ([1, "a"], "body.prompt.1"),
        (["a", 1], "body.prompt.0"),
        ([[1, -1]], "body.prompt.0"),
    ],
)
def test_prompt_that_mixes_texts_and_token_ids_is_rejected(prompt: object, param: str) -> None:
    assert refused(completion, prompt=prompt) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None, "prompt_embeds": []}, "prompt"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (
            {"logprob_token_ids": [1], "logprobs": 1, "echo": True, "max_tokens": 0},
            "logprob_token_ids",
        ),
        ({"use_beam_search": True, "echo": True, "logprobs": 1}, "echo"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_completion_validation_error_names_the_top_level_field(
    fields: dict[str, Any], param: str
) -> None:
    assert refused(completion, **fields) == (400, "BadRequestError", param)
