"""Streamed or whole, in small events or large ones: a message says the same, block by block."""

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import EngineOutput, Failed, Finish, Part, Started, Tokens
from app.core.server.http.errors import ApiError, internal, too_many
from app.extensions.anthropic.rules import MessageRules
from app.extensions.anthropic.writer import MessageWriter
from tests.conformance.calls import parsed
from tests.core.api.segments import Segment, body_of, call, segments, told, whole

META = ResponseMeta("chatcmpl-1", 1_700_000_000, "a model", "fp")
PLAIN = MessageRules(has_anthropic_types=False)


def answer(cached_details: bool = False) -> MessageWriter:
    ids = count(1)
    return MessageWriter(META, 16, cached_details, lambda: str(next(ids)), rules=PLAIN)


def named(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    return [(event["type"], event) for event in parsed(data)]


def streamed(
    writer: MessageWriter, events: Sequence[EngineOutput]
) -> list[tuple[str, dict[str, Any]]]:
    return named(b"".join(map(writer.chunk, events)) + writer.closing())


def gathered(events: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The message that a client puts together; AssertionError when blocks are not well formed."""
    message = dict(events[0][1]["message"])
    content: list[dict[str, Any]] = []
    is_open = False
    for kind, event in events[1:-2]:
        assert is_open == (kind != "content_block_start")
        if kind == "content_block_start":
            content.append(dict(event["content_block"]))
            is_open = True
        elif kind == "content_block_delta":
            add(content[-1], event["delta"])
        else:
            assert kind == "content_block_stop"
            is_open = False
        assert event["index"] == len(content) - 1
    assert not is_open
    assert [kind for kind, _ in events[-2:]] == ["message_delta", "message_stop"]
    ending = events[-2][1]
    return {
        **message,
        **ending["delta"],
        "usage": ending["usage"],
        "content": [*map(finished, content)],
    }


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta:
        case {"type": "text_delta", "text": text}:
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            block["thinking"] += text
        case {"type": "signature_delta", "signature": signature}:
            assert "signature" not in block
            block["signature"] = signature
        case {"type": "input_json_delta", "partial_json": text}:
            block["input"] = (block["input"] or "") + text


def finished(block: dict[str, Any]) -> dict[str, Any]:
    if isinstance(block.get("input"), str):
        return {**block, "input": json.loads(block["input"])}
    return block


REASONS = st.sampled_from(["stop", "length"])
FINISH = st.builds(Finish, REASONS, st.none() | st.just("END") | st.integers(0, 9))


@given(segments=segments(), finish=FINISH, most_tokens=st.integers(1, 6), cached=st.integers(0, 16))
@settings(max_examples=25, deadline=None)
def test_streamed_message_has_the_same_content_as_the_complete_message(
    segments: list[Segment], finish: Finish, most_tokens: int, cached: int
) -> None:
    events = told(segments, finish, most_tokens, cached)
    body = whole(answer(True), events)
    if body["content"] == [{"type": "text", "text": ""}]:
        body["content"] = []  # which only a whole message fills
    assert gathered(streamed(answer(True), events)) == {"stop_sequence": None, **body}
    assert body["usage"]["output_tokens"] == sum(
        len(e.ids) for e in events if isinstance(e, Tokens)
    )


@pytest.mark.parametrize(
    ("finish", "part", "reason", "sequence"),
    [
        (Finish("stop"), None, "end_turn", None),
        (Finish("stop", 7), None, "end_turn", None),
        (Finish("stop", "END"), None, "stop_sequence", "END"),
        (Finish("length"), None, "max_tokens", None),
        (Finish("stop"), call(0), "tool_use", None),
        (Finish("length"), call(0), "max_tokens", None),
        (Finish("abort"), None, None, None),
    ],
)
def test_finish_reason_maps_to_the_anthropic_stop_reason(
    finish: Finish, part: Part | None, reason: str | None, sequence: str | None
) -> None:
    events = told([(part, ["{}"])], finish)
    delta = streamed(answer(), events)[-2][1]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}
    body = whole(answer(), events)
    assert (body.get("stop_reason"), body.get("stop_sequence")) == (reason, sequence)


def tool_use(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"chatcmpl-tool-{number}", "name": name, "input": arguments}


def _not_an_object(value: str, kind: str) -> str:
    """Pydantic's error, as vLLM 0.32 has sent it."""
    return (
        "1 validation error for AnthropicContentBlock\ninput\n  Input should be a valid dictionary "
        f"[type=dict_type, input_value={value}, input_type={kind}]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/dict_type"
    )


def test_tool_use_block_opens_with_its_name_before_its_arguments() -> None:
    writer = answer()
    writer.chunk(Started(0, 0.5))
    ((kind, opened),) = named(writer.chunk(Tokens(0, [""], [1], 1.0, part=call(0))))
    assert (kind, opened["content_block"]) == ("content_block_start", tool_use(1, "weather", {}))
    assert writer.chunk(Tokens(0, [""], [2], 1.0, part=call(0))) == b""
    segments = [(call(0), ["", '{"a":', "1}"]), (call(1, "time"), ["", "{}"])]
    content = whole(answer(), told(segments, Finish("stop")))["content"]
    assert content == [tool_use(1, "weather", {"a": 1}), tool_use(2, "time", {})]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"a": ', "Expecting value: line 1 column 7 (char 6)"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{'a': 1}", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('"a"', _not_an_object("'a'", "str")),
        ("true", _not_an_object("True", "bool")),
        (json.dumps("x" * 300), _not_an_object(f"'{'x' * 24}...{'x' * 23}'", "str")),
        ('{"a": 1e999}', "Out of range float values are not JSON compliant"),
    ],
)
def test_whole_message_without_an_object_of_arguments_is_an_error(
    arguments: str, message: str
) -> None:
    with pytest.raises(ApiError) as raised:
        whole(answer(), told([(call(0), [arguments])], Finish("length")))
    assert (raised.value.status, raised.value.type) == (400, "BadRequestError")
    assert raised.value.message == message


def test_failure_is_sent_as_an_error_event_only_if_the_reply_is_streamed() -> None:
    for error, kind in (
        (internal("It broke."), "InternalServerError"),
        (too_many("Full."), "RateLimitError"),
        (ApiError(418, "Teapot", "No coffee."), "Teapot"),
        (ValueError("a detail of ours"), "InternalServerError"),
    ):
        writer = answer()
        writer.chunk(Started(0, 0.5))
        writer.chunk(Tokens(0, ["Hi"], [1], 1.0))
        ((name, event),) = named(writer.chunk(Failed(0, error)) + writer.closing())
        assert name == "error" and list(event["error"]) == ["type", "message"]
        assert event["error"]["type"] == kind and "detail" not in event["error"]["message"]
        with pytest.raises(type(error), match=str(error)):
            body_of(answer(), [Started(0, 0.5), Failed(0, error)])
