"""A recording becomes a script with a rule for each exchange."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.cli import main
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.to_script import script_of
from tests.extensions.recording.recordings import CHAT, JSON_HEADERS, chat, exchange, written

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = [
    {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "{{Köln}}"}'},
    }
]
COMMAND = ("script", "from-recording")


def stream(*events: object, gap_s: float = 0.01) -> list[tuple[float, bytes]]:
    """The chunks of a stream, a chunk an event."""
    data = [*map(json.dumps, events), "[DONE]"]
    return [(number * gap_s, f"data: {text}\n\n".encode()) for number, text in enumerate(data, 1)]


def whole(sent: object, answer: object, target: str = CHAT, **options: Any) -> Exchange:
    body = json.dumps(answer).encode()
    return exchange(sent, (0.5, body), target=target, headers=JSON_HEADERS, **options)


def rules_of(*exchanges: Exchange) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = script_of(enumerate(exchanges, 2))["rules"]
    return rules


def choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def test_recorded_tool_loop_becomes_script_rules_and_a_tool_schema() -> None:
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
        enumerate(
            (whole(first, choice(tool_calls=CALLS)), whole(second, choice(content="Sun."))), 2
        )
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
                    "tool_calls": [
                        {
                            "name": "weather",
                            "arguments": {"city": "{{ '{{' }}Köln}}"},
                            "id": "c1",
                        }
                    ],
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


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


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
            call(1, name="b", arguments="no {{JSON"),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": {}},
        ],
        {
            "reasoning": "Hm.",
            "text": "AB",
            "tool_calls": [
                {"name": "a", "arguments": '{"x":1}', "unchecked": True},
                {"name": "b", "arguments": "no {{ '{{' }}JSON", "unchecked": True},
            ],
            "finish_reason": "length",
        },
    ),
    (
        "/v1/completions",
        {"prompt": "Hi"},
        [{"choices": [{"index": 0, "text": text}]} for text in "AB"],
        {"text": "AB"},
    ),
]


@pytest.mark.parametrize(("target", "sent", "events", "action"), STREAMS)
def test_recorded_stream_becomes_a_script_rule(
    target: str, sent: Any, events: list[Any], action: dict[str, Any]
) -> None:
    [rule] = rules_of(exchange(sent, *stream(*events), target=target))
    delays = rule["then"].pop("delays")
    assert rule["then"] == action
    assert rule["when"]["message"] == {"role": "user", "exact": "Hi"}
    first = "20ms" if target == CHAT else "10ms"
    assert delays["first_token"] == first, "the first event that says something"


PIECES = [
    (delta(role="assistant", content=""), delta(content="x")),
    (delta(content=""), call(0, arguments="{}")),
]


@pytest.mark.parametrize(("head", "piece"), PIECES)
def test_pauses_of_a_recorded_stream_become_delays_of_a_script_rule(head: Any, piece: Any) -> None:
    at_s = [0.1, 0.2, 0.21, 0.22, 1.23, 1.24, 1.25, 3.25, 3.26]
    data = [f"data: {json.dumps(event)}\n\n".encode() for event in [head, *[piece] * 8]]
    data[3], data[4] = data[3] + data[4][:9], data[4][9:]  # a chunk need not end with an event
    [rule] = rules_of(exchange(chat("Hi"), *zip(at_s, data, strict=True)))
    assert rule["then"]["delays"] == {
        "first_token": "200ms",
        "per_token": "10.0ms",
        "before": {4: "1000ms", 7: "1990ms"},
    }


def test_recorded_errors_and_broken_responses_become_script_faults() -> None:
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


def test_rules_of_equal_requests_answer_in_recorded_order() -> None:
    rules = rules_of(*(whole(chat("Hi"), choice(content=text)) for text in "abc"))
    assert [rule.get("times") for rule in rules] == [1, 1, None]


def test_script_rules_match_the_model_only_if_the_recorded_models_differ() -> None:
    chats = [chat("Hi"), {**chat("Hi"), "model": "other"}]
    rules = rules_of(*(whole(body, choice(content="A")) for body in chats))
    assert [rule["when"]["model"] for rule in rules] == ["m", "other"]
    assert ["nth" in rule["when"] for rule in rules] == [False, False]


def test_exchanges_that_a_script_cannot_express_are_omitted_with_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = ("/v1/embeddings", "/v1/responses", "/v1/messages")
    assert (
        rules_of(
            *(whole(chat("Hi"), {}, path) for path in others),
            whole(chat("Hi"), "no choices"),
            whole(chat("Hi"), {"choices": [{"message": {}, "finish_reason": ["stop"]}]}),
        )
        == []
    )
    assert capsys.readouterr().err.splitlines() == [
        "line 2: left out: POST /v1/embeddings: the inputs are not texts",
        "line 3: left out: POST /v1/responses: the request is not valid for responses:"
        " 'input' is missing",
        "line 4: left out: POST /v1/messages: the response contains no reply",
        f"line 5: left out: POST {CHAT}: the response is not a JSON object:"
        " Expected `object`, got `str`",
        f"line 6: left out: POST {CHAT}: the finish reason is not a text",
        "converted rules: 0; not carried over: 5",
    ]


def test_script_command_writes_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "r", [whole(chat("Hi\nthere: [ü]"), choice(content="{% A"))])
    out = ["--out", str(tmp_path / "s.yaml")]
    assert main([*COMMAND, file, *out]) == 0
    text = (tmp_path / "s.yaml").read_text()
    assert yaml.safe_load(text)["rules"][0]["then"]["text"] == "{{ '{%' }} A"
    assert main([*COMMAND, file]) == 0
    assert capsys.readouterr().out.startswith(text)
    assert main([*COMMAND, file, *out]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {tmp_path / 's.yaml'} cannot be written: File exists"
    )
    assert main([*COMMAND, written(tmp_path / "e", [])]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: the recording contains no exchanges that a script can replay"
    )


def test_rules_from_recordings_of_other_apis_match_tool_results() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sun"}]}
    ]
    messages = [
        {"role": "user", "content": "How is the weather?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {}}],
        },
        {"role": "user", "content": blocks},
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    of_claude = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Sun."}},
        {
            "type": "content_block_start",
            "content_block": {"type": "tool_use", "id": "c2", "name": "map", "input": {}},
        },
        {
            "type": "content_block_delta",
            "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'},
        },
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
    ]
    output = [
        {"type": "message", "content": [{"type": "output_text", "text": "Sun."}]},
        {"type": "function_call", "name": "map", "arguments": '{"a": 1}'},
    ]
    of_responses = [
        {"type": "response.output_text.delta", "delta": "Sun."},
        {
            "type": "response.incomplete",
            "response": {"object": "response", "status": "incomplete", "output": output},
        },
    ]
    rules = rules_of(
        exchange({"model": "m", "messages": messages}, *stream(*of_claude), target="/v1/messages"),
        exchange({"model": "m", "input": items}, *stream(*of_responses), target="/v1/responses"),
    )
    call_ids: tuple[dict[str, str], ...] = ({"id": "c2"}, {})
    for rule, api, call_id in zip(rules, ("messages", "responses"), call_ids, strict=True):
        del rule["then"]["delays"]
        assert rule["when"] == {
            "api": api,
            "message": {"role": "user", "exact": "How is the weather?"},
            "tool_result": {"tool": "weather", "exact": "sun"},
        }
        assert rule["then"] == {
            "text": "Sun.",
            "tool_calls": [
                {"name": "map", "arguments": {"a": 1}, **call_id, "unchecked": True},
            ],
            "finish_reason": "length",
        }
