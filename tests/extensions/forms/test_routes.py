"""Constraints on the routes of other extensions."""

from typing import Any

import pytest

from tests.client import Client, in_process
from tests.extensions.forms.test_schema_statuses import BROKEN, FAILING

MESSAGES = [{"role": "user", "content": "Hi"}]


def bodies(schema: Any) -> dict[str, dict[str, Any]]:
    """Returns a request for each route, by its path."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    return {
        "/v1/chat/completions/batch": {"messages": [MESSAGES], "response_format": form},
        "/v1/responses": {"input": "Hi", "text": text},
        "/v1/messages": {
            "model": "base",
            "max_tokens": 9,
            "messages": MESSAGES,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    }


@pytest.mark.parametrize("path", bodies({}))
def test_schema_that_the_engine_cannot_compile_is_an_internal_error(
    client: Client, path: str
) -> None:
    answer = client.post(path, bodies(BROKEN)[path])
    assert answer.status_code == 500
    assert "Internal server error" in answer.text


@pytest.mark.parametrize("path", bodies({}))
def test_schema_that_every_backend_refuses_is_a_bad_request(client: Client, path: str) -> None:
    answer = client.post(path, bodies(FAILING)[path])
    assert answer.status_code == 400
    assert "required property 'z' is unsatisfiable" in answer.text


def test_batch_and_responses_split_constrained_thoughts() -> None:
    form = {"choice": ["<think>hm hm</think>yes"]}
    flags = ("--reasoning-parser", "qwen3", "--structured-output-in-reasoning", "true")
    with in_process(*flags) as client:
        batch = client.post(
            "/v1/chat/completions/batch",
            {"messages": [MESSAGES, MESSAGES], "structured_outputs": form},
        ).json()
        response = client.post("/v1/responses", {"input": "Hi", "structured_outputs": form}).json()
    messages = [choice["message"] for choice in batch["choices"]]
    assert [(item["reasoning"], item["content"]) for item in messages] == [("hm hm", "yes")] * 2
    assert batch["usage"]["completion_tokens_details"] is None
    texts = [item["content"][0]["text"] for item in response["output"]]
    assert texts == ["hm hm", "yes"]
