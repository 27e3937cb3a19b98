"""Exports of OpenTelemetry with the attributes `gen_ai.*` become scripts."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.workbench.imports.test_imported_logs import client_of, lines, losses_of
from tests.workbench.imports.test_imported_scripts import CALL, COMMAND, TOOLS, reply, text

REPLY = [{"role": "assistant", "parts": [{"type": "text", "content": "B"}]}]


def value_of(value: Any) -> dict[str, Any]:
    """A value as OTLP writes it in JSON."""
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [value_of(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes_of(value)}}
    return {"stringValue": value}


def attributes_of(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value_of(value)} for name, value in attributes.items()]


def span(span_id: str = "1", events: Any = (), **attributes: Any) -> dict[str, Any]:
    """A span of a chat; dots of names are written as `__`."""
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    named = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **named}
    return {
        "traceId": "t",
        "spanId": span_id,
        "attributes": attributes_of(named),
        "events": [{"name": name, "attributes": attributes_of(fields)} for name, fields in events],
    }


def export(*spans: dict[str, Any]) -> str:
    return lines({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})


def asked(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"type": "text", "content": question}]}]


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "structured"])
def test_messages_with_parts_become_a_rule_for_all_apis(tmp_path: Path, is_text: bool) -> None:
    call = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"a": 1}}
    result = {"type": "tool_call_response", "id": "c1", "response": "sunny"}
    sent: Any = [
        *asked("A"),
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [result]},
    ]
    first: Any = [{"role": "assistant", "parts": [call], "finish_reason": "tool_call"}]
    last: Any = REPLY
    question: Any = asked("A")
    if is_text:
        sent, first, last, question = map(json.dumps, (sent, first, last, question))
    usage = {"gen_ai__usage__input_tokens": 3, "gen_ai__usage__output_tokens": 4}
    client = client_of(
        tmp_path,
        export(
            span("1", gen_ai__input__messages=question, gen_ai__output__messages=first),
            span("2", gen_ai__input__messages=sent, gen_ai__output__messages=last, **usage),
        ),
    )
    message = reply(client, "A", tools=TOOLS)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    tool = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    messages = [{"role": "user", "content": "A"}, message, tool]
    answer = client.post("/v1/chat/completions", json=chat(messages=messages)).get_json()
    assert answer["choices"][0]["message"]["content"] == "B"
    assert answer["usage"]["completion_tokens"] == 4
    completion = client.post("/v1/completions", json={"model": "m", "prompt": "A"})
    assert completion.status_code == 200


def test_numbered_attributes_become_a_rule(tmp_path: Path) -> None:
    numbered = {
        "gen_ai__prompt__0__role": "user",
        "gen_ai__prompt__0__content": json.dumps([{"type": "text", "text": "A"}]),
        "gen_ai__completion__0__content": "B",
        "gen_ai__completion__0__finish_reason": "max_tokens",
        "gen_ai__completion__0__tool_calls__0__name": "weather",
        "gen_ai__completion__0__tool_calls__0__arguments": '{"a": 1}',
    }
    message = reply(client_of(tmp_path, export(span(**numbered))), "A", tools=TOOLS)
    assert message["content"] == "B"
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("as_text", [True, False])
def test_events_of_messages_become_a_rule(tmp_path: Path, as_text: bool) -> None:
    choice: Any = {"content": "B", "tool_calls": [CALL]}
    if as_text:
        choice = json.dumps(choice)
    events = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": "A"}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "tool_calls", "message": choice}),
    ]
    message = reply(client_of(tmp_path, export(span(events=events))), "A", tools=TOOLS)
    assert message["content"] == "B"
    assert message["tool_calls"][0]["function"]["name"] == "weather"


def test_events_in_log_records_belong_to_their_span(tmp_path: Path) -> None:
    def record(name: str, **body: Any) -> dict[str, Any]:
        return {"traceId": "t", "spanId": "1", "eventName": name, "body": value_of(body)}

    logs = [
        record("gen_ai.user.message", content="A"),
        record("gen_ai.choice", finish_reason="stop", message={"content": "B"}),
    ]
    records = {"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}
    client = client_of(tmp_path, lines(records) + export(span()))
    assert text(client, "A") == "B"


def test_plain_spans_of_a_console_exporter_become_rules(tmp_path: Path) -> None:
    attributes = {
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(asked("A")),
        "gen_ai.output.messages": json.dumps(REPLY),
    }
    context = {"trace_id": "0x1", "span_id": "0x2"}
    document = {"name": "chat m", "context": context, "attributes": attributes, "events": []}
    other = {**document, "context": {**context, "span_id": "0x3"}, "attributes": {"a": 1}}
    content = lines(json.dumps(other, indent=4), json.dumps(document, indent=4))
    assert text(client_of(tmp_path, content), "A") == "B"


def test_failed_span_is_an_error_and_spans_without_texts_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"gen_ai__input__messages": json.dumps(asked("A"))}
    failed = span("1", error__type="429", **question)
    failed["status"] = {"code": 2, "message": "slow"}
    client = client_of(
        tmp_path,
        export(
            failed,
            span("2"),
            span("3", **question),
            span("4", gen_ai__operation__name="embeddings"),
            span("5", gen_ai__operation__name="execute_tool"),
        ),
    )
    assert reply(client, "A") == 429
    assert losses_of(capsys) == [
        "ignored: a span of execute_tool, which asks no model",
        "call 2: left out: its messages were not captured"
        " (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)",
        "call 3: left out: its reply was not captured",
        "call 4: left out: a span of an embedding does not have the vector",
        "imported rules: 1; not carried over: 3; ignored: 1",
    ]


def test_export_without_calls_of_models_has_no_known_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        lines({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /", "spanId": "1"}]}]}]})
    )
    assert main([*COMMAND, str(log)]) == 1
    assert "not a format that I know" in capsys.readouterr().err
