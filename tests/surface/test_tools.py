"""Tools and structured output as the openai SDK sees them, strict about every answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import jsonschema
import openai
import pytest

from tests.surface.conftest import Client, in_process

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
CLOCK = {
    "type": "object",
    "properties": {"zone": {"$ref": "#/$defs/zone"}},
    "$defs": {"zone": {"const": "UTC"}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time", "parameters": CLOCK}},
]
TAGS = {"structures": [{"begin": "<f=x>", "schema": {"enum": [1, 2]}, "end": "</f>"}], "triggers": ["<f="]}
TAGGED = re.compile(r"[^<]*(?:<f=x>[12]</f>[^<]*)+", re.DOTALL)
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}


@pytest.fixture(scope="module")
def sdk(client: Client) -> Iterator[openai.OpenAI]:
    """Asks the application of `client`, in its loop; refuses what the SDK's models do not fit."""
    http = httpx2.Client(transport=httpx2.WSGITransport(client.app.wsgi_app))
    with openai.OpenAI(
        base_url=f"{client.url}/v1", api_key="x", http_client=http, _strict_response_validation=True
    ) as sdk:
        sdk._platform = "Linux"  # or else it asks `uname`, a process
        yield sdk


def chat(sdk: openai.OpenAI, **asked: Any) -> Any:
    return sdk.chat.completions.create(
        **{"model": "base", "messages": [{"role": "user", "content": "How is it?"}], "tools": TOOLS, **asked}
    )


def checked(calls: Any) -> list[str]:
    """Names of the calls, whose arguments satisfy their schemas."""
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert re.fullmatch(r"chatcmpl-tool-[0-9a-f]{16}", call.id)
    assert len({call.id for call in calls}) == len(calls)
    return [call.function.name for call in calls]


def test_a_required_call_is_made(sdk: openai.OpenAI) -> None:
    for _ in range(4):
        choice = chat(sdk, tool_choice="required").choices[0]
        assert 1 <= len(checked(choice.message.tool_calls)) <= 2
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "")
    reasons = {chat(sdk, seed=seed).choices[0].finish_reason for seed in range(30)}
    assert "tool_calls" in reasons and "stop" in reasons, "auto calls now and then"


def test_a_streamed_call_is_the_whole_one_piece_by_piece(sdk: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = chat(sdk, tool_choice=choice, seed=5).choices[0]
        told: dict[int, list[str]] = {}
        reason = None
        for chunk in chat(sdk, tool_choice=choice, seed=5, stream=True):
            reason = chunk.choices[0].finish_reason or reason
            for call in chunk.choices[0].delta.tool_calls or ():
                name, arguments = told.setdefault(call.index, ["", ""])
                if call.function.name:
                    assert not name and call.id and call.type == "function"
                told[call.index] = [name or call.function.name, arguments + (call.function.arguments or "")]
        assert reason == whole.finish_reason
        calls = whole.message.tool_calls
        assert list(told.values()) == [[call.function.name, call.function.arguments] for call in calls]


def test_the_parser_s_work_is_counted(client: Client, sdk: openai.OpenAI) -> None:
    name = "vllm:tool_call_parser_invocations_total"
    before = client.metric(name, mode="non_streaming", outcome="tool_call")
    chat(sdk, tool_choice="required")
    assert client.metric(name, mode="non_streaming", outcome="tool_call") == before + 1
    before = client.metric(name, mode="streaming", outcome="tool_call")
    list(chat(sdk, tool_choice="required", stream=True))
    assert client.metric(name, mode="streaming", outcome="tool_call") > before


CONSTRAINTS: list[tuple[dict[str, Any], Callable[[str], object]]] = [
    ({"json": json.dumps(WEATHER)}, lambda text: "city" in json.loads(text)),
    ({"regex": r"[a-f]{4}-\d+"}, lambda text: re.fullmatch(r"[a-f]{4}-\d+", text)),
    ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ({"grammar": 'root ::= "a" | "a" root'}, lambda text: re.fullmatch("a+", text)),
    ({"grammar": 'start: "b"~2 NAME?\nNAME: "c".."f"'}, lambda text: re.fullmatch("bb[c-f]?", text)),
    ({"structural_tag": json.dumps(TAGS)}, TAGGED.fullmatch),
]


def test_vllm_s_own_constraints_hold_in_both_families(client: Client) -> None:
    for wanted, fits in CONSTRAINTS:
        said = client.chat(structured_outputs=wanted)["choices"][0]["message"]["content"]
        assert fits(said), said
        asked = {"prompt": "x", "max_tokens": 200, "structured_outputs": wanted}
        assert fits(client.post("/v1/completions", asked).json()["choices"][0]["text"])
    grammar = {"grammar": 'root ::= "ab" | "ab" root'}
    for limit in (1, 2, 5, 20):
        asked = {"prompt": "x", "max_tokens": limit, "structured_outputs": grammar}
        choice = client.post("/v1/completions", asked).json()["choices"][0]
        assert choice["finish_reason"] == "stop" or limit == 1
        assert re.fullmatch("(ab)+", choice["text"]) or limit == 1


def test_thoughts_are_told_apart() -> None:
    with in_process("--reasoning-parser", "qwen3") as client:
        told = client.chat(max_tokens=60, ignore_eos=True)
        message = told["choices"][0]["message"]
        assert message["reasoning"] and message["content"]
        assert 12 <= told["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 36
        hidden = client.chat(max_tokens=60, ignore_eos=True, include_reasoning=False)
        assert hidden["choices"][0]["message"]["reasoning"] is None
        for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            assert client.chat(max_tokens=9, **off)["choices"][0]["message"]["reasoning"] is None
        only = client.chat(max_tokens=3, seed=1)["choices"][0]["message"]
        assert only["reasoning"] and only["content"] is None
        assert client.chat(thinking_token_budget=5, max_tokens=9)
