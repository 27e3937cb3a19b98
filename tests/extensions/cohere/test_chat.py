"""Cohere's Chat API: requests become chats, and answers have Cohere's shape."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.core.protocol.coercion import ConversionError
from app.extensions.cohere import protocol
from tests.client import MODEL, Client, in_process

PATH = "/cohere/v2/chat"
RENDER = f"{PATH}/render"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
FLAGS = ("--enable-cohere-api", "--enable-scale-out", "--enable-auto-tool-choice")
PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1")


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process(*FLAGS, "--tool-call-parser", "hermes") as client:
        yield client


def answer(client: Client, **fields: Any) -> Any:
    response = client.post(PATH, {"model": MODEL, "messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events(client: Client, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    lines = client.post(PATH, body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_response_message_is_a_list_of_content_blocks(client: Client) -> None:
    body = answer(client, max_tokens=4)
    assert body["message"]["role"] == "assistant"
    [block] = body["message"]["content"]
    assert block["type"] == "text" and block["text"]
    assert body["finish_reason"] in ("COMPLETE", "MAX_TOKENS")
    usage = body["usage"]
    assert usage["billed_units"] == usage["tokens"]
    assert 0 < usage["tokens"]["output_tokens"] <= 4
    assert body["id"].startswith("chatcmpl-")
    assert "logprobs" not in body


def test_logprobs_have_one_entry_per_token(client: Client) -> None:
    body = answer(client, max_tokens=3, logprobs=True)
    texts = [entry["text"] for entry in body["logprobs"]]
    assert len(texts) == body["usage"]["tokens"]["output_tokens"]
    assert all(len(entry["token_ids"]) == len(entry["logprobs"]) == 1 for entry in body["logprobs"])


def test_stream_has_the_message_events_of_cohere(client: Client) -> None:
    event_list = events(client, max_tokens=4)
    types = [event["type"] for event in event_list]
    assert types[:3] == ["message-start", "content-start", "content-delta"]
    assert types[-2:] == ["content-end", "message-end"]
    assert event_list[0]["delta"] == {"message": {"role": "assistant"}}
    assert event_list[1]["delta"]["message"]["content"] == {"type": "text", "text": ""}
    assert {event["index"] for event in event_list[1:-1]} == {0}
    text = "".join(
        event["delta"]["message"]["content"]["text"]
        for event in event_list
        if event["type"] == "content-delta"
    )
    whole = answer(client, max_tokens=4, seed=1)["message"]["content"][0]["text"]
    seeded = events(client, max_tokens=4, seed=1)
    assert text and whole == "".join(
        event["delta"]["message"]["content"]["text"]
        for event in seeded
        if event["type"] == "content-delta"
    )
    assert event_list[-1]["id"] == event_list[0]["id"]
    assert event_list[-1]["delta"]["usage"]["tokens"]["input_tokens"] > 0


def test_streamed_tool_calls_end_with_finish_reason_tool_call(
    client: Client,
) -> None:
    fields = {"tools": [TOOL], "tool_choice": "REQUIRED", "strict_tools": True}
    body = answer(client, **fields)
    assert body["finish_reason"] == "TOOL_CALL"
    call = body["message"]["tool_calls"][0]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    json.loads(call["function"]["arguments"])
    streamed = events(client, **fields)
    starts = [event for event in streamed if event["type"] == "tool-call-start"]
    assert [event["index"] for event in starts] == [*range(len(starts))]
    deltas = [event for event in streamed if event["type"] == "tool-call-delta"]
    first = [event for event in deltas if event["index"] == 0]
    arguments = "".join(
        event["delta"]["message"]["tool_calls"]["function"]["arguments"] for event in first
    )
    json.loads(arguments)
    assert streamed[-1]["delta"]["finish_reason"] == "TOOL_CALL"


@pytest.mark.parametrize(("is_reasoning", "types"), [(True, "thinking"), (False, "tool_plan")])
def test_reasoning_is_a_tool_plan_unless_the_model_is_a_reasoning_model(
    is_reasoning: bool, types: str
) -> None:
    flags = [*FLAGS, *PARSERS]
    if not is_reasoning:
        flags.append("--no-cohere-is-reasoning-model")
    with in_process(*flags) as client:
        message = answer(client, tools=[TOOL], tool_choice="REQUIRED")["message"]
        streamed = events(client, tools=[TOOL], tool_choice="REQUIRED")
    if types == "tool_plan":
        assert message["tool_plan"] and "content" not in message
        assert any(event["type"] == "tool-plan-delta" for event in streamed)
    else:
        assert message["content"][0]["type"] == "thinking" and "tool_plan" not in message
        kinds = [
            event["delta"]["message"]["content"]["type"]
            for event in streamed
            if event["type"] == "content-start"
        ]
        assert kinds[0] == "thinking"


def test_cohere_fields_are_converted_to_chat_fields(client: Client) -> None:
    body = {
        "model": MODEL,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {
                "role": "assistant",
                "tool_plan": "Look it up.",
                "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {
                "role": "tool",
                "tool_call_id": "1",
                "content": [{"type": "document", "document": {"data": {"sky": "blue"}}}],
            },
        ],
        "documents": ["one", {"id": "d", "data": {"title": "T"}}],
        "temperature": 0.5,
        "p": 0.9,
        "k": 7,
        "stop_sequences": ["END"],
        "max_tokens": 5,
    }
    rendered = client.post(RENDER, body)
    assert rendered.status_code == 200, rendered.text
    params = rendered.json()["sampling_params"]
    assert (params["temperature"], params["top_p"], params["top_k"]) == (0.5, 0.9, 7)
    assert (params["stop"], params["max_tokens"]) == (["END"], 5)
    tokens = rendered.json()["token_ids"]
    prompt = client.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    for text in ("Be brief.", "Hello", "weather", "sky"):
        assert text in prompt


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": HELLO}, "body.model"),
        ({"model": MODEL, "messages": []}, "at least one message"),
        ({"model": MODEL, "messages": [{"role": "robot", "content": "x"}]}, "literal_error"),
        ({"model": MODEL, "messages": [{"role": "user"}]}, "content"),
        ({"model": MODEL, "messages": HELLO, "max_tokens": -1}, "non-negative"),
        ({"model": MODEL, "messages": HELLO, "tool_choice": "REQUIRED"}, "tools"),
        ({"model": MODEL, "messages": HELLO, "k": "many"}, "int_parsing"),
    ],
)
def test_error_of_a_cohere_route_is_an_object_with_only_a_message(
    client: Client, body: dict[str, Any], words: str
) -> None:
    for path in (PATH, RENDER):
        response = client.post(path, body)
        assert response.status_code == 400, response.text
        assert list(response.json()) == ["message"]
        assert words in response.json()["message"]


def test_unknown_model_returns_404(client: Client) -> None:
    response = client.post(PATH, {"model": "other", "messages": HELLO})
    assert (response.status_code, list(response.json())) == (404, ["message"])


def test_structured_output_satisfies_its_schema(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_object", "json_schema": schema}
    [block] = answer(client, response_format=form)["message"]["content"]
    assert isinstance(json.loads(block["text"])["a"], int)


@pytest.mark.parametrize(
    ("flags", "chat_status", "render_status"),
    [
        ((), 404, 404),
        (("--enable-cohere-api",), 400, 400),
        (("--enable-cohere-api", "--no-enable-scale-out"), 400, 404),
    ],
)
def test_cohere_routes_are_off_by_default(
    flags: tuple[str, ...], chat_status: int, render_status: int
) -> None:
    with in_process(*flags) as client:
        assert client.post(PATH, {}).status_code == chat_status
        assert client.post(RENDER, {}).status_code == render_status


def test_valid_cohere_documents_are_not_converted_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by one, 100,000 documents would hold the event loop for half a second."""

    def refuse(kind: object, value: object) -> object:
        raise AssertionError("documents are converted one by one")

    monkeypatch.setattr(protocol, "convert_value", refuse)
    documents = ["a", {"id": "b", "data": {"c": [1, None]}}]
    assert protocol.convert_documents(documents) == documents
    assert protocol.convert_documents(None) is None


def test_document_that_is_a_list_is_rejected() -> None:
    assert protocol.convert_documents(["a", {"b": 1}]) == ["a", {"b": 1}]
    with pytest.raises(ConversionError):
        protocol.convert_documents([[1]])
