"""SGLang's differences on the OpenAI routes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client import Client, events, in_process

DIALECT = "--dialect=sglang"
HELLO = [{"role": "user", "content": "one two three"}]
CHAT: dict[str, Any] = {"messages": HELLO}
PATHS = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process(DIALECT, "--mode=echo") as client:
        yield client


def body(path: str, **fields: Any) -> dict[str, Any]:
    if path.endswith("chat/completions"):
        return {**CHAT, **fields}
    return {"prompt": "one two three", "max_tokens": 100, **fields}


@pytest.mark.parametrize("path", PATHS)
def test_non_streamed_response_has_matched_stop_instead_of_stop_reason(
    client: Client, path: str
) -> None:
    natural = client.post(path, body(path)).json()
    [choice] = natural["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", 0)
    assert "stop_reason" not in choice
    assert natural["metadata"] == {"weight_version": "default"}
    [stopped] = client.post(path, body(path, stop=[" two"])).json()["choices"]
    assert stopped["matched_stop"] == " two"
    [cut] = client.post(path, body(path, max_tokens=1)).json()["choices"]
    assert (cut["finish_reason"], cut["matched_stop"]) == ("length", None)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("latency", ["0", "1ms"])
def test_last_stream_event_has_matched_stop_instead_of_stop_reason(path: str, latency: str) -> None:
    with in_process(DIALECT, "--mode=echo", f"--inter-token-latency={latency}") as client:
        chunks = events(client.post(path, body(path, stream=True)))
    choices = [choice for event in chunks for choice in event["choices"]]
    assert "stop_reason" not in choices[-1]
    assert (choices[-1]["finish_reason"], choices[-1]["matched_stop"]) == ("stop", 0)


def test_generated_text_that_looks_like_json_keys_is_unchanged(client: Client) -> None:
    text = 'a ,"stop_reason":null "finish_reason":"stop","stop_reason":null b'
    answer = client.post(PATHS[1], {"prompt": text, "max_tokens": 100}).json()
    assert answer["choices"][0]["text"] == text
    chunks = events(client.post(PATHS[1], {"prompt": text, "max_tokens": 100, "stream": True}))
    assert "".join(event["choices"][0]["text"] for event in chunks) == text


@pytest.mark.parametrize(
    ("path", "wrong", "status", "kind"),
    [
        (PATHS[0], {**CHAT, "max_tokens": "few"}, 400, "Bad Request"),
        (PATHS[0], {**CHAT, "temperature": 9}, 400, "BadRequestError"),
        (PATHS[1], {"prompt": "a", "model": "none"}, 404, "NotFoundError"),
    ],
)
def test_openai_route_errors_are_flat_objects(
    client: Client, path: str, wrong: Any, status: int, kind: str
) -> None:
    answer = client.post(path, wrong)
    assert answer.status_code == status
    error = answer.json()
    assert sorted(error) == ["code", "message", "object", "param", "type"]
    assert (error["object"], error["type"], error["code"]) == ("error", kind, status)
    assert int(answer.headers["Content-Length"]) == len(answer.content)


def test_tokenize_errors_keep_the_vllm_format_in_the_sglang_dialect(client: Client) -> None:
    assert json.loads(client.post("/tokenize", {}).text)["error"]["code"] == 400
