"""Hostile fixtures of other tools: the import reads them, or refuses them with one line.

The command is that of `app.extensions.scripts`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.hostile_files import damaged_files, retyped_documents
from tests.workbench.imports.test_imported_cassettes import ASKED, MESSAGE, RESPONSE
from tests.workbench.imports.test_imported_scripts import CALL, COMMAND

CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "Hello", "tool_calls": [CALL]},
    "finish_reason": "tool_calls",
}


def exchange(path: str, sent: object, received: object, method: str = "POST") -> dict[str, Any]:
    return {
        "request": {"method": method, "uri": f"https://x.test/v1/{path}", "parsed_body": sent},
        "response": {"status": {"code": 200}, "parsed_body": received},
    }


def bedrock_exchange(method: str, sent: object, received: object) -> dict[str, Any]:
    recorded = exchange("", sent, received)
    recorded["request"]["uri"] = f"https://x.test/model/a.b%3A0/{method}"
    return recorded


GEMINI_REQUEST = {
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}, {"inlineData": {"data": ""}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
}
GEMINI_ANSWER = {
    "candidates": [
        {
            "content": {
                "parts": [
                    {"text": "a", "thought": True},
                    {"text": "b"},
                    {"functionCall": {"name": "f", "args": {"a": 1}, "id": "c"}},
                ]
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "thoughtsTokenCount": 3},
    "promptFeedback": {"blockReason": "SAFETY"},
}
GEMINI_INPUT = {"requests": [{"content": {"parts": [{"text": "a"}]}}]}
CONVERSE_REQUEST = {
    "messages": [
        {"role": "user", "content": [{"text": "Hi"}, {"image": {"format": "png"}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "f"}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "r"}]}}],
        },
    ],
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}]},
}
CONVERSE_ANSWER = {
    "output": {
        "message": {
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "a", "signature": "s"}}},
                {"text": "b"},
                {"toolUse": {"toolUseId": "d", "name": "f", "input": {"a": 1}}},
            ]
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 1, "outputTokens": 2},
}
COHERE_ANSWER = {
    "finish_reason": "TOOL_CALL",
    "message": {
        "tool_plan": "p",
        "content": [{"type": "text", "text": "a"}],
        "tool_calls": [CALL],
        "citations": [],
    },
    "usage": {"tokens": {"input_tokens": 1, "output_tokens": 2}},
}
QUEUED = {"object": "response", "id": "resp_1", "status": "queued", "output": []}
CASSETTE = {
    "interactions": [
        exchange("chat/completions", chat("Hi"), {"choices": [CHOICE]}),
        exchange("responses", ASKED, QUEUED),
        exchange("responses/resp_1", None, {**RESPONSE, "id": "resp_1"}, method="GET"),
        exchange("messages", chat("Hi"), MESSAGE),
        exchange("embeddings", {"input": ["a"]}, {"data": [{"index": 0, "embedding": [0.5]}]}),
    ]
}
GEMINI = {
    "interactions": [
        exchange("models/m:generateContent", GEMINI_REQUEST, GEMINI_ANSWER),
        exchange(
            "models/m:batchEmbedContents", GEMINI_INPUT, {"embeddings": [{"values": [0.5, 1]}]}
        ),
    ]
}
BEDROCK = {
    "interactions": [
        bedrock_exchange("converse", CONVERSE_REQUEST, CONVERSE_ANSWER),
        bedrock_exchange("invoke", {**chat("Hi"), "anthropic_version": "b"}, MESSAGE),
    ]
}
COHERE = {"interactions": [exchange("v2/chat", chat("Hi"), COHERE_ANSWER)]}
AIMOCK = {
    "fixtures": [
        {
            "match": {"userMessage": "u", "systemMessage": ["s"], "sequenceIndex": 1},
            "response": {"content": "c", "toolCalls": [{"name": "f", "arguments": {"a": 1}}]},
            "streamingProfile": {"ttft": 5, "tps": 10},
            "chaos": {"dropRate": 0.5},
        },
        {"match": {"toolCallId": "c"}, "response": {"error": {"message": "m"}, "status": 429}},
        {"match": {"inputText": "x"}, "response": {"embedding": [1, 2]}},
    ]
}
LITELLM = {
    "model_list": [
        {"model_name": "a", "litellm_params": {"mock_response": "hi", "mock_delay": 0.5}},
        {"model_name": "b", "litellm_params": {"mock_timeout": True, "timeout": 3}},
        {"model_name": "c", "litellm_params": {"mock_tool_calls": [CALL]}},
    ]
}
PAIRS = [
    {"request": chat("Hi"), "response": {"choices": [CHOICE]}},
    {
        "request": {"method": "POST", "url": "http://h/v1/messages", "body": chat("Hi")},
        "response": {"status_code": 200, "headers": {"a": "b"}, "body": MESSAGE},
    },
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat("Hi")},
    {"custom_id": "1", "response": {"status_code": 200, "body": {"choices": [CHOICE]}}},
]
TAP_HEADERS = [
    {"key": ":method", "value": "POST"},
    {"key": ":path", "value": "/v1/chat/completions"},
]
ENVOY = [
    {
        "method": "POST",
        "path": "/v1/chat/completions",
        "response_code": 200,
        "request_body": chat("Hi"),
        "response_body": {"choices": [CHOICE]},
    },
    {
        "http_buffered_trace": {
            "request": {"headers": TAP_HEADERS, "body": {"as_string": json.dumps(chat("Hi"))}},
            "response": {
                "headers": [{"key": ":status", "value": "200"}],
                "body": {"as_bytes": "e30=", "truncated": False},
            },
        }
    },
    {
        "http_streamed_trace_segment": {
            "trace_id": 1,
            "request_headers": {"headers": TAP_HEADERS},
            "request_body_chunk": {"as_bytes": "e30="},
        }
    },
]
LITELLM_LOG = [
    {
        "call_type": "acompletion",
        "model": "m",
        "model_group": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "model_parameters": {"max_tokens": 3},
        "proxy_server_request": {"body": chat("Hi")},
        "response": {"choices": [CHOICE]},
    },
    {
        "call_type": "embedding",
        "messages": "Hi",
        "status": "failure",
        "error_information": {"error_code": "429", "error_class": "c", "error_message": "m"},
        "response": {},
    },
]
INPUT_PARTS = [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
OUTPUT_PARTS = [
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
        "finish_reason": "tool_call",
    }
]
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "spanId": "1",
                            "attributes": [
                                {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "Hi"}},
                                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}},
                            ],
                            "events": [
                                {
                                    "name": "gen_ai.choice",
                                    "attributes": [
                                        {
                                            "key": "message",
                                            "value": {
                                                "kvlistValue": {
                                                    "values": [
                                                        {
                                                            "key": "content",
                                                            "value": {"stringValue": "B"},
                                                        }
                                                    ]
                                                }
                                            },
                                        }
                                    ],
                                }
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
SPAN = {
    "name": "chat",
    "attributes": {
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": INPUT_PARTS,
        "gen_ai.output.messages": OUTPUT_PARTS,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.tool.definitions": [{"type": "function", "name": "f", "parameters": {}}],
    },
    "status": {"status_code": "ERROR", "description": "d"},
}
TRANSCRIPT = f"""\
$ curl -v http://h/v1/chat/completions -d '{json.dumps(chat("Hi"))}'
> POST /v1/chat/completions HTTP/1.1
< HTTP/1.1 200 OK
< content-type: application/json
<
{json.dumps({"choices": [CHOICE]})}* Connection #0 to host h left intact
"""
LOGS = (PAIRS, ENVOY, LITELLM_LOG, OTLP, SPAN)
LOG_NAMES = ("jsonl", "envoy", "litellm-log", "otlp", "span")
DOCUMENTS = (CASSETTE, GEMINI, BEDROCK, COHERE, AIMOCK, LITELLM, *LOGS)
NAMES = ("vcr", "gemini", "bedrock", "cohere", "aimock", "litellm", *LOG_NAMES)


@pytest.mark.parametrize("document", [CASSETTE, AIMOCK, LITELLM], ids=["vcr", "aimock", "litellm"])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_damaged_fixtures_are_read_or_refused(
    tmp_path: Path, document: Any, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = damaged_files(json.dumps(document).encode())
    if suffix == ".yaml":
        contents = damaged_files(yaml.safe_dump(document).encode())
    importing = Importing(tmp_path / f"f{suffix}", capsys)
    for name, content in contents.items():
        importing.check(content, name)


@pytest.mark.parametrize("document", LOGS, ids=LOG_NAMES)
def test_damaged_logs_are_read_or_refused(
    tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    records = document if isinstance(document, list) else [document]
    content = "".join(f"{json.dumps(record)}\n" for record in records)
    importing = Importing(tmp_path / "f.log", capsys)
    for name, damaged in damaged_files(content.encode()).items():
        importing.check(damaged, name)


def test_damaged_transcripts_are_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = Importing(tmp_path / "f.txt", capsys)
    for name, damaged in damaged_files(TRANSCRIPT.encode()).items():
        importing.check(damaged, name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_script_of_fixtures_with_other_types_is_valid(
    tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = Importing(tmp_path / "f.json", capsys)
    for name, changed in retyped_documents(document):
        importing.check(json.dumps(changed).encode(), name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_huge_whole_number_in_any_place_is_read_or_refused(
    tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = Importing(tmp_path / "f.json", capsys)
    for name, changed in retyped_documents(document, values=[-1]):
        if name.endswith(": -1"):  # not those without a place
            name = name.removesuffix("-1") + "10**400"
            importing.check(json.dumps(changed).replace("-1", str(10**400)).encode(), name)


@pytest.mark.parametrize("place", ["method", "uri"])
def test_number_in_yaml_that_python_cannot_write_is_refused(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = Importing(tmp_path / "f.yaml", capsys)
    digits = "f" * 5000
    importing.check(f"interactions: [{{request: {{{place}: 0x{digits}}}}}]".encode(), place)


class Importing:
    """Imports files; their scripts, if any, have to be valid, and their errors one line."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path = path
        self._script = path.with_name("script.yaml")
        self._capsys = capsys
        self._valid: set[bytes] = set()
        """Scripts that were checked: many changed files give the same one."""

    def check(self, content: bytes, name: str) -> None:
        """Imports a file with this content; `name` says what is wrong with it."""
        self._path.write_bytes(content)
        status = main([*COMMAND, str(self._path), "--out", str(self._script)])
        *_, last_line = self._capsys.readouterr().err.splitlines()
        if status == 0:
            self._check_script(name)
        else:
            is_named = last_line.startswith(f"error: {self._path}")
            assert is_named or "no rule could be imported" in last_line

    def _check_script(self, name: str) -> None:
        script = self._script.read_bytes()
        if script not in self._valid:
            assert main(["script", "check", str(self._script)]) == 0, name
            self._capsys.readouterr()
            self._valid.add(script)
        self._script.unlink()
