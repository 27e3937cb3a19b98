"""Requests that arrive during a pause: rejected or waiting, by version and mode."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client import Client, in_process
from tests.present import is_present

HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": ["hi", "there"], "max_tokens": 2, "n": 2},
    "/v1/messages": {"model": "base", "messages": HELLO, "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}},
}
if is_present("label_reads"):
    BODIES["/generative_scoring"] = {"query": "a", "items": ["b"], "label_token_ids": [1, 2]}
if is_present("chat_batch"):
    BODIES["/v1/chat/completions/batch"] = {"messages": [HELLO], "max_tokens": 2}
STREAMS = {
    "/v1/chat/completions": "InternalServerError",
    "/v1/completions": "ServiceUnavailableError",
    "/inference/v1/generate": "ServiceUnavailableError",
}
"""Paths of streams in OpenAI's shape, with the type of their error."""
FLAGS = ("--vllm-version", "0.33", "--server-dev-mode", "--enable-scale-out")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process(*FLAGS) as client:
        yield client


@pytest.fixture(params=["abort", "wait"])
def paused(client: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of a server in a pause that rejects requests."""
    assert client.post(f"/pause?mode={request.param}").json() == {"status": "paused"}
    yield client
    client.post("/resume")


@pytest.mark.parametrize("path", BODIES)
def test_whole_answers_are_rejected(paused: Client, path: str) -> None:
    answer = paused.post(path, BODIES[path])
    expected = "overloaded_error" if path == "/v1/messages" else "ServiceUnavailableError"
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, expected)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_consists_of_one_error(paused: Client, path: str) -> None:
    answer = paused.post(path, BODIES[path] | {"stream": True})
    assert answer.status_code == 200
    [data, done] = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    error = json.loads(data)["error"]
    assert (error["type"], error["code"], error["param"]) == (STREAMS[path], 503, None)
    assert done == "[DONE]"


def test_a_stream_of_a_message_consists_of_one_error(paused: Client) -> None:
    answer = paused.post("/v1/messages", BODIES["/v1/messages"] | {"stream": True})
    assert answer.status_code == 200
    [name, data] = [line for line in answer.text.splitlines() if line]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"


def test_a_streamed_response_fails_after_its_first_events(paused: Client) -> None:
    answer = paused.post("/v1/responses", BODIES["/v1/responses"] | {"stream": True})
    names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == [
        "event: response.created",
        "event: response.in_progress",
        "event: response.failed",
    ]


def test_invalid_requests_are_rejected_for_their_own_fault(paused: Client) -> None:
    assert paused.post("/v1/completions", {"prompt": "hi", "temperature": -1}).status_code == 400
    assert paused.post("/v1/completions", {"prompt": "hi", "model": "x"}).status_code == 404


def test_requests_without_generation_are_answered(paused: Client) -> None:
    assert paused.post("/tokenize", {"prompt": "hi"}).status_code == 200
    count = {"model": "base", "messages": HELLO}
    assert paused.post("/v1/messages/count_tokens", count).status_code == 200


def test_requests_are_served_after_a_resume(client: Client) -> None:
    for path in ("/resume", "/wake_up"):
        client.post("/pause")
        client.post(path)
        client.complete(max_tokens=2)
