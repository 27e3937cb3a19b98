"""Web pages of other origins: allowed as vLLM's framework allows them, and by default not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from app.serving.middleware.cors import METHODS, PREFLIGHT_VARY
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


@pytest.mark.parametrize(
    ("status", "key", "asked"),
    [
        (200, "key", {}),
        (200, "key", {"stream": True}),
        (400, "key", {"n": 0}),
        (404, "key", {"model": "nope"}),
        (401, "wrong", {}),
    ],
)
def test_answers_streams_and_errors_are_for_the_page_but_not_the_want_of_a_key(
    open_server: RunningServer, status: int, key: str, asked: dict[str, object]
) -> None:
    got = post(open_server, key, **asked)
    assert got.status_code == status
    known = status != 401
    assert got.headers.get("Access-Control-Allow-Origin") == (PAGE if known else None)
    assert got.headers.get("Vary") == ("Origin" if known else None)


def test_a_preflight_needs_no_key(open_server: RunningServer) -> None:
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-one",
    }
    got = requests.options(open_server.url + COMPLETIONS, headers={"Origin": PAGE, **asked}, timeout=20)
    assert (got.status_code, got.text) == (200, "OK")
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
