"""How vLLM 0.32.0 streams a tool call, and what it makes of one that the limit cuts off."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.conformance.calls import CHAT, DONE, chat, choices, events, named_events, ok, post
from tests.running_server import RunningServer

PING = {"type": "object", "properties": {}, "additionalProperties": False}
CLOSED = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMED = {"type": "function", "function": {"name": "look"}}
CUT = 6
"""Tokens in which no name is complete."""


def tool(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "look", "parameters": schema}}]


def streamed(server: RunningServer, **asked: Any) -> list[dict[str, Any]]:
    """The choices of a chat's stream, behind the role."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **asked}
    chunks = events(post(server, CHAT, body))
    assert chunks[-1] == DONE
    return choices(chunks)[1:]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_is_streamed_name_first_and_then_its_arguments(vllm: RunningServer, choice: Any) -> None:
    first, *pieces, last = streamed(vllm, tools=tool(CLOSED), tool_choice=choice, max_tokens=200)
    assert list(first["delta"]) == ["content", "tool_calls"] and first["delta"]["content"] is None
    (begun,) = first["delta"]["tool_calls"]
    assert list(begun) == ["id", "type", "index", "function"] and begun["function"] == {"name": "look"}
    assert begun["id"].startswith("chatcmpl-tool-")
    arguments = ""
    for piece in pieces:
        assert piece["finish_reason"] is None and piece["delta"]["content"] is None
        ((index, function),) = ((call["index"], call["function"]) for call in piece["delta"]["tool_calls"])
        if index == 0:
            arguments += function.get("arguments", "")
    jsonschema.validate(json.loads(arguments), CLOSED)
    assert last["delta"] == {}
    assert last["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_is_cut_off_before_its_name_is_nothing_in_a_stream_and_text_in_a_whole_answer(
    vllm: RunningServer, choice: Any
) -> None:
    asked = {"tools": tool(PING), "tool_choice": choice, "max_tokens": CUT}
    (end,) = streamed(vllm, **asked)
    assert (end["delta"], end["finish_reason"]) == ({}, "length")
    whole = chat(vllm, **asked)
    message = whole["choices"][0]["message"]
    assert "tool_calls" not in message and "<tool_call>".startswith(message["content"][:11])
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == CUT


def test_a_call_that_is_cut_off_later_is_one_to_the_end_of_the_stream(vllm: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    asked = {"tools": tool(schema), "tool_choice": "required", "max_tokens": 60}
    first, *pieces = streamed(vllm, **asked)
    assert first["delta"]["tool_calls"][0]["function"] == {"name": "look"}
    assert all(list(piece["delta"]) in (["content", "tool_calls"], []) for piece in pieces)
    assert pieces[-1]["finish_reason"] == "length"
    told = "".join(
        call["function"]["arguments"] for piece in pieces for call in piece["delta"].get("tool_calls", ())
    )
    message = chat(vllm, **asked)["choices"][0]["message"]
    assert told.startswith('{"a": "') and "tool_calls" not in message
    assert message["content"].startswith('<tool_call>\n{"name": "look", "arguments": {"a": "')


@pytest.mark.parametrize("limit", [40, 60, 80])
def test_a_required_call_fits_the_limit_of_an_ordinary_client(vllm: RunningServer, limit: int) -> None:
    for _ in range(10):
        answer = chat(vllm, tools=tool(CLOSED), tool_choice="required", max_tokens=limit)
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), CLOSED)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert answer["usage"]["completion_tokens"] <= limit


def test_messages_tell_a_call_that_is_cut_off_as_chats_do(vllm: RunningServer) -> None:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "look", "input_schema": PING}],
        "tool_choice": {"type": "any"},
        "max_tokens": CUT,
    }
    (block,) = ok(post(vllm, "/v1/messages", asked))["content"]
    assert block["type"] == "text" and block["text"].startswith("<tool")
    told = named_events(post(vllm, "/v1/messages", {**asked, "stream": True}))
    assert not [event for event in told if event["type"] == "content_block_delta"]
    assert told[-2]["delta"]["stop_reason"] == "max_tokens"


def test_responses_tell_a_call_that_is_cut_off_as_chats_do(vllm: RunningServer) -> None:
    asked = {
        "input": "hi",
        "tools": [{"type": "function", "name": "look", "parameters": PING}],
        "tool_choice": "required",
        "max_output_tokens": CUT,
    }
    whole = ok(post(vllm, "/v1/responses", asked))
    (item,) = whole["output"]
    assert item["type"] == "message" and item["content"][0]["text"].startswith("<tool")
    assert whole["status"] == "incomplete"
    told = named_events(post(vllm, "/v1/responses", {**asked, "stream": True}))
    assert not [event for event in told if "arguments" in event["type"] or event.get("delta")]
    assert told[-1]["response"]["status"] == "incomplete"
