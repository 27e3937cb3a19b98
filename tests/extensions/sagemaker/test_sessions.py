"""Sessions of SageMaker: opened and closed by a body, named by a header."""

import re
from collections.abc import Iterator

import pytest

from app.core.api.identity import Identity
from app.core.protocol.decoding import read_json
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.response import Response
from app.extensions.sagemaker import body as shared_body
from app.extensions.sagemaker.sessions import MAX_SESSIONS, Sessions
from tests.application import request
from tests.client import Client, in_process

FLAGS = ("--sagemaker-enable-stateful-sessions", "--sagemaker-sessions-expiration", "60")
OPEN = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}
PROMPT = {"prompt": "Hello", "max_tokens": 2}
SESSION = "X-Amzn-SageMaker-Session-Id"
NEW = "X-Amzn-SageMaker-New-Session-Id"
CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"


@pytest.fixture(name="client")
def _client() -> Iterator[Client]:
    with in_process(*FLAGS) as client:
        yield client


def opened(client: Client) -> str:
    answer = client.post("/invocations", OPEN)
    assert answer.status_code == 200
    match = re.fullmatch(
        r"([0-9a-f-]{36}); Expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer.headers[NEW]
    )
    assert match is not None
    return match[1]


def test_session_lasts_until_it_is_closed(client: Client) -> None:
    session = opened(client)
    headers = {SESSION: session}
    assert client.post("/invocations", PROMPT, headers=headers).json()["choices"]
    closed = client.post("/invocations", CLOSE, headers=headers)
    assert (closed.status_code, closed.headers[CLOSED]) == (200, session)
    unknown = client.post("/invocations", PROMPT, headers=headers)
    assert unknown.status_code == 400
    assert "session not found" in unknown.json()["error"]["message"]


def test_invalid_session_requests_are_rejected(client: Client) -> None:
    headers = {SESSION: opened(client)}
    for body, sent, status, words in (
        ({**OPEN, "extra": 1}, {}, 400, "extra"),
        ({**CLOSE, "extra": 1}, headers, 400, "extra"),
        ({"requestType": "RENEW"}, headers, 400, "RENEW"),
        (CLOSE, {SESSION: "unknown"}, 400, "session not found"),
        (CLOSE, {}, 424, "invalid session_id"),
    ):
        answer = client.post("/invocations", body, headers=sent)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, status, None)
        assert words in error["message"]
    assert client.post("/invocations", CLOSE, headers=headers).status_code == 200


def test_requests_without_a_session_are_served(client: Client) -> None:
    assert client.post("/invocations", PROMPT).status_code == 200
    assert client.post("/v1/completions", PROMPT, headers={SESSION: "any"}).status_code == 200
    assert client.post("/invocations", []).status_code == 400


def test_sessions_are_disabled_by_default() -> None:
    with in_process() as client:
        answer = client.post("/invocations", OPEN)
        error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "Bad Request")
    assert "stateful sessions not enabled" in error["message"]


class Ids(Identity):
    """Ids in order, at a time that the test sets."""

    def __init__(self) -> None:
        self.number = 0
        self.time_s = 1000

    def now_s(self) -> int:
        return self.time_s

    def fresh_id(self) -> str:
        self.number += 1
        return f"{self.number:016x}"


def invoke(sessions: Sessions, body: bytes, session: str | None = None) -> Response | None:
    headers = {} if session is None else {SESSION.lower(): session}
    context = request("/invocations", "POST", headers, body=body)
    return sessions.begin(context)


def test_duration_and_number_of_sessions_are_limited() -> None:
    ids = Ids()
    sessions = Sessions(BodyLimits(1000, 1.0), ids, 60)
    body = b'{"requestType":"NEW_SESSION"}'
    first = invoke(sessions, body)
    assert first is not None
    session = first.headers[NEW].partition(";")[0]
    ids.time_s += 60
    assert invoke(sessions, b"{}", session) is None
    ids.time_s += 1
    assert invoke(sessions, b"{}", session) is None
    rejected = invoke(sessions, b"{}", session)
    assert rejected is not None and rejected.status == 400
    for _ in range(MAX_SESSIONS + 5):
        assert invoke(sessions, body) is not None
    assert 0 < sessions.size_bytes == sessions.limit_bytes


def test_invocation_body_is_parsed_only_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def counted(content: bytes) -> object:
        parsed.append(content)
        return read_json(content)

    monkeypatch.setattr(shared_body, "read_json", counted)
    session = opened(client)
    assert len(parsed) == 1
    for headers in ({}, {SESSION: session}):
        parsed.clear()
        assert client.post("/invocations", PROMPT, headers=headers).status_code == 200
        assert len(parsed) == 1


def test_parsed_invocation_body_is_released_after_one_use() -> None:
    context = request("/invocations", "POST", {}, body=b'{"prompt": "x"}')
    limits = BodyLimits(1000, 1.0)
    values = shared_body.parse_body(context, limits)
    assert shared_body.take_body(context, limits) is values
    kept = context.kept(shared_body.ParsedBody)
    assert kept is not None and kept.values is None
