"""Importers carry over what a reply has, and name what they leave out.

The command is that of `app.extensions.scripts`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.cli import main
from tests.extensions.recording.recordings import CHAT, chat, exchange, written
from tests.extensions.recording.test_script import delta, rules_of, stream
from tests.workbench.imports.test_imported_scripts import (
    COMMAND,
    fixture,
    imported,
    reply,
    text,
)
from tests.workbench.imports.test_imported_scripts import written as fixtures_written

PIXEL = "R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
"""A GIF file of one pixel in base64."""

HI = chat("Hi")
ASKED = {"model": "m", "input": "Hi"}
HELLO = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}


def losses_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of standard error."""
    return capsys.readouterr().err.splitlines()


def aimock(folder: Path, *fixtures: object) -> Any:
    """A client of a server with the script of a fixture file of aimock."""
    return imported(folder, {"fixtures": fixtures}, "fixtures.json")


def test_values_of_aimock_fixtures_are_written_as_javascript_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [{"name": "f", "arguments": {"b": 1.0, "a": "é"}}]
    client = aimock(
        tmp_path,
        fixture({"userMessage": "one"}, {"content": {"a": [1, 2.5], "é": "x"}}),
        fixture({"userMessage": "two"}, {"toolCalls": calls}),
        fixture(
            {"userMessage": "three"}, {"toolCalls": [{"name": "f", "arguments": '{ "b" : 1 }'}]}
        ),
        fixture({"userMessage": "four"}, {"toolCalls": [{"name": "f", "arguments": '{"city": '}]}),
        fixture({"userMessage": "five"}, {"blocks": [{"type": "toolCall", **calls[0]}]}),
    )
    assert losses_of(capsys)[-1] == "imported rules: 5; not carried over: 0"
    assert text(client, "one") == '{"a":[1,2.5],"é":"x"}'
    arguments = {
        name: reply(client, name)["tool_calls"][0]["function"]["arguments"]
        for name in ("two", "three", "four", "five")
    }
    assert arguments == {
        "two": '{"b":1,"a":"é"}',
        "three": '{ "b" : 1 }',
        "four": '{"city": ',
        "five": '{"b":1,"a":"é"}',
    }


def test_errors_of_aimock_fixtures_keep_their_type_code_and_param(tmp_path: Path) -> None:
    slow = {"message": "slow", "type": "rate_limit_error", "code": "rate", "param": "model"}
    client = aimock(
        tmp_path,
        fixture({"userMessage": "e1"}, {"error": slow, "status": 429}),
        fixture({"userMessage": "e2"}, {"error": {"message": "bad"}}),
    )
    answer = client.post(CHAT, json=chat("e1"))
    assert (answer.status_code, answer.get_json()["error"]) == (429, slow)
    assert answer.headers["Retry-After"] == "1"
    answer = client.post(CHAT, json=chat("e2"))
    assert answer.status_code == 500
    assert answer.get_json()["error"] == {
        "message": "bad",
        "type": "server_error",
        "param": None,
        "code": None,
    }


def test_truncation_of_an_aimock_fixture_applies_only_to_streams(tmp_path: Path) -> None:
    content = "abcdefghijklmnopqrstuvwxyz"
    truncated = fixture({"userMessage": "t"}, {"content": content}, truncateAfterChunks=2)
    client = aimock(tmp_path, truncated)
    assert text(client, "t") == content
    with pytest.raises(ConnectionResetError):
        client.post(CHAT, json=chat("t", stream=True)).get_data()


def test_tool_result_of_an_aimock_fixture_matches_by_the_id_of_the_call(tmp_path: Path) -> None:
    client = aimock(
        tmp_path,
        fixture({"toolCallId": "call_a"}, {"content": "A"}),
        fixture({"toolCallId": "call_b"}, {"content": "B"}),
    )

    def answer_to(call_id: str) -> Any:
        function = {"name": "f", "arguments": "{}"}
        call = {"id": call_id, "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "done"},
        ]
        return text(client, messages=messages)

    assert [answer_to("call_b"), answer_to("call_a")] == ["B", "A"]


def test_context_of_an_aimock_fixture_is_a_condition_on_its_header(tmp_path: Path) -> None:
    client = aimock(
        tmp_path, fixture({"context": "mine"}, {"content": "A"}), fixture({}, {"content": "B"})
    )
    headers = {"X-AIMock-Context": "mine"}
    answer = client.post(CHAT, json=HI, headers=headers).get_json()
    assert answer["choices"][0]["message"]["content"] == "A"
    assert text(client, "Hi") == "B"


def test_timeout_of_a_litellm_mock_is_an_error_after_a_loss_of_its_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = {"model": "openai/x", "mock_timeout": True, "timeout": 3}
    client = imported(tmp_path, {"model_list": [{"model_name": "m", "litellm_params": parameters}]})
    assert reply(client, "Hi") == 408
    assert losses_of(capsys)[0].endswith(
        "model 1 (m): the 3 s before the error of mock_timeout left out"
    )


def test_fields_of_a_litellm_mock_that_a_rule_cannot_have_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"content": "Hello", "refusal": "no", "annotations": []}
    answer = {"choices": [{"message": content, "seed": 1}], "citations": ["https://x"], "id": "a"}
    model = {"model_name": "m", "litellm_params": {"mock_response": answer}}
    imported(tmp_path, {"model_list": [model]})
    assert losses_of(capsys)[0].endswith("model 1 (m): citations, refusal left out")


def test_fixture_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    document = {"fixtures": [fixture({}, {"content": "A"})]}
    file.write_text(json.dumps(document), encoding="utf-8-sig")
    assert main([*COMMAND, str(file), "--out", str(tmp_path / "s.yaml")]) == 0


def parsed(uri: str, sent: object, received: object, **response: Any) -> dict[str, Any]:
    """An exchange of a cassette whose serializer writes `parsed_body`."""
    return {
        "request": {"method": "POST", "uri": uri, "parsed_body": sent},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {"content-type": ["application/json"]},
            "parsed_body": received,
            **response,
        },
    }


def test_cassette_with_parsed_bodies_is_imported_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    received = {"choices": [HELLO], "usage": {"prompt_tokens": 12, "completion_tokens": 34}}
    document = {
        "version": 1,
        "interactions": [parsed("https://api.openai.com/v1/chat/completions", HI, received)],
    }
    client = imported(tmp_path, document)
    assert losses_of(capsys) == ["imported rules: 1; not carried over: 0"]
    body = client.post(CHAT, json=HI).get_json()
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (12, 34)


CHAT_URI = "https://api.openai.com/v1/chat/completions"
LOST_EXCHANGES = [
    ({"uri": CHAT_URI, "method": "POST"}, {}, "left out: the request has no body"),
    ({"uri": CHAT_URI, "body": "x"}, {}, "left out: the request is not a JSON object: "),
    (
        {"uri": CHAT_URI, "parsed_body": HI},
        {"status": {"code": 200}},
        "left out: the response has no body (status 200)",
    ),
    (
        {"uri": CHAT_URI, "parsed_body": HI},
        {"status": {"code": 200}, "body": {"string": "<html>"}},
        "left out: the response is not a JSON object: ",
    ),
    (
        {"uri": "https://x/v1/responses", "parsed_body": {"input": "Hi"}},
        {"status": 200, "parsed_body": {"object": "response", "status": "queued", "output": []}},
        "left out: the response is not a reply: the status of the response is queued",
    ),
    ({"uri": "https://x/v1/files", "method": "GET"}, {}, "left out: GET https://x/v1/files"),
    ({"uri": CHAT_URI, "method": "GET"}, {}, f"left out: GET {CHAT_URI}"),
    (
        {"uri": "https://x/v1/threads/t/messages", "method": "POST"},
        {},
        "left out: POST https://x/v1/threads/t/messages",
    ),
]


@pytest.mark.parametrize(("sent", "received", "line"), LOST_EXCHANGES)
def test_exchange_without_a_rule_has_a_line_with_its_reason(
    tmp_path: Path,
    sent: dict[str, Any],
    received: dict[str, Any],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {"interactions": [{"request": sent, "response": {"status": 200, **received}}]}
    assert main([*COMMAND, fixtures_written(tmp_path / "c.yaml", document)]) == 1
    first, total, _ = losses_of(capsys)
    assert f"interaction 1: {line}" in first
    assert total == "imported rules: 0; not carried over: 1"


def message(**fields: Any) -> dict[str, Any]:
    """A whole reply of a chat with fields that a rule cannot have."""
    return {"choices": [{**HELLO, "message": {**HELLO["message"], **fields}}]}  # type: ignore[dict-item]


LOST_PARTS = [
    (message(refusal="no"), "refusal left out"),
    (message(annotations=[{"type": "url_citation"}]), "annotations left out"),
    ({"choices": [HELLO, {**HELLO, "index": 1}]}, "choices after the first left out"),
    ({"choices": [{**HELLO, "logprobs": {"content": []}}]}, "logprobs left out"),
    ({"choices": [{**HELLO, "finish_reason": "odd"}]}, "finish reason odd left out"),
    (message(executed_tools=[{"type": "search"}]), "executed_tools left out"),
    ({"choices": [HELLO], "citations": ["https://x"]}, "citations left out"),
    ({"choices": [{**HELLO, "token_ids": [1]}]}, "token_ids left out"),
]


@pytest.mark.parametrize(("received", "line"), LOST_PARTS)
def test_part_of_a_reply_that_a_rule_cannot_have_is_listed(
    tmp_path: Path, received: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path, {"interactions": [parsed(CHAT_URI, HI, received)]})
    first, total = losses_of(capsys)
    assert first.endswith(f"interaction 1: {line}")
    assert total == "imported rules: 1; not carried over: 1"


def test_remarks_about_a_reply_are_listed_as_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filters = {"hate": {"filtered": False}}
    received = {
        "choices": [{**HELLO, "content_filter_results": filters}],
        "prompt_filter_results": [filters],
        "system_fingerprint": "fp",
        "provider": "x",
    }
    imported(tmp_path, {"interactions": [parsed(CHAT_URI, HI, received)]})
    *lines, total = losses_of(capsys)
    assert [line.rpartition(" ")[2] for line in lines] == [
        "prompt_filter_results",
        "content_filter_results",
    ]
    assert total == "imported rules: 1; not carried over: 0; ignored: 2"


SERVER_ITEMS = [
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "q"}},
    {"type": "file_search_call", "id": "f", "status": "completed", "queries": ["q"]},
    {"type": "code_interpreter_call", "id": "c", "status": "completed", "code": "1"},
    {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []},
    {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "x"},
    {"type": "image_generation_call", "id": "i", "result": "aGk="},
]


@pytest.mark.parametrize("is_stream", [False, True])
def test_output_of_tools_that_openai_runs_is_listed(
    tmp_path: Path, is_stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"type": "output_text", "text": "Found.", "annotations": [{"type": "url_citation"}]}
    answer = {
        "object": "response",
        "status": "completed",
        "output": [*SERVER_ITEMS, {"type": "message", "content": [part], "phase": "final_answer"}],
    }
    received: Any = answer
    if is_stream:
        event = {"type": "response.completed", "response": answer}
        received = f"event: response.completed\ndata: {json.dumps(event)}\n\n"
    document = {"interactions": [parsed("https://x/v1/responses", ASKED, received)]}
    client = imported(tmp_path, document)
    *lines, total = losses_of(capsys)
    assert [line.partition("interaction 1: ")[2] for line in lines] == [
        "ignored: phase",
        *(f"output item {item['type']} left out" for item in SERVER_ITEMS),
        "annotations left out",
    ]
    assert total == "imported rules: 1; not carried over: 7; ignored: 1"
    reply = client.post("/v1/responses", json=ASKED).get_json()
    assert reply["output"][-1]["content"][0]["text"] == "Found."


@pytest.mark.parametrize("uri", [CHAT_URI, "https://x/v1/responses"])
def test_recorded_rejection_becomes_a_rule_that_rejects(tmp_path: Path, uri: str) -> None:
    error = {"message": "No credit", "type": "insufficient_quota", "param": None, "code": "quota"}
    sent = HI if uri == CHAT_URI else ASKED
    document = {"interactions": [parsed(uri, sent, {"error": error})]}
    document["interactions"][0]["response"]["status"] = {"code": 400}
    client = imported(tmp_path, document)
    answer = client.post(CHAT if uri == CHAT_URI else "/v1/responses", json=sent)
    assert (answer.status_code, answer.get_json()["error"]) == (400, error)


def test_responses_that_a_filter_ended_keep_the_reason(tmp_path: Path) -> None:
    answer = {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Half"}]}],
    }
    document = {"interactions": [parsed("https://x/v1/responses", ASKED, answer)]}
    reply = imported(tmp_path, document).post("/v1/responses", json=ASKED).get_json()
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "content_filter"}


ERROR = {"error": {"message": "boom", "type": "x", "code": 500}}


def test_error_in_a_recorded_stream_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "r", [exchange(HI, *stream(delta(content="a"), ERROR))])
    assert main(["script", "from-recording", file]) == 0
    assert losses_of(capsys) == [
        "line 2: error in a stream: boom left out",
        "converted rules: 1; not carried over: 1",
    ]


def test_calls_of_a_stream_with_equal_indices_are_told_apart_by_their_ids() -> None:
    def piece(arguments: str, **call: Any) -> dict[str, Any]:
        function = {"arguments": arguments, **call.pop("function", {})}
        return delta(tool_calls=[{"index": 0, "function": function, **call}])

    [rule] = rules_of(
        exchange(
            HI,
            *stream(
                piece('{"a": ', id="c1", function={"name": "f"}),
                piece("1}"),
                piece('{"b": 2}', id="c2", function={"name": "g"}),
            ),
        )
    )
    assert rule["then"]["tool_calls"] == [
        {"name": "f", "arguments": {"a": 1}, "id": "c1", "unchecked": True},
        {"name": "g", "arguments": {"b": 2}, "id": "c2", "unchecked": True},
    ]


def test_recorded_errors_keep_their_code_and_the_time_of_the_next_attempt() -> None:
    error = {"error": {"message": "Slow", "type": "rate", "param": "p", "code": "busy"}}
    headers = [("content-type", "application/json"), ("retry-after", "7")]
    data = (0.1, json.dumps(error).encode())
    [rule] = rules_of(exchange(HI, data, status=429, headers=headers))
    assert rule["then"]["fault"] == {
        "action": "error",
        "status": 429,
        "type": "rate",
        "message": "Slow",
        "param": "p",
        "code": "busy",
        "retry_after": 7,
    }


def test_message_with_an_image_is_matched_by_its_text(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{PIXEL}"}}
    content = [{"type": "text", "text": "What is this?"}, image]
    sent = {"model": "m", "messages": [{"role": "user", "content": content}]}
    client = imported(tmp_path, {"interactions": [parsed(CHAT_URI, sent, {"choices": [HELLO]})]})
    answer = client.post(CHAT, json=sent).get_json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
