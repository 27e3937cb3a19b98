"""Thoughts in chats, responses and messages, before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from app.extensions.responses.releases.v0_18 import prefer_summaries
from app.extensions.responses.releases.v0_21 import is_read
from tests.application import app_of

Body = dict[str, Any]
HELLO = [{"role": "user", "content": "hi"}]
CONTENT = [{"type": "reasoning_text", "text": "t"}]
SUMMARY = [{"type": "summary_text", "text": "s"}]
ITEM: Body = {"type": "reasoning", "id": "rs_1", "summary": []}
CONSTRAINED = "--structured-output-in-reasoning=true"


def client_of(version: str, *flags: str, parser: str = "deepseek_r1") -> Client:
    words = ("--vllm-version", version, "--reasoning-parser", parser, "--seed", "1")
    return app_of(*words, "--force-dummy-tokenizer", *flags).test_client()


def events_of(client: Client, path: str, body: Body) -> list[Body]:
    text = client.post(path, json={**body, "stream": True}).text
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def status_of_thought(version: str, item: Body) -> int:
    answer = client_of(version).post(
        "/v1/responses", json={"input": [*HELLO, item], "max_output_tokens": 3}
    )
    return answer.status_code


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"content": CONTENT}, 200),
        ({"content": None}, 200),
        ({"content": None, "encrypted_content": None, "status": None}, 200),
        ({"summary": SUMMARY}, 200),
        ({"summary": SUMMARY, "content": CONTENT}, 200),
        ({"summary": SUMMARY, "encrypted_content": "x"}, 400),
        ({}, 500),
        ({"content": []}, 500),
        ({"encrypted_content": None}, 500),
        ({"status": "completed"}, 500),
        ({"content": [{"type": "smell", "text": "t"}]}, 500),
        ({"id": None, "content": CONTENT}, 400),
        ({"summary": None, "content": CONTENT}, 400),
    ],
)
def test_a_thought_in_the_input_of_019(fields: Body, status: int) -> None:
    assert status_of_thought("0.19", ITEM | fields) == status


@pytest.mark.parametrize(
    ("fields", "release", "before", "after"),
    [
        ({}, ("0.20", "0.21"), 500, 200),
        ({"content": CONTENT}, ("0.11", "0.12"), 500, 200),
        ({"content": CONTENT}, ("0.11.0", "0.11.1"), 400, 500),
        ({"content": None}, ("0.10", "0.11"), 400, 500),
        ({"id": None}, ("0.10", "0.11"), 400, 400),
        ({}, ("0.10", "0.11"), 500, 500),
    ],
)
def test_thoughts_in_the_input_by_release(
    fields: Body, release: tuple[str, str], before: int, after: int
) -> None:
    statuses = [status_of_thought(version, ITEM | fields) for version in release]
    assert statuses == [before, after]


def test_words_of_the_error_in_010() -> None:
    body = {"input": [*HELLO, ITEM | {"content": CONTENT}], "max_output_tokens": 3}
    error = json.loads(client_of("0.10").post("/v1/responses", json=body).data)["error"]
    assert error["message"] == "'ResponseReasoningItem' object is not subscriptable None"


@pytest.mark.parametrize("item", [ITEM | {"content": CONTENT}, ITEM])
def test_words_of_the_error_in_011(item: Body) -> None:
    body = {"input": [*HELLO, item], "max_output_tokens": 3}
    error = json.loads(client_of("0.11").post("/v1/responses", json=body).data)["error"]
    words = "'ResponseReasoningItem' object has no attribute 'get'" if is_read(item) else "'role'"
    assert error["message"] == words


@pytest.mark.parametrize(
    ("summary", "content", "read"),
    [
        (SUMMARY, CONTENT, "s"),
        (SUMMARY, None, "s"),
        ([], CONTENT, "t"),
        (SUMMARY * 2, CONTENT, "t"),
        (SUMMARY * 2, CONTENT * 2, None),
    ],
)
def test_text_of_a_thought_in_the_input_before_018(
    summary: list[Body], content: list[Body] | None, read: str | None
) -> None:
    item: Body = ITEM | {"summary": summary, "content": content}
    prefer_summaries({"input": [item]})
    parts = item["content"] or item["summary"]
    assert (parts[0]["text"] if parts else None) == read


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.16", ["content_part.added"]),
        ("0.17", ["reasoning_part.added", "reasoning_part.done"]),
        ("0.30", ["reasoning_part.added", "reasoning_part.done"]),
        ("0.31", ["content_part.added", "content_part.done"]),
    ],
)
def test_events_of_the_part_of_a_thought(version: str, names: list[str]) -> None:
    body = {"input": "hi", "max_output_tokens": 1}
    events = events_of(client_of(version), "/v1/responses", body)
    parts = [event["type"] for event in events if "_part." in event["type"]]
    assert parts == [f"response.{name}" for name in names]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == [*range(len(events))]


@pytest.mark.parametrize(("version", "first"), [("0.16", "text"), ("0.17", "thinking")])
def test_a_message_of_thoughts(version: str, first: str) -> None:
    body = {"model": "understudy-tiny", "messages": HELLO, "max_tokens": 1}
    client = client_of(version)
    message = json.loads(client.post("/v1/messages", json=body).data)
    assert [block["type"] for block in message["content"]] == [first]
    events = events_of(client, "/v1/messages", body)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert len(starts) == int(first == "thinking")


@pytest.mark.parametrize(("version", "has_thoughts"), [("0.23", True), ("0.24", False)])
def test_hidden_thoughts_of_a_stream(version: str, has_thoughts: bool) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "include_reasoning": False}
    chunks = events_of(client_of(version), "/v1/chat/completions", body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert any(delta.get("reasoning") for delta in deltas) == has_thoughts


@pytest.mark.parametrize(("version", "has_thought"), [("0.16", False), ("0.17", True)])
def test_thoughts_of_qwen3_without_a_begin(version: str, has_thought: bool) -> None:
    client = client_of(version, CONSTRAINED, parser="qwen3")
    body = {"messages": HELLO, "structured_outputs": {"choice": ["Hm.</think>Red."]}}
    answer = json.loads(client.post("/v1/chat/completions", json=body).data)
    message = answer["choices"][0]["message"]
    assert (message["reasoning"] == "Hm.") == has_thought
    assert (message["content"] == "Red.") == has_thought


def test_the_last_chunk_of_a_deepseek_stream_has_an_empty_text() -> None:
    client = client_of("0.33", CONSTRAINED)
    body = {"messages": HELLO, "structured_outputs": {"choice": ["Hm.</think>Red."]}}
    chunks = events_of(client, "/v1/chat/completions", body)
    assert chunks[-1]["choices"][0]["delta"] == {"content": ""}


@pytest.mark.parametrize(("version", "kind"), [("0.11", "message"), ("0.17", "reasoning")])
def test_thoughts_of_qwen3_that_the_limit_ends(version: str, kind: str) -> None:
    client = app_of("--vllm-version", version, "--reasoning-parser", "qwen3").test_client()
    body = {"input": "Hi", "max_output_tokens": 4}
    (item,) = json.loads(client.post("/v1/responses", json=body).data)["output"]
    assert item["type"] == kind
    assert item["content"][0]["text"].startswith("<think>") == (kind == "message")
