"""Recorded exchanges of Gemini's API become rules for chats and embeddings.

The command is that of `app.extensions.scripts`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.cli import main
from tests.extensions.recording.recordings import CHAT
from tests.workbench.imports.test_imported_scripts import (
    COMMAND,
    imported,
    interaction,
    reply,
    text,
)
from tests.workbench.imports.test_imported_scripts import written as fixtures_written

GOOGLE = "https://generativelanguage.googleapis.com/v1beta/models/m"
VERTEX = "https://x-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google/models/m"
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "OBJECT",
        "properties": {"city": {"type": "STRING"}, "days": {"type": 3}},
        "required": ["city"],
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]


def asked(*parts: object, **fields: Any) -> dict[str, Any]:
    """A request with one message of the user."""
    return {"contents": [{"role": "user", "parts": list(parts)}], **fields}


def answered(*parts: object, **fields: Any) -> dict[str, Any]:
    """An answer with one candidate, which has `fields`."""
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": "STOP", **fields}]}


def generated(
    request: object, answer: object, method: str = "generateContent", base: str = GOOGLE
) -> dict[str, Any]:
    """An interaction whose answer is JSON."""
    return interaction(f"{base}:{method}", request, {"string": json.dumps(answer)})


def cassette(*interactions: object) -> dict[str, Any]:
    return {"version": 1, "interactions": list(interactions)}


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of standard error, without the name of the file."""
    lines = capsys.readouterr().err.splitlines()
    return [line.partition(".yaml: ")[2] or line for line in lines]


def test_text_thoughts_and_token_counts_of_gemini_answer_a_chat(tmp_path: Path) -> None:
    answer = answered({"text": "Hm.", "thought": True}, {"text": "Hello"}, {"text": " there."})
    answer["usageMetadata"] = {
        "promptTokenCount": 8,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 40,
    }
    client = imported(tmp_path, cassette(generated(asked({"text": "Hi"}), answer, base=VERTEX)))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    received = client.post(CHAT, json=body).get_json()
    message = received["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Hello there.", "Hm.")
    assert received["usage"]["prompt_tokens"] == 8
    assert received["usage"]["completion_tokens"] == 43


@pytest.mark.parametrize("form", ["list", "events", "after a comment"])
def test_parts_of_a_gemini_stream_become_one_reply(tmp_path: Path, form: str) -> None:
    """Browsers store answers decompressed, with the header of their compression."""
    parts = [answered({"text": "One, "}), answered({"text": "two."}, finishReason="MAX_TOKENS")]
    del parts[0]["candidates"][0]["finishReason"]
    events = "".join(f"data: {json.dumps(part)}\r\n\r\n" for part in parts)
    body = {"list": json.dumps(parts), "events": events}.get(form, f": hi\n\n{events}")
    headers = {"Content-Encoding": ["gzip"]}
    if form == "after a comment":
        headers["Content-Type"] = ["text/event-stream"]
    streamed = interaction(
        f"{GOOGLE}:streamGenerateContent?alt=sse",
        asked({"text": "Count"}),
        {"string": body},
        headers=headers,
    )
    client = imported(tmp_path, cassette(streamed))
    sent = {"model": "m", "messages": [{"role": "user", "content": "Count"}]}
    choice = client.post(CHAT, json=sent).get_json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("One, two.", "length")


def test_calls_and_results_of_gemini_match_a_chat_with_tools(tmp_path: Path) -> None:
    call = {"functionCall": {"name": "weather", "args": {"city": "Rome"}}}
    other = {"functionCall": {"name": "weather", "args": {"city": "Bonn", "days": 2}}}
    result = {"functionResponse": {"name": "weather", "response": {"result": "sun"}}}
    history = asked({"text": "Weather?"})["contents"]
    history.append({"role": "model", "parts": [{"functionCall": call["functionCall"]}]})
    history.append({"role": "user", "parts": [result]})
    offered = [{"functionDeclarations": [WEATHER]}]
    client = imported(
        tmp_path,
        cassette(
            generated(asked({"text": "Weather?"}, tools=offered), answered(call, other)),
            generated({"contents": history, "tools": offered}, answered({"text": "Sunny."})),
        ),
    )
    message = reply(client, "Weather?", tools=TOOLS)
    arguments = [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]]
    assert arguments == [{"city": "Rome"}, {"city": "Bonn", "days": 2}]
    messages = [{"role": "user", "content": "Weather?"}, message]
    for call in message["tool_calls"]:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "any text"})
    assert text(client, messages=messages, tools=TOOLS) == "Sunny."


def test_errors_of_gemini_keep_status_and_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}
    busy = generated(asked({"text": "Busy?"}), [error], method="streamGenerateContent")
    busy["response"]["status"] = {"code": 429}
    client = imported(tmp_path, cassette(busy))
    assert "interaction 1: fields of the error: status left out" in lines_of(capsys)
    sent = {"model": "m", "messages": [{"role": "user", "content": "Busy?"}]}
    answer = client.post(CHAT, json=sent)
    assert answer.status_code == 429
    assert answer.get_json()["error"]["message"] == "Quota"


def test_parts_of_gemini_that_chats_do_not_have_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answered(
        {"text": "See.", "thoughtSignature": "abc"},
        {"inlineData": {"mimeType": "image/png", "data": ""}},
        {"executableCode": {"code": "1"}},
        avgLogprobs=-0.5,
        safetyRatings=[{"category": "x"}],
        groundingMetadata={"webSearchQueries": ["q"]},
    )
    answer["candidates"].append({"index": 1, "content": {"parts": [{"text": "Other."}]}})
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
    client = imported(
        tmp_path,
        cassette(
            generated(asked({"text": "Look"}), answer),
            generated(asked({"text": "Bad"}), blocked),
        ),
    )
    lines = lines_of(capsys)
    assert lines[:-1] == [
        "interaction 1: ignored: avgLogprobs",
        "interaction 1: ignored: safetyRatings",
        "interaction 1: groundingMetadata left out",
        "interaction 1: inlineData left out",
        "interaction 1: executableCode left out",
        "interaction 1: candidates after the first left out",
        "interaction 2: promptFeedback left out",
    ]
    assert lines[-1] == "imported rules: 2; not carried over: 5; ignored: 2"
    assert text(client, "Look") == "See."
    sent = {"model": "m", "messages": [{"role": "user", "content": "Bad"}]}
    choice = client.post(CHAT, json=sent).get_json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"


def test_embeddings_of_gemini_become_a_rule_for_each_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"content": {"parts": [{"text": "one"}]}}
    two = {"content": {"parts": [{"text": "two"}]}}
    document = cassette(
        generated(one, {"embedding": {"values": [0.5, 1.0]}}, method="embedContent"),
        generated(
            {"requests": [one, two]},
            {"embeddings": [{"values": [1.0]}, {"values": [2.0]}]},
            method="batchEmbedContents",
        ),
    )
    path = fixtures_written(tmp_path / "c.yaml", document)
    assert main([*COMMAND, path, "--out", str(tmp_path / "s.yaml")]) == 0
    assert lines_of(capsys)[-1] == "imported rules: 3; not carried over: 0"
    script = (tmp_path / "s.yaml").read_text()
    assert "api: embeddings" in script
    assert "exact: two" in script


@pytest.mark.parametrize(
    ("request_body", "answer", "reason"),
    [
        ({}, answered({"text": "a"}), "'contents' is missing"),
        (asked({"text": "a"}), {"candidates": 5}, "'int' object is not iterable"),
        (asked({"text": "a"}), {}, "the response contains no reply"),
        (asked({"text": "a"}), [5], "Expected `object`, got `int`"),
        (asked({"text": "a"}), answered({"functionCall": {"name": 5}}), "concatenate"),
        (asked({"text": 5}), answered({"text": "a"}), "Expected"),
        (asked({"text": "a"}), answered({"text": 5}), "concatenate"),
    ],
)
def test_invalid_exchanges_of_gemini_are_left_out_with_a_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request_body: object,
    answer: object,
    reason: str,
) -> None:
    good = generated(asked({"text": "Hi"}), answered({"text": "Hello"}))
    imported(tmp_path, cassette(generated(request_body, answer), good))
    lines = lines_of(capsys)
    assert lines[0].startswith("interaction 1: left out: ")
    assert reason in lines[0]
    assert lines[-1] == "imported rules: 1; not carried over: 1"


def test_deeply_nested_schema_of_gemini_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema: dict[str, Any] = {"type": "STRING"}
    for _ in range(70):
        schema = {"type": "ARRAY", "items": schema}
    declaration = {"name": "f", "parameters": schema}
    request = asked({"text": "Deep"}, tools=[{"functionDeclarations": [declaration]}])
    good = generated(asked({"text": "Hi"}), answered({"text": "Hello"}))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cassette(generated(request, answered({"text": "a"})), good)))
    assert main([*COMMAND, str(path), "--out", str(tmp_path / "s.yaml")]) == 0
    assert "nested more than 64 levels" in capsys.readouterr().err


def test_bytes_in_cassettes_of_ruby_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text(
        """\
http_interactions:
- request:
    method: post
    uri: https://api.openai.com/v1/chat/completions
    body:
      encoding: UTF-8
      string: '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'
  response:
    status: {code: 200}
    headers: {}
    body:
      encoding: ASCII-8BIT
      string: !binary |-
        eyJjaG9pY2VzIjogW3siaW5kZXgiOiAwLCAiZmluaXNoX3JlYXNvbiI6ICJzdG9wIiwgIm1lc3NhZ2UiOiB7ImNvbnRlbnQiOiAiSGVsbG8ifX1dfQ==
"""
    )
    script = tmp_path / "s.yaml"
    assert main([*COMMAND, str(path), "--out", str(script)]) == 0
    assert "text: Hello" in script.read_text()
