"""POST /invocations: a body goes to the first family that it fits, in vLLM's order."""

from functools import cache

import pytest
from flask.testing import FlaskClient

from tests.application import app_of

PATH = "/invocations"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@cache
def client_of(task: str) -> FlaskClient:
    return app_of("--force-dummy-tokenizer", "--task", task).test_client()


@pytest.mark.parametrize(
    ("task", "body", "begins"),
    [
        ("generate", CHAT, "chatcmpl-"),
        ("generate", {**CHAT, "prompt": "both"}, "chatcmpl-"),
        ("generate", {"prompt": "hello", "max_tokens": 2}, "cmpl-"),
    ],
)
def test_fields_of_an_invocation_body_determine_which_api_answers(
    task: str, body: object, begins: str
) -> None:
    check_family(task, body, begins)


def check_family(task: str, body: object, begins: str) -> None:
    """Asserts that the id of the answer to `body` begins with the prefix of a family."""
    told = client_of(task).post(PATH, json=body)
    assert told.status_code == 200, told.text
    assert told.get_json()["id"].startswith(begins)


def test_invalid_invocation_returns_400() -> None:
    refused: list[tuple[str, object, str | None]] = [
        ("generate", {"prompt": "x", "max_tokens": "many"}, None),
        ("generate", [1], None),
        ("generate", {"prompt": ""}, "prompt"),
        ("generate", {**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
    ]
    for task, body, param in refused:
        check_refusal(task, body, param)
    for content_type in ("application/json", "text/plain"):
        told = client_of("generate").post(PATH, data="{", content_type=content_type)
        error = told.get_json()["error"]
        assert (told.status_code, error["type"], error["param"]) == (400, "Bad Request", None)


def check_refusal(task: str, body: object, param: str | None) -> None:
    error = client_of(task).post(PATH, json=body).get_json()["error"]
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", param)


def test_adapter_header_overrides_the_model_of_the_body() -> None:
    headers = {"X-Amzn-SageMaker-Adapter-Identifier": "missing"}
    assert client_of("generate").post(PATH, json=CHAT, headers=headers).status_code == 404


def test_streamed_sagemaker_invocation_is_counted_in_the_http_metrics() -> None:
    told = client_of("generate").post(PATH, json={**CHAT, "stream": True})
    assert told.headers["Content-Type"].startswith("text/event-stream")
    assert told.text.endswith("data: [DONE]\n\n")
    count = f'http_requests_total{{handler="{PATH}",method="POST",status="2xx"}}'
    assert count in client_of("generate").get("/metrics").text


def test_adapter_header_does_not_change_the_lone_surrogate_error() -> None:
    client = client_of("generate")
    body = {**CHAT, "unknown_field": "\ud800"}
    headers = {"X-Amzn-SageMaker-Adapter-Identifier": "understudy-tiny"}
    answer = client.post(PATH, json=body)
    assert answer.status_code == 400
    answer_of_header = client.post(PATH, json=body, headers=headers)
    assert (answer_of_header.status_code, answer_of_header.data) == (400, answer.data)
