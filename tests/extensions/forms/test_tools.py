"""Tools and structured output as the openai SDK sees them, strict about every answer."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.client import Client, in_process

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
TAGS = {
    "structures": [{"begin": "<f=x>", "schema": {"enum": [1, 2]}, "end": "</f>"}],
    "triggers": ["<f="],
}
TAGGED = re.compile(r"[^<]*(?:<f=x>[12]</f>[^<]*)+", re.DOTALL)


def test_tool_parser_invocations_are_counted_by_streaming_mode(client: Client) -> None:
    name = "vllm:tool_call_parser_invocations_total"
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [TOOL],
        "tool_choice": "required",
    }
    for mode, stream in (("non_streaming", False), ("streaming", True)):
        count_before = client.metric(name, mode=mode, outcome="tool_call")
        assert client.post("/v1/chat/completions", {**body, "stream": stream}).status_code == 200
        assert client.metric(name, mode=mode, outcome="tool_call") > count_before


CONSTRAINTS: list[tuple[dict[str, Any], Callable[[str], object]]] = [
    ({"json": json.dumps(WEATHER)}, lambda text: "city" in json.loads(text)),
    ({"regex": r"[a-f]{4}-\d+"}, re.compile(r"[a-f]{4}-\d+").fullmatch),
    ({"choice": ["yes", "no"]}, re.compile("yes|no").fullmatch),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ({"grammar": 'root ::= "a" | "a" root'}, re.compile("a+").fullmatch),
    (
        {"grammar": 'start: "b"~2 NAME?\nNAME: "c".."f"'},
        re.compile("bb[c-f]?").fullmatch,
    ),
    ({"structural_tag": json.dumps(TAGS)}, TAGGED.fullmatch),
]


def test_structured_output_constraints_apply_to_chats_and_completions(client: Client) -> None:
    for wanted, fits in CONSTRAINTS:
        reply = client.chat(structured_outputs=wanted)["choices"][0]["message"]["content"]
        assert fits(reply), reply
        body = {"prompt": "x", "max_tokens": 200, "structured_outputs": wanted}
        assert fits(client.post("/v1/completions", body).json()["choices"][0]["text"])
    grammar = {"grammar": 'root ::= "ab" | "ab" root'}
    for limit in (1, 2, 5, 20):
        body = {"prompt": "x", "max_tokens": limit, "structured_outputs": grammar}
        choice = client.post("/v1/completions", body).json()["choices"][0]
        assert choice["finish_reason"] == "stop" or limit == 1
        assert re.fullmatch("(ab)+", choice["text"]) or limit == 1


def test_reasoning_is_separated_from_the_content() -> None:
    with in_process("--reasoning-parser", "qwen3") as client:
        answer = client.chat(max_tokens=60, ignore_eos=True)
        message = answer["choices"][0]["message"]
        assert message["reasoning"] and message["content"]
        assert 12 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 36
        hidden = client.chat(max_tokens=60, ignore_eos=True, include_reasoning=False)
        assert hidden["choices"][0]["message"]["reasoning"] is None
        for off in (
            {"reasoning_effort": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ):
            assert client.chat(max_tokens=9, **off)["choices"][0]["message"]["reasoning"] is None
        only = client.chat(max_tokens=3, seed=1)["choices"][0]["message"]
        assert only["reasoning"] and only["content"] is None
        assert client.chat(thinking_token_budget=5, max_tokens=9)
