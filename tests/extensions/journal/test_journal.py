"""The journal: requests and replies within its limits, with masked secrets."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3 import encode_multipart_formdata

from app.core.engine.request import SequenceOutcome
from app.core.server.http.response import Response
from app.core.server.http.rpc import RpcCode, RpcOutcome, RpcResponse
from app.extensions.journal.entries import Entry, error_of, masked_json
from app.extensions.journal.journal import Journal
from tests.application import app_of, request
from tests.core.engine.harness import engine_request

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer key-of-the-test"}
NAMES = ("api_key", "hfToken", "pwd", "auth", "DB_PASSWORD", "X-Api-Key", "client_secret", "cookie")
FORM = "application/x-www-form-urlencoded"


def client_of(*flags: str) -> FlaskClient:
    return app_of("--seed", "1", *flags).test_client()


def chat(client: FlaskClient, text: str, scope: str = "", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
    answer = client.post(CHAT, json=body, headers={"X-Understudy-Scope": scope} if scope else {})
    return answer.get_data() if fields.get("stream") else answer.json


def entries(client: FlaskClient, **query: Any) -> Sequence[Any]:
    answer: Any = client.get(f"/admin/journal?{urlencode(query)}").json
    rows: Sequence[Any] = answer["entries"]
    return rows


def test_journal_error_of_a_grpc_call_is_its_masked_status_message() -> None:
    outcome = RpcOutcome(RpcCode.INVALID_ARGUMENT, "No rule answers Bearer sk-1234567890abcdef.")
    message = error_of(RpcResponse(outcome=outcome, status=400))
    assert message is not None and message.startswith("No rule answers")
    assert "sk-1234567890abcdef" not in message
    assert error_of(RpcResponse(status=499)) is None


def test_journal_entry_contains_the_request_and_the_reply() -> None:
    client = client_of("--journal", "10")
    reply = chat(client, 'A "café"', api_key="sk-1")
    chat(client, "again", "one", stream=True)
    client.post("/v1/completions", data=b"{", content_type="application/json")
    first, second, broken = entries(client)
    assert sorted(first) == sorted(Entry.__struct_fields__)
    assert (first["route"], first["model"], first["status"]) == (CHAT, reply["model"], 200)
    assert (
        first["request"]["messages"][0]["content"] == 'A "café"'
        and first["request"]["api_key"] == "***"
    )
    assert first["text"] == reply["choices"][0]["message"]["content"]
    assert first["usage"].items() <= reply["usage"].items()
    assert (second["scope"], second["usage"]["completion_tokens"]) == ("one", 4) and second["text"]
    assert (broken["status"], broken["request"], broken["text"], broken["usage"]) == (
        400,
        "{",
        None,
        None,
    )
    assert "JSON decode error" in broken["error"] and not broken["unmatched"]
    assert first["error"] is None


def test_journal_entries_can_be_filtered_and_cleared() -> None:
    client = client_of("--journal", "10")
    for text, scope in (('say "Rome"', "a"), ("Rome", "b"), ("Oslo", "a")):
        chat(client, text, scope)
    assert len(entries(client, route=CHAT)) == 3 and not entries(client, route="/v1/completions")
    assert [entry["scope"] for entry in entries(client, contains="Rome")] == ["a", "b"]
    assert len(entries(client, contains='"Rome"')) == 1
    assert [entry["request"]["messages"][0]["content"] for entry in entries(client, limit=1)] == [
        "Oslo"
    ]
    client.delete("/admin/journal?scope=a")
    assert [entry["scope"] for entry in entries(client)] == ["b"]
    client.delete("/admin/journal")
    assert entries(client) == []
    wrong: Any = client.get("/admin/journal?contain=x").json
    assert wrong["error"]["param"] == "query.contain"
    assert "Extra inputs are not permitted" in wrong["error"]["message"]


def test_journal_text_contains_no_reasoning() -> None:
    client = client_of("--journal", "10", "--reasoning-parser", "any")
    message = chat(client, "think", max_tokens=60)["choices"][0]["message"]
    assert message["reasoning"]
    assert [entry["text"] for entry in entries(client)] == [message["content"] or ""]


def test_journal_is_limited_by_number_of_entries_and_bytes() -> None:
    client = client_of("--journal", "3")
    for number in range(5):
        chat(client, str(number))
    assert [entry["request"]["messages"][0]["content"] for entry in entries(client)] == [
        "2",
        "3",
        "4",
    ]
    client = client_of("--journal", "100000")
    for number in range(9):
        chat(client, f"{number} " + "x" * 3_000_000)
    memory: Any = client.get("/admin/memory").json
    size = memory["caches"]["journal"]
    assert 9_000_000 < size["size_bytes"] < size["limit_bytes"] == 16 << 20
    assert [entry["request"]["messages"][0]["content"][:3] for entry in entries(client)][
        -1
    ] == "8 x"


def test_journal_of_thirty_thousand_entries_stays_within_the_size_limit() -> None:
    journal = Journal(100_000)
    for number in range(30_000):
        context = request(CHAT, "POST", body=b'{"number":%d}' % number)
        journal.begin(context)
        journal.end(context, Response())
    assert 0 < journal.size_bytes <= journal.limit_bytes
    [last] = journal.rows(None, "29999", None)
    assert b'"number":29999' in bytes(last) and journal.rows(None, '"number":0}', None) == []
    assert 10_000 < len(journal.rows(CHAT, "", None)) < 20_000
    journal.clear()
    assert journal.size_bytes == 0


OUTCOME = SequenceOutcome(
    reason="stop",
    queued_s=0.0,
    scheduled_s=0.0,
    first_token_s=0.0,
    last_token_s=0.0,
    ended_s=0.0,
    cached_tokens=0,
    fetched_tokens=0,
    tokens=1,
    preemptions=0,
    text="x" * 500_000,
)


def test_texts_of_running_requests_count_toward_the_size_limit() -> None:
    journal = Journal(10)
    for _ in range(4):
        context = request(CHAT, "POST", body=b"{}")
        journal.begin(context)
        [observe] = context.observers
        for choice in range(12):
            watch = observe(engine_request(index=choice, n=12))
            assert watch is not None
            watch(OUTCOME)
        assert journal.size_bytes <= journal.limit_bytes
    assert 0 < len(journal.rows(None, "", None)) < 4


def keyed_client(*flags: str) -> FlaskClient:
    return client_of("--api-key", "key-of-the-test", *flags)


def entries_of(client: FlaskClient, **query: Any) -> Sequence[Any]:
    answer: Any = client.get(f"/admin/journal?{urlencode(query)}", headers=KEY).json
    rows: Sequence[Any] = answer["entries"]
    return rows


def test_requests_without_a_key_do_not_evict_keyed_requests() -> None:
    client = keyed_client("--journal", "5")
    body = {"messages": [{"role": "user", "content": "mine"}], "max_tokens": 2}
    client.post(CHAT, json=body, headers=KEY)
    for number in range(20):
        for path in (CHAT, "/tokenize", "/nowhere"):  # of these, the first alone needs a key
            client.post(
                path, json={"prompt": f"{number} {path}"}, headers={"Authorization": "Bearer wrong"}
            )
    client.post(CHAT, json={**body, "max_tokens": 3}, headers=KEY)
    mine = [
        entry for entry in entries_of(client) if entry["status"] == 200 and entry["route"] == CHAT
    ]
    assert [entry["request"]["max_tokens"] for entry in mine] == [2, 3]
    strangers = entries_of(client)[1:-1]
    assert [entry["route"] for entry in strangers] == [
        "/tokenize",
        "/nowhere",
        CHAT,
        "/tokenize",
        "/nowhere",
    ]
    assert {entry["status"] for entry in strangers} == {200, 401, 404}
    assert [
        entry["max_tokens"] for entry in (mine[-1]["request"], entries_of(client)[-1]["request"])
    ] == [3, 3]


def test_journal_limits_the_memory_of_requests_without_a_key() -> None:
    client = keyed_client("--journal", "100000")
    for number in range(60):
        client.post("/tokenize", json={"prompt": f"{number} " + "x" * 30_000})
    client.post("/tokenize", json={"prompt": "x" * 100_000})
    entries_of_strangers = entries_of(client)
    assert 20 < len(entries_of_strangers) < 40 and entries_of_strangers[-1]["request"] is None
    assert entries_of_strangers[-2]["request"]["prompt"].startswith("59 ")
    memory: Any = client.get("/admin/memory", headers=KEY).json
    assert memory["caches"]["journal"]["size_bytes"] < 1 << 20


def test_entries_with_and_without_a_key_are_merged_by_arrival() -> None:
    client = keyed_client("--journal", "10")
    for number in range(6):
        client.post("/tokenize", json={"prompt": str(number)}, headers=KEY if number % 2 else {})
    assert [entry["request"]["prompt"] for entry in entries_of(client)] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
    assert [entry["request"]["prompt"] for entry in entries_of(client, limit=3)] == ["3", "4", "5"]
    assert [entry["request"]["prompt"] for entry in entries_of(client, contains="4")] == ["4"]
    client.delete("/admin/journal", headers=KEY)
    assert entries_of(client) == []


Encoded = tuple[bytes, str]
"""A body and its content type."""


def in_javascript(text: str) -> str:
    """As JavaScript's encodeURIComponent."""
    return quote(text, safe="!'()*~")


def with_every_byte_escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def as_json(value: object) -> Encoded:
    return json.dumps(value).encode(), "application/json"


def as_utf8_json(value: object) -> Encoded:
    return json.dumps(
        value, ensure_ascii=False, indent=1
    ).encode(), "application/json; charset=utf-8"


def as_multipart(name: str, secret: str) -> Encoded:
    return encode_multipart_formdata(
        [("n", "1"), (name, secret), ("text", "hello")], "limit-of-the-test"
    )


def json_field(name: str, secret: str) -> Encoded:
    return as_json({"n": 1, name: secret})


def indented_json_field(name: str, secret: str) -> Encoded:
    return as_utf8_json({"n": 1, name: [secret]})


def json_in_json(name: str, secret: str) -> Encoded:
    return as_json({"arguments": json.dumps({name: secret})})


def json_declared_as_a_form(name: str, secret: str) -> Encoded:
    return json.dumps({name: secret}).encode(), FORM


def form(name: str, secret: str) -> Encoded:
    return urlencode({"n": 1, name: secret, "m": 2}).encode(), FORM


def form_without_a_type(name: str, secret: str) -> Encoded:
    return urlencode({name: secret, "m": 2}).encode(), ""


def form_of_javascript(name: str, secret: str) -> Encoded:
    return f"{name}={in_javascript(secret)}&n=1".encode(), FORM


def form_with_an_escaped_name(name: str, secret: str) -> Encoded:
    escaped_name = with_every_byte_escaped(name)
    return f"n=1&{escaped_name}={with_every_byte_escaped(secret)}".encode(), FORM


def form_without_escapes(name: str, secret: str) -> Encoded:
    return f"n=1&{name}={secret.replace('&', ';')}&m=2".encode(), FORM


def json_in_a_form(name: str, secret: str) -> Encoded:
    return urlencode({"payload": json.dumps({name: secret})}).encode(), FORM


def multipart_field(name: str, secret: str) -> Encoded:
    return as_multipart(name, secret)


def multipart_field_without_a_type(name: str, secret: str) -> Encoded:
    return as_multipart(name, secret)[0], ""


def json_in_a_multipart_field(name: str, secret: str) -> Encoded:
    return as_multipart("payload", json.dumps({name: secret}))


def query_in_json(name: str, secret: str) -> Encoded:
    query = urlencode({name: secret})
    return as_json({"content": f"see https://host/path?n=1&{query}#top, please"})


def query_in_escaped_json(name: str, secret: str) -> Encoded:
    text = json.dumps({"content": f"see https://host/?{name}={in_javascript(secret)}"})
    escaped = text.replace("/", "\\/").replace("?", "\\u003f")
    return escaped.encode(), "application/json"


def query_in_a_query(name: str, secret: str) -> Encoded:
    return urlencode({"next": f"https://host/?{urlencode({name: secret})}"}).encode(), FORM


def url_password_in_json(name: str, secret: str) -> Encoded:
    return as_json({"url": f"https://{name}:{quote(secret, safe='')}@host:8000/path"})


def url_password_in_text(name: str, secret: str) -> Encoded:
    text = f'clone "https://me:{in_javascript(secret)}@host"\n'
    return as_utf8_json({"messages": [{"content": text}]})


def url_password_in_a_form(name: str, secret: str) -> Encoded:
    return urlencode({"url": f"https://me:{quote(secret, safe='')}@host/"}).encode(), FORM


def url_password_in_a_multipart_field(name: str, secret: str) -> Encoded:
    return as_multipart("url", f"redis://:{quote(secret, safe='')}@host")


ENCODERS: list[Callable[[str, str], Encoded]] = [
    json_field,
    indented_json_field,
    json_in_json,
    json_declared_as_a_form,
    form,
    form_without_a_type,
    form_of_javascript,
    form_with_an_escaped_name,
    form_without_escapes,
    json_in_a_form,
    multipart_field,
    multipart_field_without_a_type,
    json_in_a_multipart_field,
    query_in_json,
    query_in_escaped_json,
    query_in_a_query,
    url_password_in_json,
    url_password_in_text,
    url_password_in_a_form,
    url_password_in_a_multipart_field,
]


@pytest.mark.parametrize("encode", ENCODERS)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.text(st.characters(exclude_categories=["Cs"])))
def test_secrets_are_masked_in_every_encoding(
    encode: Callable[[str, str], Encoded], name: str, middle: str
) -> None:
    """The secret starts and ends with letters. Only `with_every_byte_escaped` changes them."""
    body, content_type = encode(name, f"zqzqzq{middle}qxqxqx")
    headers = {"content-type": content_type} if content_type else {}
    journal = Journal(10)
    context = request(CHAT, "POST", headers=headers, body=body)
    journal.begin(context)
    journal.end(context, Response())
    [row] = journal.rows(None, "", None)
    shown = bytes(row).decode().lower()
    assert "zqzq" not in shown and "qxqx" not in shown
    assert with_every_byte_escaped("zq") not in shown and with_every_byte_escaped("qx") not in shown


def test_disabled_journal_error_names_the_flag_that_enables_it() -> None:
    answer: Any = client_of().get("/admin/journal").json
    assert "--journal 1000" in answer["error"]["message"] and not Journal(0).active


def test_non_json_body_is_stored_as_a_string_or_null() -> None:
    assert (
        masked_json(b'{"token": "s", "a": [1e400]')
        == b'"{\\"token\\": \\"***\\", \\"a\\": [1e400]"'
    )
    assert masked_json(b"\xff") == masked_json(b"") == masked_json(b"\0\1") == b"null"
    assert masked_json(b"[" * 5000).startswith(b'"[[[')
    assert masked_json('{"a": "ö", "b": 123456789012345678901234567890}'.encode()).startswith(
        b'{"a":"\xc3'
    )
