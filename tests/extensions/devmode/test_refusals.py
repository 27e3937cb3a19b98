"""Requests that arrive during a pause: rejected or waiting, by version and mode."""

import json
from typing import Any

import pytest

from tests.client import Client
from tests.present import is_present

HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": ["hi", "there"], "max_tokens": 2, "n": 2},
}
if is_present("label_reads"):
    BODIES["/generative_scoring"] = {"query": "a", "items": ["b"], "label_token_ids": [1, 2]}
if is_present("chat_batch"):
    BODIES["/v1/chat/completions/batch"] = {"messages": [HELLO], "max_tokens": 2}
if is_present("responses"):
    BODIES["/v1/responses"] = {"input": "hi", "max_output_tokens": 2}
STREAMS = {
    "/v1/chat/completions": "InternalServerError",
    "/v1/completions": "ServiceUnavailableError",
}
"""Paths of streams in OpenAI's shape, with the type of their error."""
if is_present("scale_out"):
    BODIES["/inference/v1/generate"] = {
        "token_ids": [1, 2],
        "sampling_params": {"max_tokens": 2},
    }
    STREAMS["/inference/v1/generate"] = "ServiceUnavailableError"


@pytest.mark.parametrize("path", BODIES)
def test_non_streamed_requests_are_rejected_during_a_pause(paused: Client, path: str) -> None:
    answer = paused.post(path, BODIES[path])
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize("path", STREAMS)
def test_streamed_request_receives_one_error_event_during_a_pause(
    paused: Client, path: str
) -> None:
    answer = paused.post(path, BODIES[path] | {"stream": True})
    assert answer.status_code == 200
    [data, done] = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    error = json.loads(data)["error"]
    assert (error["type"], error["code"], error["param"]) == (STREAMS[path], 503, None)
    assert done == "[DONE]"


def test_invalid_requests_return_400_or_404_instead_of_503_during_a_pause(paused: Client) -> None:
    assert paused.post("/v1/completions", {"prompt": "hi", "temperature": -1}).status_code == 400
    assert paused.post("/v1/completions", {"prompt": "hi", "model": "x"}).status_code == 404


def test_tokenize_is_served_during_a_pause(paused: Client) -> None:
    assert paused.post("/tokenize", {"prompt": "hi"}).status_code == 200


def test_requests_are_served_after_resume_or_wake_up(dev_client: Client) -> None:
    for path in ("/resume", "/wake_up"):
        dev_client.post("/pause")
        dev_client.post(path)
        dev_client.complete(max_tokens=2)
