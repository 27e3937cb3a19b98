"""Web pages of other origins: allowed as vLLM's framework allows them, and by default not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from app.serving.middleware.access import METHODS, PREFLIGHT_VARY
from tests.hostile.raw_client import ask
from tests.middleware.test_cors import PAGE, allowed_origin
from tests.running_server import RunningServer, running_server

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    """A server for pages of one origin, with a key and a limit that refuse."""
    with running_server(f"--allowed-origins={PAGE}", "--api-key=key", "--requests-per-minute=1000") as server:
        yield server


def post(server: RunningServer, key: str = "key", **asked: object) -> requests.Response:
    headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
    return requests.post(server.url + COMPLETIONS, json=ask(**asked), headers=headers, timeout=20)


def test_answers_streams_and_errors_are_for_the_page_but_not_the_want_of_a_key(
    open_server: RunningServer,
) -> None:
    for status, key, asked in (
        (200, "key", {}),
        (200, "key", {"stream": True}),
        (400, "key", {"n": 0}),
        (404, "key", {"model": "nope"}),
        (401, "wrong", {}),
    ):
        got = post(open_server, key, **asked)
        known = got.status_code != 401
        told = got.status_code, got.headers.get("Access-Control-Allow-Origin"), got.headers.get("Vary")
        assert told == (status, *((PAGE, "Origin") if known else (None, None)))
    preflight = {
        **{"Origin": PAGE, "Access-Control-Request-Method": "POST"},
        "Access-Control-Request-Headers": "authorization, x-one",
    }
    got = requests.options(open_server.url + COMPLETIONS, headers=preflight, timeout=20)
    assert (got.status_code, got.text) == (200, "OK"), "a preflight needs no key"
    assert got.headers["Access-Control-Allow-Origin"] == PAGE
    assert got.headers["Access-Control-Allow-Headers"] == "authorization, x-one"
    assert "POST" in got.headers["Access-Control-Allow-Methods"]
    assert got.headers["Access-Control-Max-Age"] == "600"


def test_by_default_no_page_is_let_in(server: RunningServer) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    preflight = requests.options(server.url + COMPLETIONS, headers=asked, timeout=20)
    assert (preflight.status_code, preflight.text) == (400, "Disallowed CORS origin")
    assert preflight.headers["Access-Control-Allow-Methods"] == ", ".join(METHODS)
    assert preflight.headers["Vary"] == PREFLIGHT_VARY
    for got in (preflight, post(server), post(server, stream=True)):
        assert allowed_origin(got) is None and "Origin" in got.headers["Vary"]
