"""With `responses-dialect: open`, answers and events are those of the Open Responses specification."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import gevent
import pytest
import requests

from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import Failed, Finish, Started, Tokens
from app.core.server.http.errors import internal, too_many
from app.extensions.responses.open_dialect import (
    OpenRequest,
    OpenResponse,
    OpenResponsesWriter,
    open_response,
)
from app.extensions.responses.protocol import ResponseObject
from app.extensions.responses.writer import ResponsesOptions
from tests.client import Client, in_process
from tests.extensions.responses.open_schema import (
    ERROR_PAYLOAD,
    RESPONSE,
    Schema,
    event_flaws,
    flaws,
    keys,
)
from tests.stubs import eventually

PATH = "/v1/responses"
META = ResponseMeta("resp_1", 1_700_000_000, "a model", "fp")
ENDED_AT = 1_700_000_009
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
}
SHELL = {"type": "custom", "name": "shell"}
CITY = {
    "type": "json_schema",
    "name": "city",
    "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_output_tokens": 3, "ignore_eos": True},
    "repeated": {
        "instructions": "Be brief.",
        "metadata": {"trace": "abc"},
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "safety_identifier": "user-1",
        "prompt_cache_key": "key-1",
        "user": "someone",
        "service_tier": "flex",
        "temperature": 0.5,
    },
    "tools": {"tools": [WEATHER], "tool_choice": "required"},
    "named tool": {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
    "schema": {"text": {"format": CITY}},
    "log probabilities": LOGPROBS,
    "cut log probabilities": {**LOGPROBS, "max_output_tokens": 2, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process("--responses-dialect", "open", "--enable-responses-store") as opened:
        yield opened


def events_of(answer: requests.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types, and which ends with `[DONE]`."""
    assert answer.status_code == 200, answer.text
    *events, done, tail = answer.text.split("\n\n")
    assert (done, tail) == ("data: [DONE]", "")
    parsed = []
    for event in events:
        name, data = event.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        parsed.append(fields)
    assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
    return parsed


@pytest.mark.parametrize("name", REQUESTS)
def test_responses_have_the_keys_of_the_specification(client: Client, name: str) -> None:
    answer = client.post(PATH, {"input": "hi", **REQUESTS[name]})
    assert answer.status_code == 200, answer.text
    response = answer.json()
    assert flaws(response, RESPONSE) == []
    is_cut = response["status"] == "incomplete"
    assert is_cut == (response["incomplete_details"] is not None)
    assert is_cut == (response["completed_at"] is None)
    assert response["output"][-1]["status"] == response["status"]
    assert client.get(f"{PATH}/{response['id']}").json() == response


@pytest.mark.parametrize("name", REQUESTS)
def test_stream_events_have_the_keys_of_the_specification(client: Client, name: str) -> None:
    events = events_of(client.post(PATH, {"input": "hi", "stream": True, **REQUESTS[name]}))
    assert [flaw for event in events for flaw in event_flaws(event)] == []
    *_, last = events
    assert last["type"] == f"response.{last['response']['status']}"


def test_vllm_dialect_lacks_five_keys_required_by_open_responses() -> None:
    with in_process() as client:
        found_flaws = flaws(client.post(PATH, {"input": "hi"}).json(), RESPONSE)
        missing = [flaw for flaw in found_flaws if "is a required property" in flaw]
        assert {flaw.split("'")[1] for flaw in missing} == {
            *("completed_at", "error", "store", "safety_identifier", "prompt_cache_key")
        }


def test_response_repeats_the_fields_of_the_request(client: Client) -> None:
    response = client.post(PATH, {"input": "hi", **REQUESTS["repeated"]}).json()
    assert response["safety_identifier"] == "user-1"
    assert response["prompt_cache_key"] == "key-1"
    assert response["metadata"] == {"trace": "abc"}
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_store_field_is_true_only_if_the_response_can_be_retrieved(client: Client) -> None:
    assert client.post(PATH, {"input": "hi"}).json()["store"] is True
    assert client.post(PATH, {"input": "hi", "store": False}).json()["store"] is False
    with in_process("--responses-dialect", "open") as other:
        assert other.post(PATH, {"input": "hi"}).json()["store"] is False


def test_custom_tool_calls_have_the_keys_of_the_specification(client: Client) -> None:
    body = {"input": "hi", "tools": [SHELL], "tool_choice": "required"}
    events = events_of(client.post(PATH, {**body, "stream": True}))
    for item in [events[2]["item"], *events[-1]["response"]["output"]]:
        assert item["type"] == "custom_tool_call" and item["id"] and item["status"]


def test_reasoning_has_the_events_of_the_specification() -> None:
    flags = ("--responses-dialect", "open", "--reasoning-parser", "qwen3")
    with in_process(*flags) as client:
        body = {"input": "hi", "reasoning": {"effort": "high"}, "max_output_tokens": 200}
        events = events_of(client.post(PATH, {**body, "stream": True}))
        assert [flaw for event in events for flaw in event_flaws(event)] == []
        kinds = {event["type"] for event in events}
        assert {"response.reasoning.delta", "response.reasoning.done"} <= kinds
        response = client.post(PATH, body).json()
        assert flaws(response, RESPONSE) == []
        assert response["output"][0]["type"] == "reasoning"
        assert "encrypted_content" not in response["output"][0]


def end_time() -> int:
    return ENDED_AT


def writer(ended: list[ResponseObject]) -> OpenResponsesWriter:
    response = open_response(OpenRequest(input="hi"), META, 9, is_stored=False)
    return OpenResponsesWriter(
        ResponsesOptions(response=response, prompt_ids=[5] * 16),
        map(str, count(1)).__next__,
        ended.append,
        now_s=end_time,
    )


def test_completed_response_has_a_completion_time() -> None:
    ended: list[ResponseObject] = []
    whole = writer(ended)
    whole.collect(Started(0, 1.0, 0))
    whole.collect(Tokens(0, ["a"], [1], 1.0, finish=Finish("stop", None)))
    body = json.loads(whole.body())
    assert (body["created_at"], body["completed_at"]) == (1_700_000_000, ENDED_AT)
    [stored] = ended
    assert isinstance(stored, OpenResponse) and stored.completed_at == ENDED_AT


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (internal("broken"), "server_error", "server_error"),
        (too_many("busy"), "too_many_requests", "rate_limit_exceeded"),
    ],
)
def test_failed_stream_sends_an_error_event_before_its_last_event(
    error: Exception, kind: str, code: str
) -> None:
    ended: list[ResponseObject] = []
    stream = writer(ended)
    data = stream.chunk(Failed(0, error)) + stream.closing()
    answer = requests.Response()
    answer.status_code = 200
    answer._content = data
    events = events_of(answer)
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress", "error", "response.failed")
    ]
    assert [flaw for event in events for flaw in event_flaws(event)] == []
    assert events[2]["error"]["type"] == kind
    assert events[2]["error"]["code"] == events[3]["response"]["error"]["code"] == code
    assert ended[0].status == "failed"


@pytest.mark.parametrize(
    ("body", "status", "kind", "code"),
    [
        ({}, 400, "invalid_request", None),
        ({"input": "hi", "temperature": -1}, 400, "invalid_request", None),
        ({"input": "hi", "model": "missing"}, 404, "not_found", "model_not_found"),
        ({"input": "hi", "previous_response_id": "resp_x"}, 404, "not_found", None),
    ],
)
def test_errors_have_the_types_of_the_specification(
    client: Client, body: dict[str, Any], status: int, kind: str, code: str | None
) -> None:
    answer = client.post(PATH, body)
    assert answer.status_code == status
    payload: Schema = keys({"error": ERROR_PAYLOAD})
    assert flaws(answer.json(), payload) == []
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, code)


def test_unknown_stored_response_returns_a_404_error_of_type_not_found(client: Client) -> None:
    for answer in (client.get(f"{PATH}/resp_x"), client.post(f"{PATH}/resp_x/cancel")):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found"


def test_replayed_event_stream_ends_with_done() -> None:
    flags = ("--responses-dialect", "open", "--enable-responses-store")
    with in_process(*flags, "--inter-token-latency", "20ms") as client:
        body = {"input": "hi", "max_output_tokens": 5, "ignore_eos": True, "background": True}
        events = events_of(client.post(PATH, {**body, "stream": True}))
        assert [flaw for event in events for flaw in event_flaws(event)] == []
        assert events[-1]["type"] == "response.incomplete"
        address = f"{PATH}/{events[0]['response']['id']}"
        last = events[-1]["sequence_number"]
        later = client.get(f"{address}?stream=true&starting_after={last - 1}").text
        assert later.count("data: ") == 2 and later.endswith("data: [DONE]\n\n")
        assert flaws(client.get(address).json(), RESPONSE) == []


def test_cancelled_stream_ends_with_done() -> None:
    flags = ("--responses-dialect", "open", "--enable-responses-store")
    with in_process(*flags, "--inter-token-latency", "50ms") as client:
        body = {
            "input": "hi",
            "request_id": "resp_mine",
            "max_output_tokens": 200,
            "ignore_eos": True,
            "background": True,
            "stream": True,
        }

        def is_stored() -> bool:
            return client.get(f"{PATH}/resp_mine").status_code == 200

        streaming = gevent.spawn(client.post, PATH, body)
        eventually(is_stored)
        cancelled = client.post(f"{PATH}/resp_mine/cancel").json()
        assert cancelled["status"] == "cancelled" and flaws(cancelled, RESPONSE) == []
        assert streaming.get(timeout=5).text.endswith("\n\ndata: [DONE]\n\n")
