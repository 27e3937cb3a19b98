"""Calls in constrained texts, as clients of chats, responses and messages get them."""

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from app.core.engine.outputs import Part
from app.core.engine.request import STOP, Reply, ToolCalls, ToolFunction
from app.extensions.tool_calls.reader import HELD, CallReader
from tests.client import Client, events, in_process

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "ping"}},
]
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


def texts_of(part: str) -> dict[str, Any]:
    return {"tools": TOOLS, "structured_outputs": {"choice": [part]}}


def called(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls", ())
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def stream_deltas(client: Client, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    chunks = events(client.post("/v1/chat/completions", body))
    return [chunk["choices"][0]["delta"] for chunk in chunks[1:]]


def test_complete_chat_has_the_tool_calls_and_the_text_before_them(hermes: Client) -> None:
    [choice] = hermes.chat("hi", **texts_of(f"Sure. {CALL}\n{PING}"))["choices"]
    assert called(choice) == [("get_weather", '{"city": "Rome"}'), ("ping", "{}")]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Sure. ", "tool_calls")


def test_tool_calls_are_parsed_in_every_choice(hermes: Client) -> None:
    choices = hermes.chat("hi", n=2, **texts_of(CALL))["choices"]
    assert [called(choice) for choice in choices] == [[("get_weather", '{"city": "Rome"}')]] * 2


def test_structured_output_constraint_prevents_a_tool_call(
    hermes: Client,
) -> None:
    fields = texts_of("no")
    [choice] = hermes.chat("What is the weather in Rome?", **fields)["choices"]
    assert (called(choice), choice["message"]["content"]) == ([], "no")


def test_strict_tool_is_called_despite_a_structured_output_constraint(hermes: Client) -> None:
    strict = {"name": "get_weather", "parameters": PARAMETERS, "strict": True}
    fields = texts_of("no") | {"tools": [{"type": "function", "function": strict}]}
    [choice] = hermes.chat("What is the weather in Rome?", **fields)["choices"]
    assert called(choice) == [("get_weather", '{"city": "Rome"}')]


def test_only_the_first_call_is_returned_without_parallel_tool_calls(
    hermes: Client,
) -> None:
    fields = texts_of(f"{CALL}{PING}") | {"parallel_tool_calls": False}
    [choice] = hermes.chat("hi", **fields)["choices"]
    assert [name for name, _ in called(choice)] == ["get_weather"]
    deltas = stream_deltas(hermes, **fields)
    assert {call["index"] for delta in deltas for call in delta.get("tool_calls", ())} == {0}


def test_tool_choice_none_leaves_the_markup_as_text(hermes: Client) -> None:
    [choice] = hermes.chat("hi", **texts_of(CALL), tool_choice="none")["choices"]
    assert (called(choice), choice["message"]["content"]) == ([], CALL)


def test_tool_call_truncated_by_the_token_limit_is_text(hermes: Client) -> None:
    [choice] = hermes.chat("hi", max_tokens=4, **texts_of(CALL))["choices"]
    assert CALL.startswith(choice["message"]["content"])
    assert (called(choice), choice["finish_reason"]) == ([], "length")


def test_hermes_call_chunks_have_null_content(hermes: Client) -> None:
    first, *others, last = stream_deltas(hermes, **texts_of(CALL))
    [call] = first["tool_calls"]
    assert (first["content"], call["function"]) == (None, {"name": "get_weather"})
    arguments = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in others)
    assert (arguments, last) == ('{"city": "Rome"}', {})


def test_pythonic_call_chunks_have_null_ids_and_an_empty_last_delta() -> None:
    with in_process("--tool-call-parser", "pythonic") as client:
        deltas = stream_deltas(client, **texts_of('[get_weather(city="Rome")]'))
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert "content" not in deltas[0]
        assert set(calls[0]["function"]) == {"name", "arguments"}
        assert {call["id"] for call in calls[1:]} == {None}
        assert deltas[-1] == {"content": ""}
        assert stream_deltas(client, **texts_of("just text"))[-1] == {"content": ""}


def test_llama_and_qwen_call_chunks_have_no_content() -> None:
    texts = {
        "llama3_json": '{"name": "get_weather", "parameters": {"city": "Rome"}}',
        "qwen3_coder": "<function=get_weather><parameter=city>Rome</parameter></function>",
    }
    for parser, text in texts.items():
        with in_process("--tool-call-parser", parser) as client:
            deltas = stream_deltas(client, **texts_of(text))
            calls = [delta for delta in deltas if "tool_calls" in delta]
            assert calls, parser
            assert {*map(tuple, calls)} == {("tool_calls",)}, parser
            assert not {"id"} & {key for call in calls[1:] for key in call["tool_calls"][0]}


@pytest.mark.parametrize("setting", ["match", "coin"])
def test_tool_choice_auto_setting_decides_whether_a_tool_is_called(setting: str) -> None:
    with in_process("--tool-choice-auto", setting) as client:
        choices = [
            client.chat("What is the weather in Rome?", tools=TOOLS)["choices"][0]
            for _ in range(12)
        ]
        calls = [called(choice) for choice in choices]
        if setting == "match":
            assert calls == [[("get_weather", '{"city": "Rome"}')]] * 12
        else:
            assert len([*groupby(calls)]) > 1
        asked = [
            {"role": "user", "content": "What is the weather in Rome?"},
            choices[0]["message"] | {"tool_calls": [call_of("get_weather")]},
            {"role": "tool", "tool_call_id": "c", "content": "Rain"},
        ]
        if setting == "match":
            answer = client.post("/v1/chat/completions", {"messages": asked, "tools": TOOLS})
            assert called(answer.json()["choices"][0]) == []


def call_of(name: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}


def test_named_tool_choice_uses_values_from_the_user_message(
    hermes: Client,
) -> None:
    [choice] = hermes.chat("Rome?", tools=TOOLS, tool_choice="required")["choices"]
    assert len(called(choice)) >= 1
    named = {"type": "function", "function": {"name": "get_weather"}}
    [choice] = hermes.chat("And in 'Oslo'?", tools=TOOLS, tool_choice=named)["choices"]
    assert json.loads(called(choice)[0][1]) == {"city": "Oslo"}


def test_reply_parts_that_one_token_completes_are_emitted_in_order() -> None:
    calls = ToolCalls(tools=(ToolFunction("ping"),), streams=True)
    texts = [f"a{PING}", PING, ""]
    reply = CallReader("hermes").read(Reply(texts, [1, 2, 3], STOP), calls)
    parts = [None, Part("call", 0, "ping"), Part("call", 1, "ping")]
    assert (reply.texts, reply.spans) == (
        ["a", "{}", "{}"],
        [(1, parts[0]), (2, parts[1]), (3, parts[2])],
    )


def test_long_stream_is_parsed_several_tokens_at_a_time() -> None:
    calls = ToolCalls(tools=(ToolFunction("ping"),), streams=True)
    text = f'{{"name": "ping", "parameters": {{"text": "{"word " * 1000}"}}}}'
    reply = CallReader("llama3_json").read(Reply([*text], range(len(text)), STOP), calls)
    arguments = json.loads("".join(reply.texts))
    assert arguments == json.loads(text)["parameters"]
    assert sum(map(bool, reply.texts)) < len(text) / 10
    assert (HELD[0] in {part for _, part in reply.spans}, len(reply.texts)) == (True, len(text))


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 200),
        ("llama3_json", '{"name": "f", "parameters": {}}; ' * 80),
        ("llama3_json", '{"name": "f", "parameters": {"a": [' + "[1]," * 700),
        ("mistral", "[TOOL_CALLS]f[ARGS]" + "{" * 4_500),
        ("pythonic", "[" + "f()," * 2_500),
        ("qwen3_coder", "<function=f>" + "<parameter=a>1</parameter>" * 300),
    ],
)
def test_other_greenlets_run_while_a_stream_is_parsed(
    parser: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr("app.core.base.clock.pause.pause_if_possible", lambda: pauses.append(None))
    monkeypatch.setattr("app.extensions.tool_calls.reader.call_off_hub", None)
    calls = ToolCalls(tools=(ToolFunction("f"),), streams=True)
    texts = [text[start : start + 4] for start in range(0, len(text), 4)]
    CallReader(parser).read(Reply(texts, range(len(texts)), STOP), calls)
    assert len(pauses) >= 20


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "qwen3_coder"])
def test_long_text_is_parsed_in_a_thread(
    parser: str, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads: list[object] = []

    def call(read: Callable[..., object], *args: object) -> object:
        in_threads.append(read)
        return read(*args)

    monkeypatch.setattr("app.extensions.tool_calls.reader.call_off_hub", call)
    calls = ToolCalls(tools=(ToolFunction("f"),), streams=streams)
    for length, expected in ((1_000, 0), (70_000, 1)):
        texts = ["{" * (length // 10)] * 10
        reply = CallReader(parser).read(Reply(texts, range(10), STOP), calls)
        assert (len(in_threads), len(reply.texts)) == (expected, 10)
