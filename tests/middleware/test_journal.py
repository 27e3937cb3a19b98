"""The journal: what clients sent and were told, within its bounds, and without their secrets."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from flask.testing import FlaskClient

from app.serving.http.response import Response
from app.serving.middleware.journal import Journal, masked_json
from tests.application import app_of, request

CHAT = "/v1/chat/completions"


def client_of(*flags: str) -> FlaskClient:
    return app_of("--seed", "1", *flags).test_client()


def chat(client: FlaskClient, text: str, scope: str = "", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
    answer = client.post(CHAT, json=body, headers={"X-Understudy-Scope": scope} if scope else {})
    return answer.get_data() if fields.get("stream") else answer.json


def entries(client: FlaskClient, **query: Any) -> Sequence[Any]:
    answer: Any = client.get(f"/admin/journal?{urlencode(query)}").json
    found: Sequence[Any] = answer["entries"]
    return found


def test_an_entry_has_the_request_and_what_the_client_was_told() -> None:
    client = client_of("--journal", "10")
    told = chat(client, 'A "café"', api_key="sk-1")
    chat(client, "again", "one", stream=True)
    client.post("/v1/completions", data=b"{", content_type="application/json")
    first, second, broken = entries(client)
    assert " ".join(sorted(first)) == "at id model request route rule scope status text usage"
    assert (first["route"], first["model"], first["status"]) == (CHAT, told["model"], 200)
    assert first["request"]["messages"][0]["content"] == 'A "café"' and first["request"]["api_key"] == "***"
    assert first["text"] == told["choices"][0]["message"]["content"]
    assert first["usage"].items() <= told["usage"].items()
    assert (second["scope"], second["usage"]["completion_tokens"]) == ("one", 4) and second["text"]
    assert (broken["status"], broken["request"], broken["text"], broken["usage"]) == (400, "{", None, None)


def test_entries_are_found_by_route_text_and_scope_and_forgotten() -> None:
    client = client_of("--journal", "10")
    for text, scope in (('say "Rome"', "a"), ("Rome", "b"), ("Oslo", "a")):
        chat(client, text, scope)
    assert len(entries(client, route=CHAT)) == 3 and not entries(client, route="/v1/completions")
    assert [each["scope"] for each in entries(client, contains="Rome")] == ["a", "b"]
    assert len(entries(client, contains='"Rome"')) == 1
    assert [each["request"]["messages"][0]["content"] for each in entries(client, limit=1)] == ["Oslo"]
    client.delete("/admin/journal?scope=a")
    assert [each["scope"] for each in entries(client)] == ["b"]
    client.delete("/admin/journal")
    assert entries(client) == []
    wrong: Any = client.get("/admin/journal?contain=x").json
    assert wrong["error"]["message"] == "query.contain: expected no such field"


def test_thoughts_and_calls_are_no_text() -> None:
    client = client_of("--journal", "10", "--reasoning-parser", "any")
    told = chat(client, "think", max_tokens=60)["choices"][0]["message"]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    called = chat(client, "call", tools=[tool], tool_choice="required", max_tokens=300)
    assert told["reasoning"] and called["choices"][0]["message"]["tool_calls"]
    assert [each["text"] for each in entries(client)] == [told["content"] or "", ""]


def test_it_is_bounded_by_number_and_by_bytes() -> None:
    client = client_of("--journal", "3")
    for number in range(5):
        chat(client, str(number))
    assert [each["request"]["messages"][0]["content"] for each in entries(client)] == ["2", "3", "4"]
    client = client_of("--journal", "100000")
    for number in range(30):
        chat(client, f"{number} " + "x" * 3_000_000)
    kept: Any = client.get("/admin/memory").json
    size = kept["caches"]["journal"]
    assert 9_000_000 < size["size_bytes"] < size["limit_bytes"] == 16 << 20
    assert [each["request"]["messages"][0]["content"][:3] for each in entries(client)][-1] == "29 "


def test_a_hundred_thousand_entries_stay_within_the_bytes_and_are_searched() -> None:
    journal = Journal(100_000)
    for number in range(100_000):
        context = request(CHAT, "POST", body=b'{"number":%d}' % number)
        journal.begin(context)
        journal.end(context, Response())
    assert 0 < journal.size_bytes <= journal.limit_bytes
    [last] = journal.rows(None, "99999", None)
    assert b'"number":99999' in bytes(last) and journal.rows(None, '"number":0}', None) == []
    assert 10_000 < len(journal.rows(CHAT, "", None)) < 20_000
    journal.clear()
    assert journal.size_bytes == 0


def test_without_one_nothing_is_kept_and_the_route_says_how_to_have_one() -> None:
    answer: Any = client_of().get("/admin/journal").json
    assert "--journal 1000" in answer["error"]["message"] and not Journal(0).active
    client = client_of("--console")
    chat(client, "hello")
    assert len(entries(client)) == 1


def test_what_is_no_json_is_a_text_and_what_is_no_text_is_null() -> None:
    assert masked_json(b'{"token": "s", "a": [1e400]') == b'"{\\"token\\": \\"***\\", \\"a\\": [1e400]"'
    assert masked_json(b"\xff") == masked_json(b"") == masked_json(b"\0\1") == b"null"
    assert masked_json(b"[" * 5000).startswith(b'"[[[')
    assert masked_json('{"a": "ö", "b": 123456789012345678901234567890}'.encode()).startswith(b'{"a":"\xc3')
