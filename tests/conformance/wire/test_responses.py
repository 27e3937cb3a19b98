"""The Responses family on the wire: recorded exchanges, keys, order, tools, errors, hostile bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.conformance.calls import error_of, named_events, ok, post
from tests.conformance.recording import ENVIRONMENT, FLAGS
from tests.running_server import RunningServer, running_server

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


@pytest.fixture(scope="module")
def thinking() -> Iterator[RunningServer]:
    """As the recorded server, but the model thinks."""
    with running_server(*FLAGS, "--reasoning-parser", "qwen3", env=ENVIRONMENT) as server:
        yield server


@pytest.fixture(scope="module")
def echoing() -> Iterator[RunningServer]:
    """As the recorded server, but it repeats."""
    with running_server(*FLAGS, "--mode", "echo", "--multimodal", env=ENVIRONMENT) as server:
        yield server


def send(server: RunningServer, **asked: Any) -> requests.Response:
    return post(server, PATH, {**ASKED, **asked})


def respond(server: RunningServer, **asked: Any) -> dict[str, Any]:
    return ok(send(server, **asked))


def stream(server: RunningServer, **asked: Any) -> list[dict[str, Any]]:
    """The JSON of each event, whose type is its name and whose number is its place."""
    events = named_events(send(server, stream=True, **asked))
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


def test_what_was_asked_is_repeated(vllm: RunningServer) -> None:
    asked = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "me",
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "max_tool_calls": 3,
        "service_tier": "flex",
        "truncation": "auto",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    response = respond(vllm, **asked)
    assert {name: response[name] for name in asked} == asked
    assert respond(vllm, reasoning={"effort": "low"})["reasoning"]["effort"] == "low"


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "required"}])
def test_one_function_is_called(vllm: RunningServer, choice: dict[str, Any]) -> None:
    for _ in range(3):
        response = respond(vllm, tools=[WEATHER, TIME], **choice, **FREELY)
        (call,) = response["output"]
        assert (call["type"], call["status"]) == ("function_call", "completed")
        assert call["id"].removeprefix("fc_") == call["call_id"].removeprefix("chatcmpl-tool-")
        assert call["name"] in ("weather", "time")
        if call["name"] == "weather":
            assert {"city", "days"} <= json.loads(call["arguments"]).keys()
        assert response["tool_choice"] == choice.get("tool_choice", "auto")
        assert [tool["name"] for tool in response["tools"]] == ["weather", "time"]


def test_custom_tools_and_functions_of_a_namespace_are_called(vllm: RunningServer) -> None:
    shell = {"type": "custom", "name": "shell"}
    events = stream(vllm, tools=[shell], **FREELY)
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "custom_tool_call_input.delta"),
        *("custom_tool_call_input.done", "output_item.done", "completed"),
    ]
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "shell", events[-3]["input"])
    home = {"type": "namespace", "name": "home", "description": "d", "tools": [TIME]}
    response = respond(vllm, tools=[home], tool_choice={"type": "function", "name": "time"}, **FREELY)
    assert [(item["name"], item["namespace"]) for item in response["output"]] == [("time", "home")]
    assert response["tool_choice"]["name"] == "home__time"
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    asked = [{"role": "user", "content": "hi"}, call, *response["output"], result]
    assert text_of(respond(vllm, tools=[shell, home], input=asked))


def test_allowed_tools_may_be_called_and_need_not(vllm: RunningServer) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]}
    found = set()
    for _ in range(200):
        (item,) = respond(vllm, tools=[WEATHER, TIME], tool_choice=choice, **FREELY)["output"]
        assert item.get("name", "time") == "time"
        found.add(item["type"])
        if len(found) == 2:
            break
    assert found == {"message", "function_call"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Say this.", "Say this."),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Look"},
                        {"type": "input_image", "image_url": "https://images.invalid/a.png"},
                    ],
                }
            ],
            "Look\nimage: https://images.invalid/a.png",
        ),
        # More tokens than the limit of three, whatever the tokenizer: the recorded one is not always here.
        ([{"type": "function_call_output", "call_id": "a", "output": "Rain all day."}], "Rain all day."),
        ([{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}], "f({})"),
    ],
)
def test_echo_repeats_the_last_item(echoing: RunningServer, asked: Any, said: str) -> None:
    response = respond(echoing, input=asked, instructions="Never say this.")
    assert text_of(response) == said
    assert response["status"] == "incomplete"
    assert respond(echoing, input=asked, **FREELY)["status"] == "completed"


def test_thoughts_can_be_hidden_or_left_out(thinking: RunningServer) -> None:
    hidden = respond(thinking, include_reasoning=False, **LOGPROBS, **FREELY)
    assert [item["type"] for item in hidden["output"]] == ["message"]
    assert hidden["output"][0]["content"][0]["logprobs"] is None
    assert hidden["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert respond(thinking, include_reasoning=False, **LOGPROBS)["output"] == []
    without = respond(thinking, reasoning={"effort": "none"}, **FREELY)
    assert [item["type"] for item in without["output"]] == ["message"]
    assert without["usage"]["output_tokens_details"]["reasoning_tokens"] == 0


def test_a_reply_has_the_form_that_was_asked_for(vllm: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    response = respond(vllm, text={"format": form}, **FREELY)
    assert isinstance(json.loads(text_of(response))["a"], int)
    assert response["text"] == {
        "format": {**form, "description": None, "strict": None},
        "verbosity": None,
    }
    response = respond(vllm, text={"format": {"type": "json_object"}}, **FREELY)
    assert isinstance(json.loads(text_of(response)), dict)
    response = respond(vllm, structured_outputs={"choice": ["yes"]}, **FREELY)
    assert text_of(response) == "yes"


def test_the_id_is_that_of_the_request(vllm: RunningServer) -> None:
    got = post(vllm, PATH, ASKED, **{"X-Request-Id": "mine"})
    assert (got.json()["id"], got.headers["X-Request-Id"]) == ("resp_mine", "mine")
    got = post(vllm, PATH, {**ASKED, "request_id": "own"}, **{"X-Request-Id": "mine"})
    assert got.json()["id"] == "own"


def test_a_prompt_that_is_too_long_is_cut_on_demand(vllm: RunningServer) -> None:
    words = "word " * 3000
    assert error_of(send(vllm, input=words))[:2] == (400, "BadRequestError")
    response = respond(vllm, input=words, truncation="auto", max_output_tokens=8)
    assert response["usage"]["input_tokens"] == 2040
    assert respond(vllm, input=words, truncation="auto", **FREELY)["usage"]["output_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "status", "kind", "param"),
    [
        ({"model": "other"}, 404, "NotFoundError", "model"),
        ({"tools": [{"type": "oven"}]}, 400, "Bad Request", "body.tools.0.FunctionTool.name"),
        ({"max_output_tokens": 4096}, 400, "BadRequestError", "max_output_tokens"),
        ({"background": True}, 400, "invalid_request_error", "background"),
        ({"previous_response_id": "resp_1"}, 404, "invalid_request_error", "response_id"),
        ({"input": "w" * (5 << 20)}, 413, "Request Entity Too Large", None),
    ],
)
def test_errors_have_their_status_before_a_stream_begins(
    vllm: RunningServer, asked: dict[str, Any], status: int, kind: str, param: str | None, stream: bool
) -> None:
    assert error_of(send(vllm, stream=stream, **asked)) == (status, kind, param)


def test_what_the_engine_refuses_ends_a_stream_with_a_failed_response(vllm: RunningServer) -> None:
    asked = {**LOGPROBS, "top_logprobs": 21}
    events = stream(vllm, **asked)
    assert kinds(events) == ["created", "in_progress", "failed"]
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert error_of(send(vllm, **asked)) == (400, "BadRequestError", "logprobs")


def test_without_a_store_there_is_nothing_to_read(vllm: RunningServer) -> None:
    response = respond(vllm)
    for got in (
        requests.get(f"{vllm.url}{PATH}/{response['id']}", timeout=20),
        requests.get(f"{vllm.url}{PATH}/{response['id']}?stream=true", timeout=20),
        requests.post(f"{vllm.url}{PATH}/{response['id']}/cancel", timeout=20),
    ):
        assert error_of(got) == (404, "invalid_request_error", "response_id")


@pytest.mark.parametrize("stream", ["false", "true"])
def test_what_is_nested_too_deeply_is_a_bad_request(vllm: RunningServer, stream: str) -> None:
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
