"""How vLLM 0.32.0 streams a tool call, and what it makes of one that the limit cuts off."""

import json
from typing import Any

import jsonschema
import pytest

from tests.conformance.calls import CHAT, DONE, chat, choices, events, post
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


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a chat's stream, behind the role."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    chunks = events(post(server, CHAT, body))
    assert chunks[-1] == DONE
    return choices(chunks)[1:]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_streamed_tool_call_sends_its_name_before_its_arguments(
    vllm: RunningServer, choice: Any
) -> None:
    first, *pieces, last = streamed(vllm, tools=tool(CLOSED), tool_choice=choice, max_tokens=200)
    assert list(first["delta"]) == ["content", "tool_calls"] and first["delta"]["content"] is None
    (begun,) = first["delta"]["tool_calls"]
    assert list(begun) == ["id", "type", "index", "function"] and begun["function"] == {
        "name": "look"
    }
    assert begun["id"].startswith("chatcmpl-tool-")
    arguments = ""
    for piece in pieces:
        assert piece["finish_reason"] is None and piece["delta"]["content"] is None
        ((index, function),) = (
            (call["index"], call["function"]) for call in piece["delta"]["tool_calls"]
        )
        if index == 0:
            arguments += function.get("arguments", "")
    jsonschema.validate(json.loads(arguments), CLOSED)
    assert last["delta"] == {}
    assert last["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_stream_omits_a_tool_call_that_is_truncated_before_its_name(
    vllm: RunningServer, choice: Any
) -> None:
    fields = {"tools": tool(PING), "tool_choice": choice, "max_tokens": CUT}
    (end,) = streamed(vllm, **fields)
    assert (end["delta"], end["finish_reason"]) == ({}, "length")
    whole = chat(vllm, **fields)
    message = whole["choices"][0]["message"]
    assert "tool_calls" not in message and "<tool_call>".startswith(message["content"][:11])
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == CUT
