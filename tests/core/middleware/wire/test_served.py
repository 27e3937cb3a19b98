"""Keys, logs, limits and CORS on a real server, on the fast path and under Flask."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from app.core.server.middleware.cors import METHODS, PREFLIGHT_VARY
from app.core.server.middleware.http_log import MAX_BODY_BYTES
from tests.core.middleware.test_access import PAGE, allowed_origin
from tests.core.middleware.test_http_log import NAME
from tests.hostile.raw_client import Whole, Wire, ask, get, http_post
from tests.running_server import RunningServer, running_server

FIRST = "key-of-the-first"
SECOND = "key-of-the-second"
ADMIN = "key-of-the-admin"
UNAUTHORIZED = b'{"error":"Unauthorized"}'
COMPLETIONS = "/v1/completions"
GUARDED = (
    "/v1/models",
    "/v1/nope",
    "/v2/rerank",
    "/inference/v1/generate",
    "/cohere/v2/chat",
    "/v1",
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    """A server with two API keys, an admin key, pages of one origin, and everything that logs
    switched on.
    """
    logs = ("--log-http", "--access-log", "--log-level=debug", "--log-format=json")
    keys = (f"--admin-key={ADMIN}", f"--api-key={FIRST}", f"--allowed-origins={PAGE}")
    env = {"VLLM_API_KEY": "not asked: flags win"}
    with running_server(*logs, *keys, "--enable-request-id-headers", env=env) as server:
        change(server, {"api-key": [FIRST, SECOND]})
        yield server


def change(server: RunningServer, values: dict[str, Any]) -> None:
    headers = {"X-Admin-Key": ADMIN}
    requests.post(
        f"{server.url}/admin/config", json=values, headers=headers, timeout=20
    ).raise_for_status()


def status(server: RunningServer, path: str, method: str = "GET", **headers: str) -> int:
    return requests.request(method, server.url + path, headers=headers, timeout=20).status_code


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def is_unauthorized(answer: Whole) -> bool:
    answer_parts = (answer.status, answer.headers["content-type"], answer.body)
    return answer_parts == (401, "application/json", UNAUTHORIZED)


def test_only_model_api_paths_require_the_api_key(guarded: RunningServer) -> None:
    for path in GUARDED:
        assert is_unauthorized(get(guarded.port, path))
        assert status(guarded, path, **bearing(FIRST)) != 401
    for path in ("/health", "/metrics", "/version", "/ping", "/load", "/nope"):
        assert status(guarded, path) in (200, 404)
    for path in ("/%761/models", "/v1%2Fmodels", "//v1/models", "/./v1/models", "/V1/models"):
        assert get(guarded.port, path).status in (401, 404), "no way around the key"
    for scheme in ("Bearer", "bearer", "BEARER"):
        for key in (FIRST, SECOND):
            assert status(guarded, "/v1/models", Authorization=f"{scheme} {key}") == 200


@pytest.mark.parametrize(
    "header",
    [
        *("Authorization: Bearer", f"Authorization: {FIRST}", f"Authorization: Basic {FIRST}"),
        *(f"Authorization: Bearer  {FIRST}", f"Authorization: Bearer {FIRST}x"),
        *(f"Authorization: Bearer {FIRST[:-1]}", f"Authorization: Bearer {ADMIN}"),
        *(f"Authorization: Bearer {FIRST}, Bearer {SECOND}", "Authorization: Bearer é"),
        *(f"X-Api-Key: {FIRST}", f"X-Admin-Key: {FIRST}", f"Cookie: Authorization=Bearer {FIRST}"),
    ],
)
def test_malformed_and_wrong_authorization_headers_are_rejected(
    guarded: RunningServer, header: str
) -> None:
    with Wire(guarded.port) as wire:
        request = f"GET /v1/models HTTP/1.1\r\nHost: test\r\n{header}\r\n\r\n"
        assert is_unauthorized(wire.send(request.encode("latin-1")).answer())


def test_only_the_admin_key_opens_admin_routes(guarded: RunningServer) -> None:
    for header in ({"X-Admin-Key": ADMIN}, bearing(ADMIN)):
        assert status(guarded, "/admin/config", **header) == 200
    for header in ({}, {"X-Admin-Key": FIRST}, bearing(FIRST), {"X-Api-Key": ADMIN}):
        assert status(guarded, "/admin/config", **header) == 401
        assert status(guarded, "/admin/config", "POST", **header) == 401


def test_api_and_admin_keys_never_appear_in_responses_or_logs(guarded: RunningServer) -> None:
    for key in (FIRST, SECOND, ADMIN):
        headers = {**bearing(key), "X-Api-Key": key, "X-Admin-Key": key}
        requests.get(f"{guarded.url}/v1/models?api_key={key}", headers=headers, timeout=20)
    change(guarded, {"api-key": [FIRST, SECOND]})
    wrong = {"api-key": [FIRST, ""], "admin-key": [ADMIN]}
    admin = {"X-Admin-Key": ADMIN}
    refused = requests.post(f"{guarded.url}/admin/config", json=wrong, headers=admin, timeout=20)
    dump = requests.get(f"{guarded.url}/admin/config", headers=admin, timeout=20)
    assert refused.status_code == 400
    texts_to_search = guarded.log() + refused.text + dump.text
    assert dump.json()["api-key"] == dump.json()["admin-key"] == "***"
    assert not any(key in texts_to_search for key in (FIRST, SECOND, ADMIN))


def post(server: RunningServer, key: str = FIRST, **fields: object) -> requests.Response:
    headers = {"Origin": PAGE, **bearing(key)}
    return requests.post(server.url + COMPLETIONS, json=ask(**fields), headers=headers, timeout=20)


def test_all_responses_except_those_to_a_wrong_key_have_cors_headers(
    guarded: RunningServer,
) -> None:
    for expected, key, fields in (
        (200, FIRST, {}),
        (200, FIRST, {"stream": True}),
        (400, FIRST, {"n": 0}),
        (404, FIRST, {"model": "nope"}),
        (401, "wrong", {}),
    ):
        got = post(guarded, key, **fields)
        headers = (
            got.status_code,
            got.headers.get("Access-Control-Allow-Origin"),
            got.headers.get("Vary"),
        )
        assert headers == (expected, *((PAGE, "Origin") if expected != 401 else (None, None)))
    preflight = {
        **{"Origin": PAGE, "Access-Control-Request-Method": "POST"},
        "Access-Control-Request-Headers": "authorization, x-one",
    }
    got = requests.options(guarded.url + COMPLETIONS, headers=preflight, timeout=20)
    assert (got.status_code, got.text) == (200, "OK"), "a preflight needs no key"
    assert got.headers["Access-Control-Allow-Origin"] == PAGE
    assert got.headers["Access-Control-Allow-Headers"] == "authorization, x-one"
    assert "POST" in got.headers["Access-Control-Allow-Methods"]
    assert got.headers["Access-Control-Max-Age"] == "600"


def test_no_origin_is_allowed_by_default(server: RunningServer) -> None:
    preflight_headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    preflight = requests.options(server.url + COMPLETIONS, headers=preflight_headers, timeout=20)
    assert (preflight.status_code, preflight.text) == (400, "Disallowed CORS origin")
    assert preflight.headers["Access-Control-Allow-Methods"] == ", ".join(METHODS)
    assert preflight.headers["Vary"] == PREFLIGHT_VARY
    for got in (preflight, post(server), post(server, stream=True)):
        assert allowed_origin(got) is None and "Origin" in got.headers["Vary"]


def lines(server: RunningServer) -> list[dict[str, Any]]:
    """What has been logged of exchanges, with the id of each request, but for those of the start."""
    records = [json.loads(line) for line in server.log().splitlines()]
    requests_logged = [
        {**json.loads(line["message"]), "id": line["request_id"]}
        for line in records
        if line["logger"] == NAME
    ]
    return [line for line in requests_logged if line["path"] != "/health"]


def test_complete_response_is_logged_with_its_request(guarded: RunningServer) -> None:
    body = ask(user="Zoë", api_key="hidden")
    headers = {**bearing(FIRST), "X-Request-Id": "mine", "X-Other": "seen"}
    url = f"{guarded.url}{COMPLETIONS}?key=hidden&b=1"
    got = requests.post(url, json=body, headers=headers, timeout=20)
    line = lines(guarded)[-1]
    assert (line["method"], line["path"], line["status"]) == (
        "POST",
        f"{COMPLETIONS}?key=***&b=1",
        200,
    )
    assert (line["client"], line["id"]) == ("127.0.0.1", "mine")
    assert (line["headers"]["Authorization"], line["headers"]["X-Other"]) == ("***", "seen")
    assert json.loads(line["body"]) == {**body, "api_key": "***"}
    assert json.loads(line["response"]) == got.json()
    assert line["response_headers"]["X-Request-Id"] == "mine"
    assert "hidden" not in guarded.log()


def test_rejected_request_is_logged(guarded: RunningServer) -> None:
    for body, logged in (
        (b"{not json", "{not json"),
        (b'"\xff\xfe"', '"\ufffd\ufffd"'),
        (b'{"prompt":"a\nb\x00","password":"x"}', '{"prompt":"a\nb\x00","password":"***"}'),
        (b"", ""),
    ):
        with Wire(guarded.port) as wire:
            answer = wire.send(
                http_post(COMPLETIONS, body, f"Authorization: Bearer {FIRST}")
            ).answer()
        line = lines(guarded)[-1]
        assert (line["status"], line["body"]) == (400, logged)
        assert json.loads(line["response"]) == answer.json()
    for method, path, expected in (
        ("GET", "/no", 404),
        ("DELETE", COMPLETIONS, 405),
        ("HEAD", "/no", 404),
    ):
        assert status(guarded, path, method, **bearing(FIRST)) == expected
        line = lines(guarded)[-1]
        assert (line["method"], line["path"], line["status"], line["body"]) == (
            method,
            path,
            expected,
            "",
        )


def test_long_body_is_truncated_in_the_log(guarded: RunningServer) -> None:
    body = b'{"prompt": "' + b"x" * (MAX_BODY_BYTES + 1000) + b'"}'
    with Wire(guarded.port) as wire:
        wire.send(http_post(COMPLETIONS, body, f"Authorization: Bearer {FIRST}")).answer()
    logged = lines(guarded)[-1]["body"]
    assert logged.endswith(f"xxx... ({len(body)} bytes)")
    assert len(logged) < MAX_BODY_BYTES + 50
