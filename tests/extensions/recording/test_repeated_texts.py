"""A text that an answer has in the fields of two APIs is read once."""

import json
from typing import Any

import pytest

from app.extensions.recording.recorded_reply import RecordedReply, reply_of
from tests.extensions.recording.recordings import JSON_HEADERS, exchange

PIECES = ("one", " two", "")


def streamed(*choices: dict[str, Any]) -> RecordedReply:
    events = [{"choices": [{"index": 0, **choice}]} for choice in choices]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return reply_of(exchange({}, (0.0, body.encode())).answer)


def whole(answer: dict[str, Any]) -> RecordedReply:
    body = json.dumps(answer).encode()
    return reply_of(exchange({}, (0.0, body), headers=JSON_HEADERS).answer)


def test_text_beside_the_delta_of_a_stream_is_not_added() -> None:
    reply = streamed(*({"text": piece, "delta": {"content": piece}} for piece in PIECES))
    assert reply.text == "one two"
    assert reply.losses == []


def test_message_so_far_beside_the_delta_of_a_stream_is_not_added() -> None:
    """Perplexity's streams repeat the whole message in each event, and in a last one."""
    choices: list[dict[str, Any]] = []
    for number, piece in enumerate(PIECES, 1):
        message = {"role": "assistant", "content": "".join(PIECES[:number])}
        choices.append({"delta": {"content": piece}, "message": message})
    choices.append({"delta": {}, "message": message, "finish_reason": "stop"})
    assert streamed(*choices).text == "one two"


@pytest.mark.parametrize("other", [{"text": "one"}, {"delta": {"content": ""}}])
def test_message_of_a_whole_answer_is_its_only_text(other: dict[str, Any]) -> None:
    reply = whole({"choices": [{"index": 0, "message": {"content": "one"}, **other}]})
    assert reply.text == "one"


@pytest.mark.parametrize("empty", [{}, {"delta": {"role": "assistant"}}, {"delta": None}])
def test_text_without_the_content_of_a_message_is_read(empty: dict[str, Any]) -> None:
    assert streamed({"text": "one", **empty}).text == "one"
    assert whole({"choices": [{"index": 0, "text": "one", **empty}]}).text == "one"


def test_calls_beside_a_text_are_read_once() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [call]}
    reply = streamed({"text": "", "delta": message, "message": message})
    assert [(made.name, made.arguments) for made in reply.calls] == [("f", "{}")]


def test_choices_beside_the_output_of_a_response_are_not_added() -> None:
    content = [{"type": "output_text", "text": "one"}]
    reply = whole(
        {
            "object": "response",
            "status": "completed",
            "output": [{"type": "message", "content": content}],
            "choices": [{"index": 0, "message": {"content": "one"}}],
        }
    )
    assert reply.text == "one"
