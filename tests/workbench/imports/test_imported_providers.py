"""Recorded exchanges of Bedrock's and Cohere's APIs become rules for chats and messages.

The command is that of `app.extensions.scripts`.
"""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from app import create_app
from app.core.cli import main
from app.core.settings import load
from tests.extensions.recording.recordings import CHAT
from tests.workbench.imports.test_imported_scripts import COMMAND, interaction
from tests.workbench.imports.test_imported_scripts import written as fixtures_written

MODEL = "anthropic.m-v1:0"
BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.m-v1%3A0"
COHERE = "https://api.cohere.com/v2/chat"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
MESSAGE = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def message(*blocks: object, **fields: Any) -> dict[str, Any]:
    """An answer of Converse."""
    answer = {"output": {"message": {"role": "assistant", "content": list(blocks)}}}
    return {**answer, "stopReason": "end_turn", **fields}


def imported(folder: Path, *interactions: object, flags: tuple[str, ...] = ()) -> Any:
    """A client of a server with the script of a cassette."""
    script = folder / "s.yaml"
    document = {"version": 1, "interactions": list(interactions)}
    assert (
        main([*COMMAND, fixtures_written(folder / "c.yaml", document), "--out", str(script)]) == 0
    )
    names = ("--served-model-name", MODEL, "c")
    options = ("--force-dummy-tokenizer", *names, "--script", str(script), *flags)
    return create_app(load(options, {})).test_client()


def answered(sent: object, received: object, method: str = "converse") -> dict[str, Any]:
    """An interaction of Bedrock whose answer is JSON."""
    return interaction(f"{BEDROCK}/{method}", sent, {"string": json.dumps(received)})


def event(kind: str, content: object) -> bytes:
    """A message of an event stream. Its checksums are zero, as they are not read."""
    headers = b"\x0b:event-type\x07" + len(kind).to_bytes(2, "big") + kind.encode()
    payload = json.dumps(content).encode()
    length = 12 + len(headers) + len(payload) + 4
    prelude = length.to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    return prelude + bytes(4) + headers + payload + bytes(4)


def streamed(sent: object, method: str, *events: bytes) -> dict[str, Any]:
    """An interaction of Bedrock whose answer is an event stream."""
    body = {"base64_string": b64encode(b"".join(events)).decode()}
    return interaction(f"{BEDROCK}/{method}", sent, body)


def asked(client: Any, *messages: object, **fields: Any) -> Any:
    """The answer to a chat."""
    body = {"model": MODEL, "messages": messages, **fields}
    return client.post(CHAT, json=body)


HI = {"role": "user", "content": "Hi"}


def test_converse_answers_a_chat_with_thoughts_text_and_usage(tmp_path: Path) -> None:
    thoughts = {"reasoningText": {"text": "Hm.", "signature": "abc"}}
    blocks = ({"reasoningContent": thoughts}, {"text": "Hello"})
    usage = {"inputTokens": 8, "outputTokens": 5, "totalTokens": 13}
    client = imported(
        tmp_path, answered(ASKED, message(*blocks, stopReason="max_tokens", usage=usage))
    )
    answer = asked(client, HI).get_json()
    choice = answer["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Hello")
    assert choice["finish_reason"] == "length"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (8, 5)


def test_calls_and_results_of_converse_match_a_chat_with_tools(tmp_path: Path) -> None:
    call = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": 1}}}
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "sun"}]}}
    tools = [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    client = imported(
        tmp_path,
        answered({**ASKED, "toolConfig": {"tools": tools}}, message(call, stopReason="tool_use")),
        answered({"messages": history}, message({"text": "Sunny."})),
    )
    reply = asked(client, HI, tools=[TOOL]).get_json()["choices"][0]["message"]
    assert reply["tool_calls"][0]["id"] == "t1"
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    turns = [HI, reply, {"role": "tool", "tool_call_id": "t1", "content": "sun"}]
    answer = asked(client, *turns, tools=[TOOL]).get_json()
    assert answer["choices"][0]["message"]["content"] == "Sunny."


def test_stream_of_converse_becomes_one_reply(tmp_path: Path) -> None:
    start = {"toolUse": {"toolUseId": "t1", "name": "f"}}
    events = (
        event("messageStart", {"role": "assistant"}),
        event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "One "}}),
        event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "two"}}),
        event("contentBlockStart", {"contentBlockIndex": 1, "start": start}),
        event(
            "contentBlockDelta",
            {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"a": '}}},
        ),
        event("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": "2}"}}}),
        event("messageStop", {"stopReason": "tool_use"}),
        event("metadata", {"usage": {"inputTokens": 3, "outputTokens": 4}}),
    )
    client = imported(tmp_path, streamed(ASKED, "converse-stream", *events))
    answer = asked(client, HI).get_json()
    reply = answer["choices"][0]["message"]
    assert reply["content"] == "One two"
    assert reply["tool_calls"][0]["function"]["arguments"] == '{"a": 2}'
    assert answer["usage"]["prompt_tokens"] == 3


ANTHROPIC = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, **ASKED}
ANTHROPIC["messages"] = [HI]


def test_invoked_model_of_anthropic_answers_messages(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "From Claude."}]
    received = {"type": "message", "stop_reason": "end_turn", "content": content}
    client = imported(tmp_path, answered(ANTHROPIC, received, "invoke"))
    answer = client.post("/v1/messages", json=MESSAGE).get_json()
    assert answer["content"][0]["text"] == "From Claude."


def test_invoked_model_with_requests_of_openai_answers_a_chat(tmp_path: Path) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "From Jamba."}}
    client = imported(tmp_path, answered({"messages": [HI]}, {"choices": [choice]}, "invoke"))
    assert asked(client, HI).get_json()["choices"][0]["message"]["content"] == "From Jamba."


def test_stream_of_an_invoked_model_of_anthropic_answers_messages(tmp_path: Path) -> None:
    def chunk(content: object) -> bytes:
        return event("chunk", {"bytes": b64encode(json.dumps(content).encode()).decode()})

    block = {"type": "text", "text": ""}
    events = (
        chunk({"type": "message_start", "message": {"usage": {"input_tokens": 2}}}),
        chunk({"type": "content_block_start", "index": 0, "content_block": block}),
        chunk({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello"}}),
        chunk({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        chunk({"type": "message_stop", "amazon-bedrock-invocationMetrics": {}}),
    )
    client = imported(tmp_path, streamed(ANTHROPIC, "invoke-with-response-stream", *events))
    answer = client.post("/v1/messages", json=MESSAGE).get_json()
    assert answer["content"][0]["text"] == "Hello"


def cohere(received: object, question: str = "Hi") -> dict[str, Any]:
    """An interaction of Cohere's API; a text is a stream."""
    text = received if isinstance(received, str) else json.dumps(received)
    sent = {"model": "c", "messages": [{"role": "user", "content": question}]}
    return interaction(COHERE, sent, {"string": text})


@pytest.mark.parametrize("path", [CHAT, "/cohere/v2/chat"])
def test_chat_of_cohere_answers_both_apis(tmp_path: Path, path: str) -> None:
    received = {
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        "usage": {"tokens": {"input_tokens": 3, "output_tokens": 4}},
    }
    client = imported(tmp_path, cohere(received), flags=("--enable-cohere-api",))
    sent = {"model": "c", "messages": [HI]}
    answer = client.post(path, json=sent).get_json()
    if path == CHAT:
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert answer["usage"]["completion_tokens"] == 4
    else:
        assert answer["message"]["content"][0]["text"] == "Hello"


def test_stream_of_cohere_becomes_one_reply(tmp_path: Path) -> None:
    def piece(kind: str, index: int = 0, **delta: Any) -> str:
        return f"data: {json.dumps({'type': kind, 'index': index, 'delta': delta})}\n\n"

    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"function": {"arguments": '{"a": 1}'}}
    body = (
        piece("message-start", message={"role": "assistant"})
        + piece("tool-plan-delta", message={"tool_plan": "I look."})
        + piece("tool-call-start", message={"tool_calls": call})
        + piece("tool-call-delta", message={"tool_calls": more})
        + piece("content-delta", message={"content": {"text": "Wait"}})
        + piece("message-end", finish_reason="TOOL_CALL")
    )
    client = imported(tmp_path, cohere(body))
    sent = {"model": "c", "messages": [HI], "tools": [TOOL]}
    reply = client.post(CHAT, json=sent).get_json()["choices"][0]["message"]
    assert (reply["reasoning"], reply["content"]) == ("I look.", "Wait")
    assert reply["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def ollama(sent: dict[str, Any], *parts: object, path: str = "chat") -> dict[str, Any]:
    """An interaction of Ollama's API, with a part of the answer in each line."""
    body = "\n".join(json.dumps(part) for part in parts)
    return interaction(
        f"http://localhost:11434/api/{path}", {"model": MODEL, **sent}, {"string": body}
    )


def test_lines_of_ollama_become_one_reply(tmp_path: Path) -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 4}
    client = imported(
        tmp_path,
        ollama(
            {"messages": [HI]},
            {"message": {"role": "assistant", "content": "", "thinking": "Hm."}, "done": False},
            {"message": {"content": "Hel"}, "done": False},
            {"message": {"content": "lo", "tool_calls": [call]}, "done": False},
            {"message": {"content": ""}, **end},
        ),
        ollama({"prompt": "Once"}, {"response": " upon", **end}, path="generate"),
    )
    answer = asked(client, HI, tools=[TOOL]).get_json()
    reply = answer["choices"][0]["message"]
    assert (reply["reasoning"], reply["content"]) == ("Hm.", "Hello")
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert answer["usage"]["completion_tokens"] == 4
    sent = {"model": MODEL, "prompt": "Once"}
    assert client.post("/v1/completions", json=sent).get_json()["choices"][0]["text"] == " upon"


LOST = [
    (
        ollama({"messages": [HI]}, {"message": {"content": "a", "images": ["x"]}, "done": True}),
        "images",
    ),
    (answered(ASKED, message({"text": "a"}, {"citationsContent": [1]})), "citationsContent"),
    (answered(ASKED, message({"text": "a"}, trace={"a": 1})), "trace"),
    (
        cohere({"finish_reason": "COMPLETE", "message": {"content": "a", "citations": [1]}}),
        "citations",
    ),
]


@pytest.mark.parametrize(("recorded", "name"), LOST)
def test_part_that_chats_do_not_have_is_listed(
    tmp_path: Path, recorded: object, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path, recorded)
    first, total = capsys.readouterr().err.splitlines()
    assert first.endswith(f"interaction 1: {name} left out")
    assert total == "imported rules: 1; not carried over: 1"


LEFT_OUT = [
    (answered({"inputText": "Hi"}, {}, "invoke"), f"the form of requests for {MODEL}"),
    (answered(ASKED, {"output": 5}), "it cannot be translated"),
    (answered({"messages": "Hi"}, {}), f"the form of requests for {MODEL}"),
    (streamed(ASKED, "converse-stream", event("metadata", {})[:-5]), "the event stream is cut off"),
    (streamed(ASKED, "converse-stream", bytes(12)), "the event stream is cut off"),
    (
        streamed(ASKED, "converse-stream", bytes(3) + b"\x10" + bytes(12)),
        "Input data was truncated",
    ),
    (streamed(ASKED, "converse-stream", event("chunk", {"bytes": "e30="})), "expected 1, got 0"),
    (cohere({"message": {"content": "a"}}), "'finish_reason' is missing"),
    (ollama({"messages": [HI]}, {"message": 5}), "it cannot be translated"),
    (ollama({"messages": [HI]}, [5]), "it cannot be translated"),
    (ollama({"messages": [HI]}, {"error": "no model"}), "error in a stream: no model"),
]


@pytest.mark.parametrize(("recorded", "reason"), LEFT_OUT)
def test_invalid_exchange_of_a_provider_is_left_out_with_a_reason(
    tmp_path: Path, recorded: object, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path, recorded, answered(ASKED, message({"text": "Good"})))
    first, total = capsys.readouterr().err.splitlines()
    assert "interaction 1: left out: " in first
    assert reason in first
    assert total == "imported rules: 1; not carried over: 1"
