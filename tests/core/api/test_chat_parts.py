"""Thoughts, tool calls and images in chat answers: streamed or whole, they say the same."""

import json
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import EngineOutput, Finish, Part, Started, Tokens
from tests.core.api import segments
from tests.core.api.segments import THOUGHT

META = ResponseMeta("id-1", 1_700_000_000, "a model", "fp")
STOP = Finish("stop")


def call(number: int, name: str = "look") -> Part:
    return Part("call", number, name)


def tokens(texts: list[str], part: Part | None = None, finish: Finish | None = None) -> Tokens:
    return Tokens(
        0, texts, ids=list(range(len(texts))), at_s=1.0, logprobs=None, finish=finish, part=part
    )


def shape(**fields: Any) -> ChatResponseOptions:
    numbers = count()
    options = {
        "n": 1,
        "prompt_ids": [1, 2, 3],
        "new_call_id": lambda: f"call-{next(numbers)}",
        **fields,
    }
    return ChatResponseOptions(**options)


def chunks(events: list[EngineOutput], **fields: Any) -> list[dict[str, Any]]:
    answer = ChatWriter(META, shape(**fields))
    data = b"".join(
        [
            answer.chunk(Started(0, 0.5)),
            *(answer.chunk(event) for event in events),
            answer.closing(),
        ]
    )
    return [
        json.loads(block[6:])
        for block in data.decode().split("\n\n")
        if block and block[6:] != "[DONE]"
    ]


def deltas(events: list[EngineOutput], **fields: Any) -> list[dict[str, Any]]:
    return [
        chunk["choices"][0]["delta"] for chunk in chunks(events, **fields)[1:] if chunk["choices"]
    ]


def whole(events: list[EngineOutput], **fields: Any) -> dict[str, Any]:
    return segments.whole(ChatWriter(META, shape(**fields)), [Started(0, 0.5), *events])


MARKED_UP: list[EngineOutput] = [
    tokens(["", "", '{"a"', ": 1}", ""], call(0)),
    tokens(["", "{}", ""], call(1, "seek"), STOP),
]
"""Two calls as a model with markup makes them."""
NAMED: list[EngineOutput] = [tokens(['{"a"', ": 1}"], call(0), STOP)]


def begun(number: int, name: str) -> dict[str, Any]:
    return {"id": f"call-{number}", "type": "function", "index": number, "function": {"name": name}}


def arguments_delta(number: int, arguments: str) -> dict[str, Any]:
    return {"index": number, "function": {"arguments": arguments}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"content": None, "tool_calls": [*calls]}


def test_streamed_tool_call_starts_with_its_id_and_name() -> None:
    written = deltas(MARKED_UP)
    assert written == [
        calling(begun(0, "look")),
        calling(arguments_delta(0, '{"a"')),
        calling(arguments_delta(0, ": 1}")),
        calling(begun(1, "seek")),
        calling(arguments_delta(1, "{}")),
        {},
    ]
    assert [list(delta) for delta in written[:-1]] == [["content", "tool_calls"]] * 5
    assert list(written[0]["tool_calls"][0]) == ["id", "type", "index", "function"]


def test_tool_call_is_not_streamed_before_its_name_is_complete() -> None:
    """A token that completes the name and begins the arguments tells both."""
    name_and_arguments = calling(begun(0, "look"), arguments_delta(0, '{"a"'))
    assert deltas(NAMED, named_tool=True) == [
        name_and_arguments,
        calling(arguments_delta(0, ": 1}")),
    ]
    events: list[EngineOutput] = [
        tokens(["", ""], call(0, "")),
        tokens(["", "{}", ""], call(0), STOP),
    ]
    assert deltas(events) == [calling(begun(0, "look")), calling(arguments_delta(0, "{}")), {}]
    (tool_call,) = whole(events)["choices"][0]["message"]["tool_calls"]
    assert tool_call["function"] == {"name": "look", "arguments": "{}"}


def test_continuous_usage_counts_the_markup_tokens_up_to_each_chunk() -> None:
    usages = [
        chunk["usage"]["completion_tokens"] for chunk in chunks(MARKED_UP, continuous_usage=True)
    ]
    assert usages == [0, 1, 3, 4, 6, 7, 8]


CUT = [
    tokens(["", "", ""], Part("call", 0, "", '<tool_call>{"na')),
    tokens(["", '{"a', '": "so'], Part("call", 0, "look", '<tool_call>{"name": "look", {"a": "so')),
]
"""Calls that were cut off before their name, and behind it."""


@pytest.mark.parametrize("part", [0, 1])
def test_truncated_tool_call_is_returned_as_text_unless_it_is_streamed(
    part: int,
) -> None:
    cut: list[EngineOutput] = [replace(CUT[part], finish=Finish("length"))]
    named = [
        calling(begun(0, "look")),
        calling(arguments_delta(0, '{"a')),
        calling(arguments_delta(0, '": "so')),
    ]
    assert deltas(cut) == (named if part else [{}])
    assert chunks(cut)[-1]["choices"][0]["finish_reason"] == "length"
    choice = whole(cut, forced_tool=True)["choices"][0]
    assert CUT[part].part is not None and choice["message"]["content"] == CUT[part].part.raw
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"


THINKING: list[EngineOutput] = [tokens(["Hm", "."], THOUGHT), tokens(["Yes", "."], None, STOP)]


def test_reasoning_precedes_the_content_and_is_counted_in_usage() -> None:
    assert deltas(THINKING, reasons=True) == [
        *({"reasoning": "Hm"}, {"reasoning": "."}),
        *({"content": "Yes"}, {"content": "."}),
    ]
    body = whole(THINKING, reasons=True)
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    usage = chunks(THINKING, reasons=True, include_usage=True)[-1]["usage"]
    assert (usage["completion_tokens"], usage["completion_tokens_details"]) == (
        4,
        {"reasoning_tokens": 2},
    )


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        *(({}, ""), ({"reasons": True}, None), ({"reasons": True, "forced_tool": True}, "")),
        *(({"reasons": True, "echo": ""}, ""), ({"reasons": True, "echo": "Eh?"}, "Eh?")),
    ],
)
def test_content_is_null_if_the_reply_has_only_reasoning(
    fields: dict[str, Any], content: str | None
) -> None:
    events: list[EngineOutput] = [tokens(["Hm", "."], THOUGHT, Finish("length"))]
    assert whole(events, **fields)["choices"][0]["message"]["content"] == content
    assert (
        whole([tokens([""], None, STOP)], **fields)["choices"][0]["message"]["content"] == content
    )


def test_empty_reasoning_token_is_sent_only_if_the_parser_emits_it() -> None:
    events: list[EngineOutput] = [tokens(["Hm", "", "."], THOUGHT), tokens([""], THOUGHT, STOP)]
    assert deltas(events, reasons=True) == [{"reasoning": "Hm"}, {"reasoning": "."}, {}]
    expected = [{"reasoning": text} for text in ("Hm", "", ".", "")]
    assert deltas(events, reasons=True, empty_thoughts=True) == expected
    assert deltas(events, reasons=True, parses=True, empty_thoughts=True, show_reasoning=False) == [
        {}
    ]


def test_truncated_last_tool_call_is_returned_as_raw_markup() -> None:
    markup = 'Let me see. <tool_call>{"na'
    reply: list[EngineOutput] = [
        tokens(["Let me", " see."]),
        tokens([""], Part("call", 0, "", markup)),
        tokens([""], Part("call", 0, "", markup), Finish("length")),
    ]
    [choice] = whole(reply)["choices"]
    assert choice["message"]["content"] == markup
    assert "tool_calls" not in choice["message"]


def test_response_metrics_contain_the_token_rate_and_the_mean_token_gap() -> None:
    started = Started(0, at_s=1.0, queued_s=0.0, scheduled_s=0.5)
    last = Tokens(0, ["a"] * 5, ids=[1] * 5, at_s=3.0, logprobs=None, finish=STOP)
    answer = segments.whole(ChatWriter(META, shape(metrics=True)), [started, last])
    assert answer["metrics"]["tokens_per_second"] == 2.0
    assert answer["metrics"]["mean_itl_ms"] == 500.0
