"""The Responses family on the wire:

recorded exchanges, keys, order, tools, errors, hostile bodies.
"""

import json
from typing import Any

import pytest
import requests

from tests.conformance.calls import error_of, named_events, ok, post
from tests.running_server import RunningServer

PATH = "/v1/responses"
ASKED = {"model": "tiny", "input": "hi", "max_output_tokens": 3}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "How the weather is",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
TIME = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}
LOGPROBS = {"include": ["message.output_text.logprobs"]}
FREELY = {"max_output_tokens": None}


def send(server: RunningServer, **fields: Any) -> requests.Response:
    return post(server, PATH, {**ASKED, **fields})


def respond(server: RunningServer, **fields: Any) -> dict[str, Any]:
    return ok(send(server, **fields))


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The JSON of each event, whose type is its name and whose number is its place."""
    events = named_events(send(server, stream=True, **fields))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """What events tell, runs of the same told once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for k, name in enumerate(names) if not k or names[k - 1] != name]


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    text: str = item["content"][0]["text"]
    return text


def test_response_contains_calls_of_custom_tools_and_namespace_functions(
    vllm: RunningServer,
) -> None:
    shell = {"type": "custom", "name": "shell"}
    events = stream(vllm, tools=[shell], input="Use the shell.", **FREELY)
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "custom_tool_call_input.delta"),
        *("custom_tool_call_input.done", "output_item.done", "completed"),
    ]
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == (
        "custom_tool_call",
        "shell",
        events[-3]["input"],
    )
    home = {"type": "namespace", "name": "home", "description": "d", "tools": [TIME]}
    response = respond(
        vllm, tools=[home], tool_choice={"type": "function", "name": "time"}, **FREELY
    )
    assert [(item["name"], item["namespace"]) for item in response["output"]] == [("time", "home")]
    assert response["tool_choice"]["name"] == "home__time"
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    conversation = [{"role": "user", "content": "hi"}, call, *response["output"], result]
    assert text_of(respond(vllm, tools=[shell, home], input=conversation))


def test_overlong_prompt_is_rejected_unless_truncation_is_auto(vllm: RunningServer) -> None:
    words = "word " * 3000
    assert error_of(send(vllm, input=words))[:2] == (400, "BadRequestError")
    response = respond(vllm, input=words, truncation="auto", max_output_tokens=8)
    assert response["usage"]["input_tokens"] == 2047  # recorded: one token is left
    error = error_of(send(vllm, input=words, truncation="auto", **FREELY))
    assert error[:2] == (400, "invalid_request_error"), "without a limit, no token is left"


@pytest.mark.parametrize("stream", ["false", "true"])
def test_deeply_nested_responses_body_is_rejected_with_400(
    vllm: RunningServer, stream: str
) -> None:
    tool = {**WEATHER, "parameters": {"properties": {"a": {"default": "nested"}}}}
    frame = json.dumps({**ASKED, "tools": [tool], "tool_choice": "none"})
    frame = frame.replace('"hi"', f'"hi", "stream": {stream}')
    depths = [3, *range(900, 990, 10), 50_000]
    bodies = [frame.replace('"nested"', "[" * depth + "]" * depth) for depth in depths]
    headers = {"Content-Type": "application/json"}
    got = [requests.post(vllm.url + PATH, body, headers=headers, timeout=20) for body in bodies]
    assert [answer.status_code for answer in (got[0], got[-1])] == [200, 400]
    assert {answer.status_code for answer in got} == {200, 400}
    assert all(b"response.failed" not in answer.content for answer in got)
