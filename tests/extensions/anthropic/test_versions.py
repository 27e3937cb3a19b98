"""Errors of messages that depend on the simulated version of vLLM."""

import json
from typing import Any

import pytest

from app.core.api.identity import ResponseMeta
from app.core.engine.errors import EngineDeadError
from app.core.engine.outputs import Failed, Started, Tokens
from app.core.server.http.errors import internal, too_many, unavailable
from app.extensions.anthropic.errors import anthropic_type
from app.extensions.anthropic.rules import MessageRules
from app.extensions.anthropic.writer import MessageWriter
from tests.application import app_of
from tests.conformance.calls import parsed

MESSAGES = "/v1/messages"
BODY: dict[str, Any] = {"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
META = ResponseMeta("chatcmpl-1", 1_700_000_000, "a model", "fp")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (499, "invalid_request_error"),
        (500, "api_error"),
        (501, "api_error"),
        (503, "overloaded_error"),
        (504, "api_error"),
    ],
)
def test_http_status_determines_the_anthropic_error_type(status: int, expected: str) -> None:
    assert anthropic_type(status) == expected


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
@pytest.mark.parametrize(
    ("fields", "status", "old_type", "new_type"),
    [
        ({"model": "other"}, 404, "NotFoundError", "not_found_error"),
        ({"messages": []}, 400, "BadRequestError", "invalid_request_error"),
    ],
)
def test_anthropic_error_types_depend_on_the_vllm_version(
    path: str, fields: dict[str, Any], status: int, old_type: str, new_type: str
) -> None:
    for version, expected in (("0.32", old_type), ("0.33", new_type)):
        client = app_of("--vllm-version", version).test_client()
        model = {"model": "understudy-tiny"}
        answer = client.post(path, json=BODY | model | fields)
        body = json.loads(answer.data)
        assert answer.status_code == status
        assert (body["type"], body["error"]["type"]) == ("error", expected)
        assert list(body["error"]) == ["type", "message"]


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_schema_violation_has_the_openai_error_format(version: str) -> None:
    client = app_of("--vllm-version", version).test_client()
    error = json.loads(client.post(MESSAGES, json=BODY | {"model": "m", "max_tokens": 0}).data)[
        "error"
    ]
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", "body.max_tokens", 400)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (too_many("later"), "rate_limit_error"),
        (unavailable("later"), "overloaded_error"),
        (internal("broken"), "api_error"),
        (EngineDeadError(), "api_error"),
    ],
)
def test_error_closes_the_open_block_of_a_stream(error: Exception, expected: str) -> None:
    writer = MessageWriter(META, 16, False, lambda: "1", rules=MessageRules())
    writer.chunk(Started(0, 0.5))
    writer.chunk(Tokens(0, ["Hi"], [1], 1.0))
    events = parsed(writer.chunk(Failed(0, error)) + writer.closing())
    assert [event["type"] for event in events] == ["content_block_stop", "error"]
    assert events[0]["index"] == 0
    assert events[1]["error"]["type"] == expected


def test_error_before_the_first_block_is_the_only_event() -> None:
    writer = MessageWriter(META, 16, False, lambda: "1", rules=MessageRules())
    [event] = parsed(writer.chunk(Failed(0, unavailable("later"))) + writer.closing())
    assert event["type"] == "error"
