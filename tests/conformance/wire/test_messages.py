"""The Anthropic family on the wire: recorded exchanges, keys, order, limits and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.conformance.calls import MESSAGES, error_of, named_events, ok, post
from tests.running_server import RunningServer

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
PATHS = pytest.mark.parametrize("path", [PATH, COUNT])
ASKED = {"model": "tiny", "max_tokens": 3, "messages": MESSAGES}
TOOL_USE = {"type": "tool_use", "id": "a", "name": "b", "input": {"x": "nested"}}


def send(server: RunningServer, path: str = PATH, **asked: Any) -> requests.Response:
    return post(server, path, {**ASKED, **asked})


def message(server: RunningServer, **asked: Any) -> dict[str, Any]:
    return ok(send(server, **asked))


def counted(server: RunningServer, **asked: Any) -> int:
    count: int = ok(send(server, COUNT, **asked))["input_tokens"]
    return count


def stream(server: RunningServer, **asked: Any) -> list[dict[str, Any]]:
    """The JSON of each event, whose type is its name."""
    return named_events(send(server, stream=True, **asked))


def refusal(got: requests.Response) -> tuple[int, str]:
    """Status and type of an error in this family's own shape."""
    body = got.json()
    assert list(body) == ["type", "error"]
    assert body["type"] == "error"
    assert list(body["error"]) == ["type", "message"]
    assert body["error"]["message"]
    return got.status_code, body["error"]["type"]


def test_the_id_is_that_of_the_request(vllm: RunningServer) -> None:
    got = post(vllm, PATH, ASKED, **{"X-Request-Id": "mine"})
    assert (got.json()["id"], got.headers["X-Request-Id"]) == ("chatcmpl-mine", "mine")


def test_what_is_counted_is_what_a_message_costs(vllm: RunningServer) -> None:
    asked = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            *MESSAGES,
            {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
            {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "bye"}]},
        ],
    }
    usage = message(vllm, **asked)["usage"]
    assert counted(vllm, **asked) == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted(vllm, **asked) > counted(vllm)


def test_a_count_names_the_tokens_before_any_management(vllm: RunningServer) -> None:
    answer = ok(send(vllm, COUNT))
    assert list(answer) == ["input_tokens", "context_management"]
    assert answer["context_management"] == {"original_input_tokens": answer["input_tokens"]}


@PATHS
def test_a_schema_error_keeps_the_shape_of_the_other_families(vllm: RunningServer, path: str) -> None:
    assert error_of(send(vllm, path, model=None)) == (400, "Bad Request", "body.model")
    got = requests.post(vllm.url + path, data=json.dumps(ASKED), timeout=20)
    assert error_of(got) == (400, "Bad Request", None), "another content type"


@PATHS
@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        ({"model": "other"}, 404, "NotFoundError"),
        ({"messages": []}, 400, "BadRequestError"),
        ({"messages": [{"role": "user", "content": "w" * (5 << 20)}]}, 413, "Request Entity Too Large"),
    ],
)
def test_later_errors_have_the_shape_of_this_family(
    vllm: RunningServer, path: str, asked: dict[str, Any], status: int, kind: str
) -> None:
    assert refusal(send(vllm, path, **asked)) == (status, kind)


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_sampled_is_refused_before_a_stream_begins(vllm: RunningServer, stream: bool) -> None:
    assert refusal(send(vllm, stream=stream, temperature=3)) == (400, "BadRequestError")


def test_what_the_engine_refuses_ends_a_stream_with_an_error(vllm: RunningServer) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    (event,) = stream(vllm, thinking=thinking, max_tokens=1500)
    assert (event["type"], event["error"]["type"]) == ("error", "BadRequestError")
    assert refusal(send(vllm, thinking=thinking, max_tokens=1500)) == (400, "BadRequestError")


def test_what_is_nested_too_deeply_is_a_bad_request(vllm: RunningServer) -> None:
    frame = json.dumps({**ASKED, "messages": [{"role": "assistant", "content": [TOOL_USE]}]})
    depths = [400, *range(900, 960, 10), 50_000]
    bodies = [frame.replace('"nested"', "[" * depth + "]" * depth) for depth in depths]
    headers = {"Content-Type": "application/json"}
    codes = [requests.post(vllm.url + PATH, body, headers=headers, timeout=20).status_code for body in bodies]
    assert codes[0] == 200
    assert codes[-1] == 400
    assert sorted(codes) == codes
    assert set(codes) == {200, 400}
