"""Streamed or whole, in small events or large ones: a response says the same, item by item."""

import re
from collections.abc import Sequence
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import EngineOutput, Failed, Finish, Started, Tokens
from app.core.server.http.errors import bad_request, internal, too_many
from app.extensions.responses.protocol import ResponseObject, ResponsesRequest
from app.extensions.responses.response import new_response
from app.extensions.responses.writer import ResponsesOptions, ResponsesWriter
from tests.client import Client
from tests.conformance.calls import parsed
from tests.core.api.segments import IMAGE, THOUGHT, Segment, segments, told, whole

META = ResponseMeta("resp_1", 1_700_000_000, "a model", "fp")
FINISH = st.builds(Finish, st.sampled_from(["stop", "length", "abort"]), st.none() | st.just("END"))


def answer(
    ended: list[ResponseObject] | None = None, fields: Any = None, **shape: Any
) -> ResponsesWriter:
    response = new_response(ResponsesRequest(input="hi", **(fields or {})), META, 9)
    return ResponsesWriter(
        ResponsesOptions(**{"response": response, "prompt_ids": [5] * 16, **shape}),
        map(str, count(1)).__next__,
        (ended if ended is not None else []).append,
    )


def streamed(writer: ResponsesWriter, events: Sequence[EngineOutput]) -> list[dict[str, Any]]:
    events_ = parsed(b"".join(map(writer.chunk, events)) + writer.closing())
    assert [event["sequence_number"] for event in events_] == list(range(len(events_)))
    return events_


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def gathered(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client puts together; AssertionError when one is not well formed."""
    assert kinds(events[:2]) == ["created", "in_progress"]
    items: list[dict[str, Any]] = []
    open_item: dict[str, Any] | None = None
    text = ""
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            open_item = event["item"]
            text = ""
            assert open_item.get("status", "in_progress") == "in_progress"
        assert open_item is not None
        assert event["output_index"] == len(items)
        assert event.get("item_id", open_item["id"]) == open_item["id"]
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind.endswith("text.done"):
            assert event["text"] == text
        elif kind.endswith("arguments.done"):
            assert (event["arguments"], event["name"]) == (text, open_item["name"])
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == text
        elif kind == "output_item.done":
            assert event["item"]["id"] == open_item["id"]
            items.append(event["item"])
            open_item = None
    assert open_item is None
    return items


@given(
    segments=segments(),
    finish=FINISH,
    most_tokens=st.integers(1, 6),
    cached=st.integers(0, 16),
    top=st.none() | st.integers(0, 3),
    shows=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_streamed_response_equals_the_complete_response(
    segments: list[Segment],
    finish: Finish,
    most_tokens: int,
    cached: int,
    top: int | None,
    shows: bool,
) -> None:
    events = told(segments, finish, most_tokens, cached, top is not None)
    shape = {"top_logprobs": top, "shows_reasoning": shows, "parses": True}
    body = whole(answer(**shape), events)
    stream_events = streamed(answer(**shape), events)
    assert stream_events[-1]["type"] == "response.completed"
    for item in body["output"]:
        item["status"] = "completed"  # which a whole response does not tell of thoughts
    assert stream_events[-1]["response"] == body
    assert gathered(stream_events) == body["output"]
    assert body["usage"]["output_tokens"] == sum(
        len(e.ids) for e in events if isinstance(e, Tokens)
    )


@given(segments=segments(), most_tokens=st.integers(1, 6), top=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_stream_events_and_final_messages_have_equal_logprobs(
    segments: list[Segment], most_tokens: int, top: int
) -> None:
    events = told(segments, Finish("stop"), most_tokens, logprobs=True)
    stream_events = streamed(answer(top_logprobs=top), events)
    in_events = [
        entry for event in stream_events if "delta" in event for entry in event.get("logprobs", ())
    ]
    in_items = [
        entry
        for item in stream_events[-1]["response"]["output"]
        if item["type"] == "message"
        for content in item["content"]
        for entry in content["logprobs"]
    ]
    texts = [
        text
        for event in events
        if isinstance(event, Tokens) and event.part is None
        for text in event.texts
    ]
    assert [entry["token"] for entry in in_events] == texts
    if all(texts):
        assert [(entry["token"], entry["logprob"]) for entry in in_items] == [
            (t, -1.0) for t in texts
        ]
    assert all(len(entry["top_logprobs"]) == top for entry in [*in_events, *in_items])


def test_empty_reply_becomes_a_message_unless_streamed_or_parsed() -> None:
    """Where thoughts or calls are parsed out of the text, and in a stream, nothing is made of no
    text.
    """
    nothing: list[list[Segment]] = [[], [(None, ["", ""])], [(THOUGHT, [""])]]
    for shown in nothing:
        events = told(shown, Finish("stop"))
        (item,) = whole(answer(), events)["output"]
        assert (item["type"], item["content"], item["status"]) == ("message", [], "completed")
        assert whole(answer(parses=True), events)["output"] == []
        stream_events = streamed(answer(), events)
        assert kinds(stream_events) == ["created", "in_progress", "completed"]
        assert stream_events[-1]["response"]["output"] == []
    shape = {"parses": True, "shows_reasoning": False}
    hidden = told([(THOUGHT, ["Hm", "m"])], Finish("length"))
    assert whole(answer(**shape), hidden)["output"] == []
    assert kinds(streamed(answer(**shape), hidden)) == ["created", "in_progress", "completed"]


def test_response_contains_transfer_parameters_raw_messages_and_usage() -> None:
    events = told([(None, ["Look"]), (IMAGE, ["data:image/png;base64,AA=="])], Finish("stop"))
    body = whole(answer(), events)
    assert [content["text"] for content in body["output"][0]["content"]] == ["Look"], "no image"
    assert body["usage"]["output_tokens"] == 2
    writer = answer()
    transfers = cast(Any, ({"remote_host": "a"}, {"b": 1}))
    writer.transfer, writer.encoded_media = transfers
    stream_events = streamed(writer, told([(None, ["Hi"])], Finish("stop")))
    assert stream_events[0]["response"]["kv_transfer_params"] is None
    assert stream_events[-1]["response"]["kv_transfer_params"] == {"remote_host": "a"}
    assert stream_events[-1]["response"]["ec_transfer_params"] == {"b": 1}
    body = whole(
        answer(prompt_text="say hi"), told([(None, ["Hi", "!"])], Finish("stop"), most_tokens=2)
    )
    assert body["input_messages"] == [
        {"message": "say hi", "tokens": [5] * 16, "type": "raw_message_tokens"}
    ]
    assert body["output_messages"] == [
        {"message": "Hi!", "tokens": [0, 1], "type": "raw_message_tokens"}
    ]


@pytest.mark.parametrize("begun", [False, True])
def test_failure_ends_the_stream_with_a_failed_response(begun: bool) -> None:
    for error, code in (
        (internal("It broke."), "server_error"),
        (too_many("Full."), "rate_limit_exceeded"),
        (bad_request("Wrong: \ud800"), "invalid_prompt"),
        (ValueError("a detail of ours"), "server_error"),
    ):
        ended: list[ResponseObject] = []
        first_events = [Started(0, 0.5), Tokens(0, ["Hi"], [1], 1.0)] if begun else []
        stream_events = streamed(answer(ended), [*first_events, Failed(0, error)])
        assert kinds(stream_events[:2]) == ["created", "in_progress"]
        assert kinds(stream_events[-1:]) == ["failed"]
        failed = stream_events[-1]["response"]
        assert (failed["id"], failed["status"], failed["error"]["code"]) == (
            "resp_1",
            "failed",
            code,
        )
        assert "detail" not in failed["error"]["message"]
        assert [response.status for response in ended] == ["failed"]


def test_truncated_response_without_a_limit_has_no_room(client: Client) -> None:
    body = {"input": "hi " * 40_000, "max_output_tokens": None, "truncation": "auto"}
    answer = client.post("/v1/responses", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (
        400,
        "invalid_request_error",
        "input",
    )
    assert re.fullmatch(
        r"The engine prompt length (\d+) exceeds the max_model_len \1\. Please reduce prompt\.",
        error["message"],
    )


@pytest.mark.parametrize(("limit", "kept"), [(5, 1), (1, 1)])
def test_truncated_response_has_room_for_one_token(client: Client, limit: int, kept: int) -> None:
    body = {"input": "hi " * 40_000, "max_output_tokens": limit, "truncation": "auto"}
    answer = client.post("/v1/responses", body).json()
    assert answer["max_output_tokens"] == kept
    assert answer["usage"]["output_tokens"] == kept
