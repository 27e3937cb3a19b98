"""A recording becomes a script: a rule for each exchange, which says what was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli import main
from app.serving.recording.exchange import Exchange
from app.serving.recording.to_script import script_of
from tests.recording.recordings import CHAT, JSON_HEADERS, chat, exchange, written

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "{{Köln}}"}'}}
]
COMMAND = ("script", "from-recording")
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "r"}


def stream(*events: object, gap_s: float = 0.01) -> list[tuple[float, bytes]]:
    """The chunks of a stream, a chunk an event."""
    data = [*map(json.dumps, events), "[DONE]"]
    return [(number * gap_s, f"data: {text}\n\n".encode()) for number, text in enumerate(data, 1)]


def whole(asked: object, answer: object, target: str = CHAT, **given: Any) -> Exchange:
    body = json.dumps(answer).encode()
    return exchange(asked, (0.5, body), target=target, headers=JSON_HEADERS, **given)


def rules_of(*exchanges: Exchange) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = script_of(enumerate(exchanges, 2))["rules"]
    return rules


def choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def test_a_loop_becomes_two_rules_and_its_tools() -> None:
    first = chat("How is the weather?", tools=TOOLS)
    second = {
        **first,
        "messages": [
            *first["messages"],
            {"role": "assistant", "tool_calls": CALLS},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
    }
    document = script_of(
        enumerate((whole(first, choice(tool_calls=CALLS)), whole(second, choice(content="Sun."))), 2)
    )
    assert document == {
        "tools": {"weather": {"type": "object"}},
        "rules": [
            {
                "name": "line 2",
                "when": {
                    "api": "chat",
                    "message": {"role": "user", "exact": "How is the weather?"},
                    "tool_result": False,
                },
                "then": {
                    "tool_calls": [{"name": "weather", "arguments": {"city": "{{ '{{' }}Köln}}"}}],
                    "delays": {"first_token": "500ms"},
                },
            },
            {
                "name": "line 3",
                "when": {
                    "api": "chat",
                    "message": {"role": "user", "exact": "How is the weather?"},
                    "tool_result": {"tool": "weather", "exact": "sunny"},
                },
                "then": {"text": "Sun.", "delays": {"first_token": "500ms"}},
            },
        ],
    }


def delta(**given: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": given}]}


def call(index: int, **function: str) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, "function": function}])


STREAMS = [
    (
        CHAT,
        chat("Hi"),
        [
            delta(role="assistant", content=""),
            *(delta(reasoning="Hm"), delta(reasoning="."), delta(content="A"), delta(content="B")),
            {"choices": [{"index": 1, "delta": {"content": "other"}}]},
            *(call(0, name="a", arguments=""), call(0, arguments='{"x":'), call(0, arguments="1}")),
            call(1, name="b", arguments="no JSON"),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": {}},
        ],
        {
            "reasoning": "Hm.",
            "text": "AB",
            "tool_calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "unchecked": True}],
            "finish_reason": "length",
        },
    ),
    (
        "/v1/completions",
        {"prompt": "Hi"},
        [{"choices": [{"index": 0, "text": text}]} for text in "AB"],
        {"text": "AB"},
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        [
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "thinking", "thinking": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "thinking_delta", "thinking": "Hm."},
            },
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "AB"}},
            {
                "type": "content_block_start",
                "index": 2,
                "content_block": {"type": "tool_use", "name": "a", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '{"x":1}'},
            },
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        ],
        {
            "reasoning": "Hm.",
            "text": "AB",
            "tool_calls": [{"name": "a", "arguments": {"x": 1}}],
            "finish_reason": "length",
        },
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
        [
            {"type": "response.created", "response": {"output": []}},
            {
                "type": "response.completed",
                "response": {
                    "output": [
                        {"type": "reasoning", "summary": [], "content": [{"text": "Hm."}]},
                        {"type": "message", "content": [{"text": "AB"}]},
                        {"type": "function_call", "name": "a", "arguments": ""},
                    ]
                },
            },
        ],
        {"reasoning": "Hm.", "text": "AB", "tool_calls": [{"name": "a", "arguments": {}}]},
    ),
]


@pytest.mark.parametrize(("target", "asked", "events", "then"), STREAMS)
def test_a_stream_of_any_family_is_read(
    target: str, asked: Any, events: list[Any], then: dict[str, Any]
) -> None:
    [rule] = rules_of(exchange(asked, *stream(*events), target=target))
    delays = rule["then"].pop("delays")
    assert rule["then"] == then
    assert rule["when"]["message"] == {"role": "user", "exact": "Hi"}
    silent = {CHAT: 1, "/v1/messages": 1, "/v1/responses": 2}.get(target, 0)
    assert delays["first_token"] == f"{10 * (silent + 1)}ms", "the first event that says something"


PIECES: list[tuple[str, Any, dict[str, Any], Any]] = [
    (CHAT, chat("Hi"), delta(role="assistant", content=""), delta(content="x")),
    (CHAT, chat("Hi"), call(0, name="a", arguments=""), call(0, arguments="{}")),
    (
        "/v1/messages",
        chat("Hi"),
        {"type": "message_start"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "x"}},
    ),
    (
        "/v1/responses",
        {"input": "Hi"},
        {"type": "response.created", "response": {"output": []}},
        {"type": "response.output_text.delta", "delta": "x"},
    ),
]


@pytest.mark.parametrize(("target", "asked", "head", "piece"), PIECES)
def test_pauses_of_a_stream_stay_where_they_were(target: str, asked: Any, head: Any, piece: Any) -> None:
    at_s = [0.1, 0.2, 0.21, 0.22, 1.23, 1.24, 1.25, 3.25, 3.26]
    events = [head] if "tool_calls" not in str(head) else [delta(content="")]
    data = [f"data: {json.dumps(event)}\n\n".encode() for event in [*events, *[piece] * 8]]
    data[3], data[4] = data[3] + data[4][:9], data[4][9:]  # a chunk need not end with an event
    [rule] = rules_of(exchange(asked, *zip(at_s, data, strict=True), target=target))
    assert rule["then"]["delays"] == {
        "first_token": "200ms",
        "per_token": "10.0ms",
        "before": {4: "1000ms", 7: "1990ms"},
    }


@pytest.mark.parametrize(
    ("target", "turns", "result"),
    [
        (
            "/v1/messages",
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t"}]},
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}],
                    },
                ]
            },
            {"tool": "t", "exact": "r"},
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": "Hi"},
                    {"type": "function_call", "call_id": "c", "name": "t"},
                    {"type": "function_call_output", "call_id": "c", "output": "r"},
                ]
            },
            {"tool": "t", "exact": "r"},
        ),
        (CHAT, chat("Hi", "Yes?", "Bye"), False),
    ],
)
def test_results_of_tools_are_found_in_every_family(target: str, turns: Any, result: Any) -> None:
    answers: dict[str, Any] = {"/v1/messages": {"content": [{"type": "text", "text": "A"}]}}
    [rule] = rules_of(whole(turns, answers.get(target, {}), target))
    assert rule["when"]["tool_result"] == result
    assert rule["when"].get("turn") == (2 if target == CHAT else None)


def test_errors_and_breaks_become_faults() -> None:
    error = {"error": {"message": "Slow down", "type": "RateLimitError", "code": 429}}
    rules = rules_of(
        whole(chat("a"), error, status=429),
        whole(chat("b"), "?", status=500),
        exchange(chat("c"), *stream(delta(content="A"))[:1], is_broken=True),
    )
    assert [rule["then"]["fault"] for rule in rules] == [
        {"action": "error", "status": 429, "type": "RateLimitError", "message": "Slow down"},
        {"action": "error", "status": 500},
        {"action": "disconnect", "after": 1},
    ]


def test_equal_requests_are_answered_one_after_the_other() -> None:
    rules = rules_of(*(whole(chat("Hi"), choice(content=text)) for text in "abc"))
    assert [rule["when"].get("nth") for rule in rules] == [1, 1, None]


def test_models_matter_where_there_are_several() -> None:
    asked = [chat("Hi"), {**chat("Hi"), "model": "other"}]
    rules = rules_of(*(whole(each, choice(content="A")) for each in asked))
    assert [rule["when"]["model"] for rule in rules] == ["m", "other"]
    assert ["nth" in rule["when"] for rule in rules] == [False, False]


def test_what_scripts_do_not_answer_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules_of(whole({"input": "x"}, {}, "/v1/embeddings"), whole(chat("Hi"), "no choices")) == []
    assert capsys.readouterr().err.splitlines() == [
        "line 2: left out: POST /v1/embeddings",
        f"line 3: left out: POST {CHAT}",
    ]


def test_the_command_writes_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "r", [whole(chat("Hi\nthere: [ü]"), choice(content="{% A"))])
    out = ["--out", str(tmp_path / "s.yaml")]
    assert main([*COMMAND, file, *out]) == 0
    text = (tmp_path / "s.yaml").read_text()
    assert yaml.safe_load(text)["rules"][0]["then"]["text"] == "{{ '{%' }} A"
    assert main([*COMMAND, file]) == 0
    assert capsys.readouterr().out == text
    assert main([*COMMAND, file, *out]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 's.yaml'}: cannot be written: File exists\n"
    assert main([*COMMAND, written(tmp_path / "e", [])]) == 1
    assert capsys.readouterr().err == "error: the recording has no exchange that a script could answer\n"
