"""Unchecked tool calls of scripts have arguments that are any text, in every API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.running_server import RunningServer, running_server

TEXTS = ('{"city": ', "", "[1, 2]", '{"a": 1}{"b": 2}', "not JSON", '{ "b" : 1.0 }')
TOOL = {"name": "f", "description": "d"}
SCHEMA = {"type": "object", "properties": {}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    calls = [{"name": "f", "arguments": "{{ user }}", "unchecked": True, "id": "c1"}]
    script = tmp_path_factory.mktemp("script") / "script.yaml"
    script.write_text(json.dumps({"rules": [{"then": {"tool_calls": calls}}]}))
    flags = ("--force-dummy-tokenizer", "--served-model-name", "m", "--script", str(script))
    with running_server(*flags) as running:
        yield running


def post(server: RunningServer, path: str, **body: Any) -> requests.Response:
    answer = requests.post(server.url + path, json={"model": "m", **body}, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer


def events_of(answer: requests.Response) -> list[Any]:
    """The JSON of the events of a stream."""
    lines = answer.text.split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("has_tools", [True, False])
def test_chat_sends_arguments_as_they_are_written(
    server: RunningServer, text: str, has_tools: bool
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if has_tools:
        body["tools"] = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
    choice = post(server, "/v1/chat/completions", **body).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": text}
    assert choice["finish_reason"] == "tool_calls"
    streamed = ""
    for event in events_of(post(server, "/v1/chat/completions", **body, stream=True)):
        for call in event["choices"][0]["delta"].get("tool_calls") or ():
            streamed += call["function"].get("arguments") or ""
    assert streamed == text


@pytest.mark.parametrize("text", TEXTS)
def test_responses_send_arguments_as_they_are_written(server: RunningServer, text: str) -> None:
    tools = [{"type": "function", **TOOL, "parameters": SCHEMA}]
    body: dict[str, Any] = {"input": [{"role": "user", "content": text}], "tools": tools}
    items = post(server, "/v1/responses", **body).json()["output"]
    assert [item["arguments"] for item in items if item["type"] == "function_call"] == [text]
    events = events_of(post(server, "/v1/responses", **body, stream=True))
    deltas = [event for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(event["delta"] for event in deltas) == text


@pytest.mark.parametrize("text", TEXTS)
def test_messages_stream_arguments_as_they_are_written(server: RunningServer, text: str) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text or "."}],
        "max_tokens": 99,
        "tools": [{**TOOL, "input_schema": SCHEMA}],
    }
    events = events_of(post(server, "/v1/messages", **body, stream=True))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == (text or ".")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"city": ', "Expecting value: line 1 column 10 (char 9)"),
        ('{"a": 1}{"b": 2}', "Extra data: line 1 column 9 (char 8)"),
        ("not JSON", "Expecting value: line 1 column 1 (char 0)"),
        ("[1, 2]", "input_value=[1, 2], input_type=list]"),
        ('{"a": NaN}', "Out of range float values are not JSON compliant"),
    ],
)
def test_whole_message_with_malformed_arguments_is_vllms_error(
    server: RunningServer, text: str, message: str
) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 99}
    answer = requests.post(f"{server.url}/v1/messages", json={"model": "m", **body}, timeout=20)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "BadRequestError"
    assert message in error["message"]


@pytest.mark.parametrize(
    ("text", "expected"), [('{ "b" : 1.0 }', {"input": {"b": 1.0}}), ("null", {})]
)
def test_whole_message_has_the_arguments_as_an_object(
    server: RunningServer, text: str, expected: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": text}]
    (block,) = post(server, "/v1/messages", messages=messages, max_tokens=99).json()["content"]
    assert {name: value for name, value in block.items() if name == "input"} == expected
    assert block["type"] == "tool_use"
