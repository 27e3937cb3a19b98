"""Messages with blocks of the provider's server: imported, served, and equal when replayed."""

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.core.cli import main
from tests.workbench.imports.test_imported_scripts import COMMAND, imported, interaction, written

URL = "https://api.anthropic.com/v1/messages"
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Search first.", "signature": "c2lnbmF0dXJl"},
    {"type": "text", "text": "I will search {{ now }}."},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "news"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srv_1",
        "content": [{"type": "web_search_result", "url": "https://example.org", "title": "News"}],
    },
    {
        "type": "text",
        "text": "Here is the news.",
        "citations": [{"type": "char_location", "cited_text": "News"}],
    },
    {"type": "tool_use", "id": "toolu_1", "name": "save", "input": {"text": "The news"}},
]
MESSAGE = {
    "type": "message",
    "role": "assistant",
    "stop_reason": "tool_use",
    "content": CONTENT,
    "usage": {"input_tokens": 71, "output_tokens": 23},
}
HISTORY = [
    {"role": "user", "content": "Search!"},
    {"role": "assistant", "content": CONTENT[:-1]},
    {"role": "user", "content": "Thanks"},
]
THANKED = {**MESSAGE, "stop_reason": "end_turn", "content": [{"type": "text", "text": "Bye."}]}


def asked(messages: object = "Search!", **fields: object) -> dict[str, Any]:
    """A request that vLLM rejects, because its tool has no schema."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": "m", "max_tokens": 900, "messages": messages, "tools": [SEARCH], **fields}


def exchange(url: str, request: object, body: object, status: int = 200) -> dict[str, Any]:
    """An interaction of a cassette."""
    recorded = interaction(url, request, {"string": json.dumps(body)})
    recorded["response"]["status"] = {"code": status}
    return recorded


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}
    client: FlaskClient = imported(
        tmp_path,
        {
            "interactions": [
                exchange(URL, asked(), MESSAGE),
                exchange(URL, asked(HISTORY), THANKED),
                exchange(URL, asked("Now!"), overloaded, status=529),
                exchange(f"{URL}/count_tokens?beta=true", asked(), {"input_tokens": 4711}),
            ]
        },
    )
    return client


def events_of(stream: str) -> list[dict[str, Any]]:
    """Returns the data of the events of a stream."""
    lines = [line for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def content_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the blocks that a client assembles from the events of a stream."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            block = blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                block["json"] += delta["partial_json"]
            elif delta["type"] == "citations_delta":
                block["citations"].append(delta["citation"])
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] += delta[field]
    for block in blocks:
        text = block.pop("json")
        if text:
            block["input"] = json.loads(text)
    return blocks


def test_blocks_of_the_provider_are_replayed_in_a_whole_message(client: FlaskClient) -> None:
    answer = client.post("/v1/messages", json=asked()).get_json()
    assert answer["content"] == CONTENT
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"]["input_tokens"] == 71
    assert answer["usage"]["output_tokens"] == 23


def test_blocks_of_the_provider_are_replayed_in_a_stream(client: FlaskClient) -> None:
    stream = client.post("/v1/messages", json=asked(stream=True)).get_data(as_text=True)
    events = events_of(stream)
    assert content_of(events) == CONTENT
    texts = [event for event in events if event.get("delta", {}).get("type") == "text_delta"]
    assert len(texts) > 4  # the texts come in the pieces that the engine generates
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-1]["type"] == "message_stop"


def test_later_turn_with_blocks_of_the_provider_is_answered(client: FlaskClient) -> None:
    answer = client.post("/v1/messages", json=asked(HISTORY)).get_json()
    assert answer["content"] == THANKED["content"]
    assert answer["stop_reason"] == "end_turn"


def test_recorded_error_to_a_request_that_vllm_rejects_is_replayed(client: FlaskClient) -> None:
    answer = client.post("/v1/messages", json=asked("Now!"))
    assert answer.status_code == 529
    assert answer.get_json()["error"]["message"] == "Busy."


def test_count_of_tokens_is_the_recorded_one(client: FlaskClient) -> None:
    answer = client.post("/v1/messages/count_tokens", json=asked())
    assert answer.get_json()["input_tokens"] == 4711


def test_request_without_a_rule_gets_the_error_of_vllm(client: FlaskClient) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = client.post(path, json=asked("Something else"))
        assert answer.status_code == 400
        assert "body.tools.0.input_schema" in answer.get_json()["error"]["message"]


def test_accepted_requests_are_counted_as_without_a_script(client: FlaskClient) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    answer = client.post("/v1/messages/count_tokens", json=body)
    assert answer.status_code == 200
    assert answer.get_json()["input_tokens"] < 100


def test_limit_of_the_request_cuts_recorded_blocks(client: FlaskClient) -> None:
    body = asked(max_tokens=3)
    whole = client.post("/v1/messages", json=body).get_json()
    stream = client.post("/v1/messages", json={**body, "stream": True}).get_data(as_text=True)
    assert whole["stop_reason"] == "max_tokens"
    [thoughts] = whole["content"]
    assert "Search first.".startswith(thoughts["thinking"])
    [streamed] = content_of(events_of(stream))
    assert streamed["thinking"] == thoughts["thinking"]


def test_stop_string_of_the_request_ends_recorded_blocks(client: FlaskClient) -> None:
    body = asked(stop_sequences=["will"])
    whole = client.post("/v1/messages", json=body).get_json()
    stream = client.post("/v1/messages", json={**body, "stream": True}).get_data(as_text=True)
    assert whole["stop_reason"] == "stop_sequence"
    assert whole["content"] == [CONTENT[0], {"type": "text", "text": "I "}]
    assert content_of(events_of(stream)) == whole["content"]


def test_stream_of_recorded_blocks_is_imported_as_a_whole_message(tmp_path: Path) -> None:
    first = imported(tmp_path, {"interactions": [exchange(URL, asked(), MESSAGE)]})
    stream = first.post("/v1/messages", json=asked(stream=True)).get_data(as_text=True)
    recorded = interaction(
        URL,
        asked(),
        {"string": stream},
        headers={"Content-Type": ["text/event-stream"]},
    )
    folder = tmp_path / "second"
    folder.mkdir()
    second = imported(folder, {"interactions": [recorded]})
    assert second.post("/v1/messages", json=asked()).get_json()["content"] == CONTENT


def test_unknown_stop_reasons_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paused = {**MESSAGE, "stop_reason": "pause_turn"}
    path = written(tmp_path / "cassette.yaml", {"interactions": [exchange(URL, asked(), paused)]})
    assert main([*COMMAND, str(path), "--out", str(tmp_path / "out.yaml")]) == 0
    assert "interaction 1: stop reason pause_turn left out" in capsys.readouterr().err


def test_blocks_that_no_script_accepts_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = {**MESSAGE, "content": [{"type": "x", "content": "a" * (1 << 20)}]}
    nameless = {**MESSAGE, "content": [{"type": 3}]}
    interactions = [
        exchange(URL, asked(), large),
        exchange(URL, asked("2"), nameless),
        exchange(URL, asked("3"), THANKED),
    ]
    script = tmp_path / "out.yaml"
    path = written(tmp_path / "cassette.yaml", {"interactions": interactions})
    assert main([*COMMAND, str(path), "--out", str(script)]) == 0
    error = capsys.readouterr().err
    assert "interaction 1: left out: its blocks exceed 1 MiB" in error
    assert "interaction 2: left out: " in error
    assert main(["script", "check", str(script)]) == 0
