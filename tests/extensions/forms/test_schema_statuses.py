"""Statuses of schemas on the routes of the core, and replies to schemas that only vLLM's backends accept."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.client import Client, events, in_process

FAILING = {"type": "object", "properties": {"z": False}, "required": ["z"]}
"""llguidance refuses this schema: a required property without a value."""
BROKEN = {"type": "object", "properties": {"z": False}}
"""llguidance accepts this schema, and xgrammar cannot compile it."""
INTERNAL = {
    "error": {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


@pytest.fixture(scope="module")
def tool_client() -> Iterator[Client]:
    with in_process("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as client:
        yield client


def bodies(schema: Any) -> dict[str, dict[str, Any]]:
    """Returns a request for each route, by its path."""
    messages = [{"role": "user", "content": "Hi"}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {
        "/v1/chat/completions": {"messages": messages, "response_format": form},
        "/v1/completions": {"prompt": "Hi", "structured_outputs": {"json": schema}},
    }


@pytest.mark.parametrize("path", bodies({}))
def test_schema_that_the_engine_cannot_compile_is_an_internal_error(
    client: Client, path: str
) -> None:
    answer = client.post(path, bodies(BROKEN)[path])
    assert answer.status_code == 500
    assert "Internal server error" in answer.text
    if path == "/v1/chat/completions":
        assert answer.json() == INTERNAL


@pytest.mark.parametrize("path", bodies({}))
def test_schema_that_every_backend_refuses_is_a_bad_request(client: Client, path: str) -> None:
    answer = client.post(path, bodies(FAILING)[path])
    assert answer.status_code == 400
    assert "required property 'z' is unsatisfiable" in answer.text


def test_stream_begins_before_the_internal_error(client: Client) -> None:
    path = "/v1/chat/completions"
    body = {**bodies(BROKEN)[path], "stream": True}
    first, second = events(client.post(path, body))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second == INTERNAL


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"b": {"type": "string", "required": True}}},
        {"title": 5, "type": "string"},
        {"type": []},
        {"anyOf": []},
        {"$ref": "#foo"},
        {"$ref": "http://example.com/x.json"},
        {"not": {}},
        {"oneOf": [True, True]},
        {"type": "string", "enum": [1, 2]},
        {"type": "object", "description": "x" * 600_000, "properties": {"a": {"type": "null"}}},
    ],
)
def test_schema_that_only_vllm_accepts_has_a_reply(client: Client, schema: Any) -> None:
    reply = client.chat(
        **{"response_format": bodies(schema)["/v1/chat/completions"]["response_format"]}
    )
    json.loads(reply["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
        {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
        {"type": "object", "propertyNames": {"pattern": "^a"}, "minProperties": 1,
         "additionalProperties": {"type": "null"}},
    ],
)  # fmt: skip
def test_reply_is_valid_where_the_constraint_of_vllm_is_looser(client: Client, schema: Any) -> None:
    reply = client.chat(response_format=bodies(schema)["/v1/chat/completions"]["response_format"])
    value = json.loads(reply["choices"][0]["message"]["content"])
    assert Draft202012Validator(schema).is_valid(value), value


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        (BROKEN, 400),
        ({"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}}, 200),
        ({"type": "object", "properties": {"s": {"type": "string", "minLength": -1}}}, 500),
    ],
)
def test_strict_tool_has_the_status_of_its_structural_tag(
    tool_client: Client, parameters: Any, status: int
) -> None:
    function = {"name": "f", "strict": True, "parameters": parameters}
    answer = tool_client.post(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": function}],
        },
    )
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
@pytest.mark.parametrize("strict", [False, True])
def test_required_call_fits_a_low_limit(tool_client: Client, choice: Any, strict: bool) -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    function = {"name": "find", "strict": strict, "parameters": parameters}
    for seed in range(8):
        chat = tool_client.chat(
            max_tokens=64,
            seed=seed,
            tools=[{"type": "function", "function": function}],
            tool_choice=choice,
        )
        [answer] = chat["choices"]
        assert answer["finish_reason"] in ("tool_calls", "stop")
        [call] = answer["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["q"]
        assert not answer["message"]["content"]


def test_stop_string_in_its_own_chunk_leaves_an_empty_delta(tool_client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stop": ["b"],
        "structured_outputs": {"regex": "aab[c]{30}"},
    }
    stream = events(tool_client.post("/v1/chat/completions", body))
    last = [chunk["choices"][0] for chunk in stream if chunk["choices"]][-1]
    assert (last["delta"], last["finish_reason"], last["stop_reason"]) == ({}, "stop", "b")
