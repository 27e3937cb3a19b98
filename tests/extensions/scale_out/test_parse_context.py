"""What a rendered request tells about its reply's parser and about transfers, by vLLM's version."""

from functools import cache
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of

CHAT = "/v1/chat/completions/render"
MESSAGES = "/v1/messages/render"
COMPLETIONS = "/v1/completions/render"
RESPONSES = "/v1/responses/render"
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 3},
    MESSAGES: {"model": "m", "messages": HELLO, "max_tokens": 3},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 3},
    RESPONSES: {"input": "hi", "max_output_tokens": 3},
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
SHOWN_PING = {
    "type": "function",
    "function": {"name": "ping", "description": None, "parameters": {"type": "object"}},
}
TEMPLATE_KWARGS = {
    "cohere_format": "cmd4",
    "add_generation_prompt": True,
    "continue_final_message": False,
}
DEFAULTS = {
    "tools": None,
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "chat_template_kwargs": TEMPLATE_KWARGS,
    "history_tool_call_cnt": 0,
}
TRANSFER = {"kv_transfer_params": {"do_remote_decode": True}}


@cache
def client_of(version: str, *flags: str) -> Client:
    common = ("--force-dummy-tokenizer", "--enable-scale-out", "--served-model-name", "m")
    parser = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    return app_of("--vllm-version", version, *common, *parser, *flags).test_client()


def rendered(client: Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, json=BODIES[path] | fields)
    assert answer.status_code == 200, answer.text
    parsed = answer.get_json()
    if path == COMPLETIONS:
        [parsed] = parsed
    result: dict[str, Any] = parsed
    return result


@pytest.mark.parametrize(("path", "choice"), [(CHAT, "none"), (MESSAGES, None)])
def test_parse_context_without_tools_has_the_default_values_of_vllm(
    path: str, choice: str | None
) -> None:
    request = rendered(client_of("0.33"), path)
    assert request["parse_context"] == DEFAULTS | {"tool_choice": choice}
    names = list(request)
    assert names.index("parse_context") == names.index("output_mode") + 1


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({"tools": [{"name": "ping", "input_schema": {"type": "object"}}]}, "auto"),
        ({"tool_choice": {"type": "none"}}, "none"),
    ],
)
def test_parse_context_of_a_message_contains_its_tool_choice(
    fields: dict[str, Any], choice: str
) -> None:
    context = rendered(client_of("0.33"), MESSAGES, **fields)["parse_context"]
    assert context["tool_choice"] == choice


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES])
def test_parse_context_of_completions_and_responses_is_null(path: str) -> None:
    assert rendered(client_of("0.33"), path)["parse_context"] is None


@pytest.mark.parametrize("path", BODIES)
def test_version_0_32_renders_no_parse_context(path: str) -> None:
    assert "parse_context" not in rendered(client_of("0.32"), path)


def test_parse_context_contains_the_fields_that_a_parser_reads() -> None:
    function = {"id": "a", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [function, function | {"id": "b"}]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "tool", "tool_call_id": "b", "content": "x"},
    ]
    chat = {"messages": messages, "tools": [PING], "parallel_tool_calls": False}
    context = rendered(client_of("0.33"), CHAT, **chat, include_reasoning=False)["parse_context"]
    assert context == DEFAULTS | {
        "tools": [SHOWN_PING],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "include_reasoning": False,
        "history_tool_call_cnt": 2,
    }


def test_parse_context_contains_the_tools_and_the_tool_choice() -> None:
    tool = {"type": "function", "function": PING["function"] | {"strict": True}}
    choice = {"type": "function", "function": {"name": "ping"}}
    context = rendered(client_of("0.33"), CHAT, tools=[tool], tool_choice=choice)["parse_context"]
    assert context["tool_choice"] == choice
    assert context["tools"] == [
        {"type": "function", "function": SHOWN_PING["function"] | {"strict": True}}
    ]


def test_parse_context_omits_template_arguments_that_are_null_or_auto() -> None:
    flags = ("--default-chat-template-kwargs", '{"cohere_format": "cmd3", "a": 1}')
    kwargs = {"a": None, "b": "auto", "c": 2}
    chat = {"chat_template_kwargs": kwargs, "reasoning_effort": "none"}
    context = rendered(client_of("0.33", *flags), CHAT, **chat)["parse_context"]
    assert context["chat_template_kwargs"] == TEMPLATE_KWARGS | {
        "cohere_format": "cmd3",
        "a": 1,
        "c": 2,
        "reasoning_effort": "none",
        "enable_thinking": False,
    }


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_transfer_parameters_are_rendered_next_to_the_sampling_parameters(path: str) -> None:
    request = rendered(client_of("0.33"), path, **TRANSFER)
    assert request["kv_transfer_params"] == TRANSFER["kv_transfer_params"]
    assert "extra_args" not in request["sampling_params"]
    request = rendered(client_of("0.33"), path, **TRANSFER, vllm_xargs={"a": 1})
    assert request["sampling_params"]["extra_args"] == {"a": 1}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_version_0_32_renders_transfer_parameters_as_extra_arguments(path: str) -> None:
    request = rendered(client_of("0.32"), path, **TRANSFER, return_token_ids=True)
    assert request["kv_transfer_params"] is None
    assert request["return_token_ids"] is None
    assert request["sampling_params"]["extra_args"] == TRANSFER


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_rendered_request_keeps_the_return_token_ids_field(path: str) -> None:
    assert rendered(client_of("0.33"), path, return_token_ids=True)["return_token_ids"] is True
    assert rendered(client_of("0.33"), path)["return_token_ids"] is None
