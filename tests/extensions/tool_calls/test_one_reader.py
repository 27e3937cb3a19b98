"""The same text is the same call wherever a server reads it: one set of readers serves all."""

import json
from functools import cache
from typing import Any

import pytest

from app.core.engine.outputs import Part
from app.core.engine.request import ToolCalls, ToolFunction
from app.core.server.flask.application import Understudy
from app.extensions.llm.text_readers import readers
from app.extensions.tool_calls.parsers import PARSERS
from app.extensions.tool_calls.parsing import merged
from app.extensions.tool_calls.reader import CallReader
from app.extensions.tool_calls.settings import READ_PARSERS
from config import ConfigError
from tests.application import app_of
from tests.core.engine.harness import engine_request

PROPERTIES = {"city": {"type": "string"}}
SCHEMA: dict[str, object] = {"type": "object", "properties": PROPERTIES}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
CALLS = ToolCalls(tools=(ToolFunction("weather", SCHEMA),))
TEXTS = {
    "hermes": '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Rome"}}',
    "mistral": '[TOOL_CALLS]weather{"city": "Rome"}',
    "pythonic": '[weather(city="Rome")]',
    "qwen3_coder": "<tool_call><function=weather><parameter=city>Rome</parameter></function></tool_call>",
}


@cache
def application(parser: str) -> Understudy:
    flags = ("--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", parser)
    return app_of("--force-dummy-tokenizer", *flags)


def posted(parser: str, path: str, body: Any) -> Any:
    answer = application(parser).test_client().post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


@pytest.mark.parametrize("parser", TEXTS)
def test_derendered_reply_has_the_calls_of_the_configured_parser(parser: str) -> None:
    ids = posted(parser, "/tokenize", {"prompt": TEXTS[parser], "add_special_tokens": False})
    choice = {"index": 0, "token_ids": ids["tokens"], "finish_reason": "stop"}
    body = {"generate_response": {"request_id": "r", "choices": [choice]}, "chat_request": CHAT}
    answer = posted(parser, "/v1/chat/completions/derender", body)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}


@pytest.mark.parametrize("parser", TEXTS)
def test_derendered_stream_has_the_calls_of_the_configured_parser(parser: str) -> None:
    ids = posted(parser, "/tokenize", {"prompt": TEXTS[parser], "add_special_tokens": False})
    state = None
    names: list[str] = []
    arguments = ""
    for number, token in enumerate(ids["tokens"], 1):
        finish = {len(ids["tokens"]): "stop"}.get(number)
        choice = {"index": 0, "token_ids": [token], "finish_reason": finish}
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "r", "choices": [choice]},
            "chat_request": CHAT,
            "prompt_token_ids": [5],
            "stream_state": state,
        }
        event = posted(parser, "/v1/chat/completions/derender", body)
        state = event["stream_state"]
        for call in event["chunk"]["choices"][0]["delta"].get("tool_calls") or ():
            if call["function"].get("name"):
                names.append(call["function"]["name"])
            arguments += call["function"].get("arguments") or ""
    assert names == ["weather"]
    assert json.loads(arguments) == {"city": "Rome"}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("parser", TEXTS)
def test_real_engine_reads_calls_with_the_configured_parser(parser: str, streams: bool) -> None:
    calls = ToolCalls(tools=CALLS.tools, streams=streams)
    reader = readers(CallReader(parser))(engine_request(tool_calls=calls))
    assert reader is not None
    pieces = []
    for character in TEXTS[parser]:
        pieces += reader.feed(character)
    pieces = merged([*pieces, *reader.finish()])
    assert {part for part, _ in pieces} == {Part("call", 0, "weather")}
    assert json.loads("".join(text for _, text in pieces)) == {"city": "Rome"}


def test_parser_without_a_reader_is_named_in_one_warning_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app_of("--force-dummy-tokenizer", "--tool-call-parser", "kimi_k2")
    [warning] = [record for record in caplog.records if "tool-call-parser" in record.message]
    assert "kimi_k2" in warning.message and "hermes" in warning.message
    caplog.clear()
    app_of("--force-dummy-tokenizer", "--tool-call-parser", "qwen3_xml")
    assert not [record for record in caplog.records if "tool-call-parser" in record.message]


def test_every_named_parser_has_a_reader() -> None:
    assert set(PARSERS) == set(READ_PARSERS)


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--tool-call-parser", "hermez"), "did you mean hermes?"),
        (("--tool-call-parser", "step5"), "vLLM 0.33 knows it"),
    ],
)
def test_parser_name_that_vllm_does_not_know_stops_the_start(
    flags: tuple[str, ...], hint: str
) -> None:
    with pytest.raises(ConfigError, match="^setting tool-call-parser: .* must be one of") as error:
        app_of("--force-dummy-tokenizer", *flags)
    assert hint in str(error.value)
    app_of("--force-dummy-tokenizer", "--tool-parser-plugin", "parsers.py", *flags)


def test_parser_name_of_the_simulated_version_starts() -> None:
    flags = ("--vllm-version", "0.33", "--tool-call-parser", "step5")
    app_of("--force-dummy-tokenizer", *flags)
