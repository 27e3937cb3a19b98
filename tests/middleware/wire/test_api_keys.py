"""Who may ask: API keys as vLLM asks for them, and a key of its own for /admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from app.serving.http.response import json_response
from app.serving.http.route import get as route
from app.serving.middleware.access import ApiKeys
from config.live import LiveSettings
from config.settings import AccessSettings, Settings
from tests.application import application, request
from tests.hostile.raw_client import Whole, Wire, get
from tests.running_server import RunningServer, running_server

FIRST, SECOND, ADMIN = "key-of-the-first", "key-of-the-second", "key-of-the-admin"
UNAUTHORIZED = b'{"error":"Unauthorized"}'


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    """A server with two API keys, an admin key, and everything that logs switched on."""
    flags = ("--log-http", "--access-log", "--log-level=debug", f"--admin-key={ADMIN}")
    with running_server(*flags, f"--api-key={FIRST}", env={"VLLM_API_KEY": "not asked: flags win"}) as server:
        change(server, {"api-key": [FIRST, SECOND]})
        yield server


def change(server: RunningServer, values: dict[str, Any], key: str = ADMIN) -> None:
    requests.post(
        f"{server.url}/admin/config", json=values, headers={"X-Admin-Key": key}, timeout=20
    ).raise_for_status()


def status(server: RunningServer, path: str, method: str = "GET", **headers: str) -> int:
    return requests.request(method, server.url + path, headers=headers, timeout=20).status_code


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def is_unauthorized(answer: Whole) -> bool:
    told = (answer.status, answer.headers["content-type"], answer.body)
    return told == (401, "application/json", UNAUTHORIZED)


GUARDED = ("/v1/models", "/v1/nope", "/v2/rerank", "/inference/v1/generate", "/cohere/v2/chat", "/v1")


def test_guarded_paths_need_a_key_and_others_are_open(guarded: RunningServer) -> None:
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
def test_nothing_else_opens(guarded: RunningServer, header: str) -> None:
    with Wire(guarded.port) as wire:
        request = f"GET /v1/models HTTP/1.1\r\nHost: test\r\n{header}\r\n\r\n"
        assert is_unauthorized(wire.send(request.encode("latin-1")).answer())


def test_the_admin_key_alone_opens_admin(guarded: RunningServer) -> None:
    for header in ({"X-Admin-Key": ADMIN}, bearing(ADMIN)):
        assert status(guarded, "/admin/config", **header) == 200
    for header in ({}, {"X-Admin-Key": FIRST}, bearing(FIRST), {"X-Api-Key": ADMIN}):
        assert status(guarded, "/admin/config", **header) == 401
        assert status(guarded, "/admin/config", "POST", **header) == 401


def test_no_key_is_ever_told(guarded: RunningServer) -> None:
    for key in (FIRST, SECOND, ADMIN):
        headers = {**bearing(key), "X-Api-Key": key, "X-Admin-Key": key}
        requests.get(f"{guarded.url}/v1/models?api_key={key}", headers=headers, timeout=20)
    change(guarded, {"api-key": [FIRST, SECOND]})
    wrong = {"api-key": [FIRST, ""], "admin-key": [ADMIN]}
    admin = {"X-Admin-Key": ADMIN}
    refused = requests.post(f"{guarded.url}/admin/config", json=wrong, headers=admin, timeout=20)
    dump = requests.get(f"{guarded.url}/admin/config", headers=admin, timeout=20)
    assert refused.status_code == 400
    told = guarded.log() + refused.text + dump.text
    assert dump.json()["api-key"] == dump.json()["admin-key"] == "***"
    assert not any(key in told for key in (FIRST, SECOND, ADMIN))


def test_vllms_own_variable_sets_a_key() -> None:
    with running_server(env={"VLLM_API_KEY": FIRST}) as server:
        assert status(server, "/v1/models") == 401
        assert status(server, "/v1/models", **bearing(FIRST)) == 200


def client_of(live: LiveSettings) -> FlaskClient:
    paths = ("/v1/models", "/admin/config", "/health")
    routes = [route(path, lambda context: json_response({})) for path in paths]
    return application(routes, ApiKeys(), live=live).test_client()


@pytest.mark.parametrize(
    ("api_key", "admin_key", "opening"),
    [
        ((), None, {"none", "api", "admin"}),
        (("api",), None, {"api"}),
        ((), "admin", {"admin"}),
        (("api",), "admin", {"admin"}),
    ],
)
def test_admin_asks_for_its_own_key_or_else_for_an_api_key(
    api_key: tuple[str, ...], admin_key: str | None, opening: set[str]
) -> None:
    access = AccessSettings(api_key=api_key, admin_key=admin_key)
    client = client_of(LiveSettings(Settings(access=access)))
    asked = {key: client.get("/admin/config", headers=bearing(key)) for key in ("none", "api", "admin")}
    assert {key for key, answer in asked.items() if answer.status_code == 200} == opening
    assert client.get("/health").status_code == 200


@given(st.text(min_size=1), st.lists(st.text(min_size=1), max_size=3))
def test_a_key_opens_exactly_when_it_is_one_of_them(key: str, keys: list[str]) -> None:
    guard = ApiKeys()
    guard.on_settings(Settings(access=AccessSettings(api_key=tuple(keys))))
    header = f"Bearer {key}".encode(errors="surrogateescape").decode("latin-1")
    asked = request("/v1/models", headers={"authorization": header})
    assert guard.active == bool(keys)
    assert (guard.begin(asked) is None) == (not keys or key in keys)
