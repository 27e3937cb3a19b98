"""Logs of requests and responses become scripts: JSON lines, logs of LiteLLM, and logs of Envoy."""

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from app.core.cli import main
from tests.extensions.recording.recordings import CHAT, chat
from tests.extensions.scripts.served_script import client_with_script
from tests.workbench.imports.test_imported_scripts import COMMAND, reply, text

ANSWER = {"choices": [{"index": 0, "message": {"content": "B"}, "finish_reason": "stop"}]}
SLOW = {"error": {"message": "Too slow", "code": 429}}


def lines(*records: object) -> str:
    return "".join(
        f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records
    )


def client_of(folder: Path, content: str, *flags: str, name: str = "log.txt") -> Any:
    """A client of a server with the script of a log."""
    log = folder / name
    log.write_text(content)
    script = folder / "script.yaml"
    assert main([*COMMAND, str(log), "--out", str(script), *flags]) == 0
    return client_with_script(script)


def losses_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of standard error, without the file's name."""
    return [line.partition("log.txt: ")[2] or line for line in capsys.readouterr().err.splitlines()]


def message(question: str) -> dict[str, Any]:
    return {**chat(question), "max_tokens": 9}


CLAUDE = {"type": "message", "stop_reason": "end_turn", "content": [{"type": "text", "text": "B"}]}
CLAUDE_STREAM = (
    'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n'
    'event: content_block_start\ndata: {"type": "content_block_start", "index": 0,'
    ' "content_block": {"type": "text", "text": "B"}}\n\n'
    'event: message_delta\ndata: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n'
)
RESPONSE = {
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "B"}]}],
}
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "B"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


@pytest.mark.parametrize(
    ("api", "request_body", "response_body"),
    [
        ("chat", chat("A"), ANSWER),
        ("chat", chat("A"), CHUNKS),
        ("messages", message("A"), CLAUDE),
        ("messages", message("A"), CLAUDE_STREAM),
        ("completions", {"model": "m", "prompt": "A"}, {"choices": [{"index": 0, "text": "B"}]}),
        ("responses", {"model": "m", "input": "A"}, RESPONSE),
        ("embeddings", {"model": "m", "input": "A"}, {"data": [{"index": 0, "embedding": [1]}]}),
        ("rerank", {"model": "m", "query": "q", "documents": ["A"]}, {"results": []}),
    ],
)
def test_bodies_without_a_url_determine_the_api(
    tmp_path: Path, api: str, request_body: object, response_body: object
) -> None:
    log = tmp_path / "log.jsonl"
    if api == "completions":
        response_body = {"choices": [{"index": 0, "text": "B", "finish_reason": "stop"}]}
    if api == "rerank":
        response_body = {"results": [{"index": 0, "relevance_score": 0.5}]}
    log.write_text(lines({"request": request_body, "response": response_body}))
    script = tmp_path / "script.yaml"
    assert main([*COMMAND, str(log), "--out", str(script)]) == 0
    assert f"api: {api}\n" in script.read_text()


def test_messages_of_http_in_json_lines_keep_status_and_url(tmp_path: Path) -> None:
    request = {"method": "POST", "url": f"http://h{CHAT}"}
    client = client_of(
        tmp_path,
        lines(
            {
                "request": {**request, "body": json.dumps(chat("whole"))},
                "response": {"status_code": 200, "body": json.dumps(ANSWER)},
            },
            {
                "request": {**request, "json": chat("failed")},
                "response": {"status": 429, "headers": {"Retry-After": "3"}, "json": SLOW},
            },
            {"url": CHAT, "request_body": chat("flat"), "response_body": ANSWER},
            {"request": chat("no status"), "response": SLOW},
        ),
    )
    assert text(client, "whole") == text(client, "flat") == "B"
    failed = client.post(CHAT, json=chat("failed"))
    assert (failed.status_code, failed.headers["Retry-After"]) == (429, "3")
    assert reply(client, "no status") == 429


def test_input_and_output_of_a_batch_in_one_file_are_exchanges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = {"custom_id": "1", "method": "POST", "url": CHAT, "body": chat("A")}
    received = {"custom_id": "1", "response": {"status_code": 200, "body": ANSWER}, "error": None}
    client = client_of(tmp_path, lines(sent, received, {**received, "custom_id": "2"}))
    assert text(client, "A") == "B"
    [loss, total] = losses_of(capsys)
    assert loss.startswith("line 3: left out: it has no request; a batch's input and output have ")
    assert total == "imported rules: 1; not carried over: 1"


def test_other_lines_of_a_log_are_counted_and_damaged_ones_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"request": chat("A"), "response": ANSWER}
    indented = json.dumps({"request": chat("C"), "response": ANSWER}, indent=2)
    client = client_of(
        tmp_path,
        lines(
            "[2026-01-31 12:00] starting", f"gateway-1  | {json.dumps(record)}", '{"request": {', ""
        )
        + lines(indented, {"level": "info"}),
    )
    assert text(client, "A") == text(client, "C") == "B"
    assert losses_of(capsys) == [
        "ignored: lines without a JSON object: 1",
        "ignored: lines without a request to a model: 1",
        "line 3: left out: not a JSON object of a usual size",
        "imported rules: 2; not carried over: 1; ignored: 2",
    ]


def payload(question: str, **fields: Any) -> dict[str, Any]:
    """A logging payload of LiteLLM."""
    messages = [{"role": "user", "content": question}]
    return {
        "call_type": "acompletion",
        "model": "m",
        "messages": messages,
        "response": ANSWER,
        **fields,
    }


def test_payloads_of_litellm_match_the_models_that_clients_name(tmp_path: Path) -> None:
    client = client_of(
        tmp_path,
        lines(
            payload("A", model="m-2026", model_group="m"),
            payload("C", proxy_server_request=json.dumps({**chat("as sent"), "stream": True})),
            payload("E", messages=json.dumps([{"role": "user", "content": "E"}])),
            payload("G", call_type="completion", response="text"),
        ),
    )
    assert text(client, "A") == text(client, "as sent") == text(client, "E") == "B"
    assert text(client, "G") == "text"


def test_failed_call_of_litellm_is_an_error(tmp_path: Path) -> None:
    details = {"error_code": "429", "error_class": "RateLimitError", "error_message": "slow"}
    client = client_of(
        tmp_path,
        lines(
            payload("A", status="failure", response={}, error_information=details),
            payload("C", status="failure", response={}, error_str="lost"),
        ),
    )
    answer = client.post(CHAT, json=chat("A"))
    assert answer.status_code == 429
    assert answer.get_json()["error"]["message"] == "slow"
    assert reply(client, "C") == 500


def test_payloads_without_texts_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        lines(payload("A", messages={}), payload("A", response={}), payload("A", call_type="atts"))
    )
    assert main([*COMMAND, str(log)]) == 1
    assert losses_of(capsys)[:3] == [
        "line 1: left out: its messages were not stored (store_prompts_in_spend_logs)",
        "line 2: left out: its response was not stored",
        "line 3: left out: call type atts",
    ]


def access_line(question: str, answer: object = ANSWER, **fields: Any) -> dict[str, Any]:
    """A line of an access log of Envoy."""
    return {
        "method": "POST",
        "path": CHAT,
        "response_code": 200,
        "authority": "vllm:8000",
        "request_body": json.dumps(chat(question)),
        "response_body": json.dumps(answer),
        **fields,
    }


def test_access_log_of_envoy_becomes_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(
        tmp_path,
        lines(
            access_line("A"),
            access_line("C", SLOW, response_code=429),
            {**access_line("E"), "response_body": "-"},
            {"method": "GET", "path": "/health", "response_code": 200, "request_body": "-"},
        ),
    )
    assert text(client, "A") == "B"
    assert reply(client, "C") == 429
    assert losses_of(capsys) == [
        "ignored: lines without a request to a model: 1",
        "line 3: left out: it has no request_body or no response_body; the format of the access log"
        " decides",
        "imported rules: 2; not carried over: 1; ignored: 1",
    ]


def pairs(**headers: str) -> list[dict[str, str]]:
    return [{"key": name.replace("__", ":"), "value": value} for name, value in headers.items()]


SENT_HEADERS = pairs(__authority="h", __path=CHAT, __method="POST")
GZIPPED = b64encode(gzip.compress(json.dumps(ANSWER).encode())).decode()


def test_trace_of_a_tap_with_a_compressed_body_becomes_a_rule(tmp_path: Path) -> None:
    trace = {
        "request": {"headers": SENT_HEADERS, "body": {"as_string": json.dumps(chat("A"))}},
        "response": {
            "headers": [*pairs(__status="200"), {"key": "content-encoding", "value": "gzip"}],
            "body": {"truncated": False, "as_bytes": GZIPPED},
        },
    }
    client = client_of(tmp_path, json.dumps({"http_buffered_trace": trace}, indent=1))
    assert text(client, "A") == "B"


def test_segments_of_streamed_taps_are_joined(tmp_path: Path) -> None:
    def segment(trace_id: int, **fields: Any) -> dict[str, Any]:
        return {"http_streamed_trace_segment": {"trace_id": trace_id, **fields}}

    def parts_of(trace_id: int, question: str) -> list[dict[str, Any]]:
        sent = json.dumps(chat(question))
        received = json.dumps(ANSWER)
        return [
            segment(trace_id, request_headers={"headers": SENT_HEADERS}),
            segment(trace_id, request_body_chunk={"as_string": sent[:20]}),
            segment(trace_id, request_body_chunk={"as_string": sent[20:]}),
            segment(trace_id, response_headers={"headers": pairs(__status="200")}),
            segment(trace_id, response_body_chunk={"as_string": received}),
        ]

    first = parts_of(1, "A")
    second = parts_of(2, "C")
    mixed = [part for both in zip(first, second, strict=True) for part in both]
    client = client_of(tmp_path, lines(*mixed))
    assert text(client, "A") == text(client, "C") == "B"


def test_cut_body_of_a_tap_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"truncated": True, "as_string": '{"model"'}
    trace = {"request": {"headers": SENT_HEADERS, "body": body}, "response": {"headers": []}}
    log = tmp_path / "log.txt"
    log.write_text(lines({"http_buffered_trace": trace}))
    assert main([*COMMAND, str(log)]) == 1
    assert losses_of(capsys)[0].startswith("item 1: left out: a body is cut; raise max_buffered_")


def test_most_listed_items_of_another_type_are_a_thousand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.json"
    pair = {"request": chat("A"), "response": ANSWER}
    log.write_text(json.dumps([pair, *range(2000)]))
    assert main([*COMMAND, str(log)]) == 0
    *losses, others, last = capsys.readouterr().err.splitlines()
    assert len(losses) == 1000 and losses[-1].endswith(
        "item 1001: left out: not a JSON object of a usual size"
    )
    assert others.endswith("log.json: items: left out: 1,000 more of this kind")
    assert last == "imported rules: 1; not carried over: 1001"
