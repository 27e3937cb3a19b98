"""Fields and states of responses that depend on the simulated version of vLLM."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of
from tests.conformance.calls import parsed

PATH = "/v1/responses"
CACHE_FIELDS = {
    "prompt_cache_key": "tenant",
    "prompt_cache_options": {"mode": "explicit", "prewarm": True, "comparison_response_id": "r1"},
    "prompt_cache_retention": "in-memory",
    "safety_identifier": "user-1",
}
REPEATED = {
    "prompt_cache_key": "tenant",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m", "comparison_response_id": "r1"},
    "prompt_cache_retention": "in_memory",
    "safety_identifier": "user-1",
}
LONGER = {"max_output_tokens": 3, "ignore_eos": True}
WRONG_VALUES = [
    ("prompt_cache_options", {"mode": "zzz"}, "body.prompt_cache_options.mode"),
    ("prompt_cache_options", {"mode": None}, "body.prompt_cache_options.mode"),
    ("prompt_cache_options", {"ttl": "1h"}, "body.prompt_cache_options.ttl"),
    ("prompt_cache_options", {"prewarm": 2}, "body.prompt_cache_options.prewarm"),
    ("prompt_cache_options", "explicit", "body.prompt_cache_options"),
    ("prompt_cache_retention", "7d", "body.prompt_cache_retention"),
    ("safety_identifier", 5, "body.safety_identifier"),
    ("spaces_between_special_tokens", None, "body.spaces_between_special_tokens"),
]


def client_of(version: str, *flags: str) -> Client:
    return app_of("--vllm-version", version, "--seed", "1", *flags).test_client()


def response_of(client: Client, **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"input": "hi", "max_output_tokens": 3} | fields)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = json.loads(answer.data)
    return response


def events_of(client: Client, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(PATH, json={"input": "hi", "stream": True} | fields)
    return parsed(answer.data)


def test_prompt_cache_fields_are_returned_in_the_order_of_vllm() -> None:
    response = response_of(client_of("0.33"), **CACHE_FIELDS)
    assert {name: response[name] for name in REPEATED} == REPEATED
    keys = list(response)
    start = keys.index("prompt")
    assert keys[start : start + 7] == [
        "prompt",
        "prompt_cache_options",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
    ]


def test_prompt_cache_fields_are_null_unless_the_request_sets_them() -> None:
    response = response_of(client_of("0.33"))
    assert [response[name] for name in REPEATED] == [None] * 4
    [created, *_, ended] = events_of(client_of("0.33"), **LONGER, **CACHE_FIELDS)
    for event in (created, ended):
        assert {name: event["response"][name] for name in REPEATED} == REPEATED


@pytest.mark.parametrize(("name", "value", "param"), WRONG_VALUES)
def test_invalid_prompt_cache_fields_are_rejected(name: str, value: Any, param: str) -> None:
    answer = client_of("0.33").post(PATH, json={"input": "hi", name: value})
    assert answer.status_code == 400
    assert json.loads(answer.data)["error"]["param"] == param


@pytest.mark.parametrize(("name", "value", "param"), WRONG_VALUES)
def test_version_0_32_ignores_prompt_cache_fields(name: str, value: Any, param: str) -> None:
    response = response_of(client_of("0.32"), **{name: value})
    assert not set(REPEATED) & set(response)


@pytest.mark.parametrize(("version", "status"), [("0.32", "completed"), ("0.33", "incomplete")])
def test_truncated_message_is_incomplete_from_version_0_33(version: str, status: str) -> None:
    response = response_of(client_of(version), **LONGER)
    assert response["status"] == "incomplete"
    assert [item["status"] for item in response["output"]] == [status]
    events = events_of(client_of(version), **LONGER)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == [status]
    assert events[-1]["type"] == f"response.{status}"
    assert events[-1]["response"]["output"] == done
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_message_that_ends_before_the_token_limit_has_the_status_completed(version: str) -> None:
    choice = {"structured_outputs": {"choice": ["yes"]}, "max_output_tokens": 50}
    client = client_of(version)
    response = response_of(client, **choice)
    assert (response["status"], response["output"][0]["status"]) == ("completed", "completed")
    events = events_of(client, **choice)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["status"] == "completed"


def test_stored_stream_ends_with_the_incomplete_response() -> None:
    client = client_of("0.33", "--enable-responses-store")
    events = events_of(client, **LONGER, background=True)
    assert events[-1]["type"] == "response.incomplete"
    stored = client.get(f"{PATH}/{events[0]['response']['id']}").json
    assert stored is not None
    assert stored["status"] == "incomplete"
    assert stored["output"] == events[-1]["response"]["output"]
