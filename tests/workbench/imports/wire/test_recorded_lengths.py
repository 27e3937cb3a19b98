"""A recorded reply that ended at its limit is sent whole to a client that sends the same limit.

The text has more tokens here than at the server that was recorded.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from app.core.cli import main
from tests.running_server import RunningServer, running_server
from tests.workbench.imports.test_imported_scripts import interaction

TEXT = "Indubitably, heterogeneous microarchitectures notwithstanding: so I"
LIMIT = 7
PROMPT_TOKENS = 11
QUESTION = "How are you?"
MESSAGES = [{"role": "user", "content": QUESTION}]
OUTPUT = {"type": "message", "role": "assistant", "content": [{"type": "output_text"}]}
CHAT_USAGE = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": LIMIT, "total_tokens": 18}
BLOCK_USAGE = {"input_tokens": PROMPT_TOKENS, "output_tokens": LIMIT}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES, "max_tokens": LIMIT},
    "completions": {"prompt": QUESTION, "max_tokens": LIMIT},
    "responses": {"input": QUESTION, "max_output_tokens": LIMIT},
    "messages": {"messages": MESSAGES, "max_tokens": LIMIT},
}
WHOLE_ANSWERS: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "length"}],
        "usage": CHAT_USAGE,
    },
    "completions": {
        "choices": [{"index": 0, "text": TEXT, "finish_reason": "length"}],
        "usage": CHAT_USAGE,
    },
    "responses": {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{**OUTPUT, "content": [{"type": "output_text", "text": TEXT}]}],
        "usage": BLOCK_USAGE,
    },
    "messages": {
        "type": "message",
        "stop_reason": "max_tokens",
        "content": [{"type": "text", "text": TEXT}],
        "usage": BLOCK_USAGE,
    },
}
STREAMED_ANSWERS: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {"choices": [{"index": 0, "delta": {"content": TEXT}, "finish_reason": "length"}]},
    ],
    "completions": [{"choices": [{"index": 0, "text": TEXT, "finish_reason": "length"}]}],
    "responses": [
        {"type": "response.output_text.delta", "delta": TEXT},
        {"type": "response.incomplete", "response": WHOLE_ANSWERS["responses"]},
    ],
    "messages": [
        {"type": "message_start", "message": {"usage": {"input_tokens": PROMPT_TOKENS}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {"output_tokens": LIMIT},
        },
    ],
}
"""Those of chats and completions have no usage, as clients get them by default."""


def events_of(answer: requests.Response) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def whole_chat(answer: dict[str, Any]) -> tuple[str, str, int]:
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, choice["finish_reason"], answer["usage"]["completion_tokens"]


def streamed_chat(events: list[dict[str, Any]]) -> tuple[str, str, int]:
    choices = [event["choices"][0] for event in events if event["choices"]]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
    tokens = events[-1]["usage"]["completion_tokens"]
    return "".join(text or "" for text in texts), choices[-1]["finish_reason"], tokens


def whole_response(answer: dict[str, Any]) -> tuple[str, str, int]:
    [item] = answer["output"]
    reason = answer["incomplete_details"]["reason"]
    return item["content"][0]["text"], reason, answer["usage"]["output_tokens"]


def streamed_response(events: list[dict[str, Any]]) -> tuple[str, str, int]:
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    text, reason, tokens = whole_response(events[-1]["response"])
    assert text == "".join(delta["delta"] for delta in deltas)
    return text, reason, tokens


def whole_message(answer: dict[str, Any]) -> tuple[str, str, int]:
    [block] = answer["content"]
    return block["text"], answer["stop_reason"], answer["usage"]["output_tokens"]


def streamed_message(events: list[dict[str, Any]]) -> tuple[str, str, int]:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    [end] = [event for event in events if event["type"] == "message_delta"]
    text = "".join(delta["text"] for delta in deltas)
    return text, end["delta"]["stop_reason"], end["usage"]["output_tokens"]


READERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "chat/completions": (whole_chat, streamed_chat, "length"),
    "completions": (whole_chat, streamed_chat, "length"),
    "responses": (whole_response, streamed_response, "max_output_tokens"),
    "messages": (whole_message, streamed_message, "max_tokens"),
}
"""Readers of a whole and of a streamed answer, and the finish reason, by path."""


def sent(api: str, *, is_stream: bool, model: str = "whole") -> dict[str, Any]:
    body = {"model": model, **REQUESTS[api]}
    if is_stream:
        body["stream"] = True
    if is_stream and "completions" in api:
        body["stream_options"] = {"include_usage": True}
    return body


def imported(folder: Path) -> Path:
    """A script of recorded exchanges with every API: whole, and streamed by other models."""
    interactions: list[dict[str, Any]] = []
    for api, answer in WHOLE_ANSWERS.items():
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in STREAMED_ANSWERS[api])
        for model, body in (("whole", json.dumps(answer)), ("streamed", stream)):
            request = sent(api, is_stream=model == "streamed", model=model)
            interactions.append(interaction(f"https://x.test/v1/{api}", request, {"string": body}))
    cassette = folder / "cassette.yaml"
    cassette.write_text(yaml.safe_dump({"interactions": interactions}))
    script = folder / "script.yaml"
    assert main(["script", "import", str(cassette), "--out", str(script)]) == 0
    return script


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    script = imported(tmp_path_factory.mktemp("imported"))
    names = ("--served-model-name", "whole", "streamed")
    with running_server("--force-dummy-tokenizer", "--script", str(script), *names) as running:
        yield running


def answer_of(server: RunningServer, api: str, body: dict[str, Any]) -> tuple[str, str, int]:
    response = requests.post(f"{server.url}/v1/{api}", json=body, timeout=20)
    assert response.status_code == 200, response.text
    read_whole, read_stream, _ = READERS[api]
    answer: tuple[str, str, int]
    answer = read_stream(events_of(response)) if body.get("stream") else read_whole(response.json())
    return answer


@pytest.mark.parametrize("model", ["whole", "streamed"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["asked-whole", "asked-streamed"])
@pytest.mark.parametrize("api", REQUESTS)
def test_recorded_reply_that_ended_at_its_limit_is_not_cut_again(
    server: RunningServer, api: str, is_stream: bool, model: str
) -> None:
    body = sent(api, is_stream=is_stream, model=model)
    assert answer_of(server, api, body) == (TEXT, READERS[api][2], LIMIT)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", REQUESTS)
def test_lower_limit_than_the_recorded_count_cuts_the_reply_and_its_usage(
    server: RunningServer, api: str, is_stream: bool
) -> None:
    body = sent(api, is_stream=is_stream)
    limit = LIMIT - 4
    for key in body.keys() & {"max_tokens", "max_output_tokens"}:
        body[key] = limit
    text, reason, tokens = answer_of(server, api, body)
    assert text and TEXT.startswith(text) and len(text) < len(TEXT)
    assert (reason, tokens) == (READERS[api][2], limit)


def test_choices_share_the_recorded_count(server: RunningServer) -> None:
    body = {**sent("chat/completions", is_stream=False), "n": 2, "max_tokens": 4}
    url = f"{server.url}/v1/chat/completions"
    answer = requests.post(url, json=body, timeout=20).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [TEXT, TEXT]
