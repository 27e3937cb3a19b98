"""Responses before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of
from tests.conformance.calls import parsed

PATH = "/v1/responses"
HELLO = {"input": "hi", "max_output_tokens": 3}
TOOL = {"type": "function", "name": "ping", "parameters": {"type": "object"}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Red", "annotations": []}],
}
Body = dict[str, Any]


def client_of(version: str) -> Client:
    return app_of("--vllm-version", version, "--seed", "1").test_client()


def posted(version: str, **fields: object) -> tuple[int, Body]:
    answer = client_of(version).post(PATH, json=HELLO | fields)
    body: Body = json.loads(answer.data)
    return answer.status_code, body


@pytest.mark.parametrize(
    ("fields", "release", "before", "after"),
    [
        ({"parallel_tool_calls": None}, ("0.25", "0.26"), 400, 200),
        ({"tool_choice": "required"}, ("0.19", "0.20"), 200, 400),
        ({"input": [{"role": "user", "content": "hi"}, THOUGHT]}, ("0.20", "0.21"), 500, 400),
        ({"text": {"format": {"type": "json_object"}}}, ("0.14", "0.15"), 500, 200),
        ({"enable_response_messages": True}, ("0.13", "0.14"), 400, 200),
        ({"input": [ANSWER]}, ("0.11", "0.12"), 400, 200),
        ({"tools": [TOOL]}, ("0.11.0", "0.11.1"), 400, 200),
    ],
)
def test_acceptance_changes_with_the_release(
    fields: Body, release: tuple[str, str], before: int, after: int
) -> None:
    old, new = release
    assert posted(old, **fields)[0] == before
    assert posted(new, **fields)[0] == after


def test_choice_of_an_unknown_tool_names_its_field_since_020() -> None:
    choice = {"type": "function", "name": "other"}
    errors = [
        posted(version, tools=[TOOL], tool_choice=choice)[1]["error"]
        for version in ("0.19", "0.20")
    ]
    assert (errors[0]["param"], errors[1]["param"]) == (None, "tool_choice")
    assert "'other'" in errors[0]["message"]


def test_responses_have_new_fields_and_names_since_020() -> None:
    old = posted("0.19", tools=[TOOL])[1]
    new = posted("0.20", tools=[TOOL])[1]
    assert {"presence_penalty", "frequency_penalty"} <= new.keys() - old.keys()
    assert "async_" in old["tools"][0]
    assert "async" in new["tools"][0]
    assert posted("0.19")[1]["tool_choice"] == "auto"
    assert posted("0.20")[1]["tool_choice"] == "none"


def test_streamed_responses_lack_the_same_fields() -> None:
    for version, has_penalty in (("0.19", False), ("0.20", True)):
        stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
        responses = [event["response"] for event in parsed(stream.data) if "response" in event]
        assert len(responses) == 3
        for response in responses:
            assert ("presence_penalty" in response) == has_penalty


def test_required_calls_show_their_format_before_024() -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 60}
    for version, name in (("0.19", "schema_"), ("0.20", "schema"), ("0.23", "schema")):
        form = posted(version, **fields)[1]["text"]["format"]
        assert form["name"] == "tool_calling_response"
        assert form[name]["items"]["anyOf"][0]["properties"]["name"]["enum"] == ["ping"]
    assert posted("0.24", **fields)[1]["text"] is None


def test_named_calls_show_the_schema_of_their_tool_before_024() -> None:
    choice = {"type": "function", "name": "ping"}
    fields = {"tools": [TOOL], "tool_choice": choice, "max_output_tokens": 60}
    form = posted("0.23", **fields)[1]["text"]["format"]
    assert form["schema"] == TOOL["parameters"]
    assert posted("0.24", **fields)[1]["text"] is None


def test_streams_show_messages_as_texts_before_020() -> None:
    for version, kind in (("0.19", str), ("0.20", dict)):
        fields = {"stream": True, "enable_response_messages": True}
        stream = client_of(version).post(PATH, json=HELLO | fields)
        last = parsed(stream.data)[-1]["response"]
        assert isinstance(last["output_messages"][0], kind)


def test_calls_are_messages_of_their_own_before_022() -> None:
    items: list[Body] = [{"role": "user", "content": "hi"}]
    for number in (1, 2):
        call = {"type": "function_call", "call_id": f"c{number}", "name": "ping", "arguments": "{}"}
        items.append(call)
    for number in (1, 2):
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": "x"})
    old = posted("0.21", input=items)[1]["usage"]["input_tokens"]
    new = posted("0.22", input=items)[1]["usage"]["input_tokens"]
    assert old > new


def test_tokens_end_a_reply_since_032() -> None:
    stops = list(range(4096))
    fields = {"stop_token_ids": stops, "ignore_eos": True, "max_output_tokens": 9}
    old = posted("0.31", **fields)[1]["usage"]["output_tokens"]
    new = posted("0.32", **fields)[1]["usage"]["output_tokens"]
    assert old == 9
    assert new < 9


def test_items_of_streams_have_the_ids_of_the_final_response_since_032() -> None:
    fields = HELLO | {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200}
    for version in ("0.31", "0.32"):
        stream = client_of(version).post(PATH, json=fields | {"stream": True})
        events = parsed(stream.data)
        added = [event["item"] for event in events if event["type"].endswith("item.added")]
        done = [event["item"] for event in events if event["type"].endswith("item.done")]
        [final] = [event["response"] for event in events if event["type"].endswith("completed")]
        streamed = [(item["id"], item["call_id"]) for item in added]
        assert streamed == [(item["id"], item["call_id"]) for item in done]
        assert {event["item_id"] for event in events if "item_id" in event} <= {
            item["id"] for item in added
        }
        last = [(item["id"], item["call_id"]) for item in final["output"]]
        assert (streamed == last) is (version == "0.32")
        prefix = "" if version == "0.31" else "fc_"
        assert all(len(item_id) == len(prefix) + 16 for item_id, _ in streamed)


def test_cut_responses_are_completed_before_014() -> None:
    old = posted("0.13")[1]
    new = posted("0.14")[1]
    assert (old["status"], old["incomplete_details"]) == ("completed", None)
    assert (new["status"], new["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    for version, status in (("0.13", "completed"), ("0.14", "incomplete")):
        stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
        assert parsed(stream.data)[-1]["response"]["status"] == status


def test_parts_are_counted_by_event_before_017() -> None:
    for version, is_counted in (("0.16", True), ("0.17", False)):
        stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
        indexes = [
            event["content_index"] for event in parsed(stream.data) if "content_index" in event
        ]
        assert indexes == ([*range(len(indexes))] if is_counted else [0] * len(indexes))


def test_messages_have_no_phase_before_017() -> None:
    for version, has_phase in (("0.16", False), ("0.17", True)):
        assert ("phase" in posted(version)[1]["output"][0]) == has_phase


def test_usage_has_no_counts_by_turn_before_011() -> None:
    for version, has_turns in (("0.11.0", False), ("0.11.1", True)):
        details = posted(version)[1]["usage"]["input_tokens_details"]
        assert ("input_tokens_per_turn" in details) == has_turns
