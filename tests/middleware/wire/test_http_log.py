"""`log-http`: one line of JSON for each exchange, without secrets, and nothing while it is off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from app.serving.middleware.http_log import MOST_BYTES
from tests.hostile.raw_client import Wire, ask, http_post
from tests.middleware.test_http_log import NAME
from tests.running_server import RunningServer, running_server

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def logging_server() -> Iterator[RunningServer]:
    with running_server("--log-http", "--log-format=json", "--enable-request-id-headers") as server:
        yield server


def lines(server: RunningServer) -> list[dict[str, Any]]:
    """What has been logged of exchanges, with the id of each request, but for those of the start."""
    found = [json.loads(line) for line in server.log().splitlines()]
    told = [
        {**json.loads(line["message"]), "id": line["request_id"]} for line in found if line["logger"] == NAME
    ]
    return [line for line in told if line["path"] != "/health"]


def test_a_whole_answer_is_logged_with_its_request(logging_server: RunningServer) -> None:
    body = ask(user="Zoë", api_key="hidden")
    headers = {"Authorization": "Bearer hidden", "X-Request-Id": "mine", "X-Other": "seen"}
    got = requests.post(
        f"{logging_server.url}{COMPLETIONS}?key=hidden&b=1", json=body, headers=headers, timeout=20
    )
    line = lines(logging_server)[-1]
    assert (line["method"], line["path"], line["status"]) == ("POST", f"{COMPLETIONS}?key=***&b=1", 200)
    assert (line["client"], line["id"]) == ("127.0.0.1", "mine")
    assert (line["headers"]["Authorization"], line["headers"]["X-Other"]) == ("***", "seen")
    assert json.loads(line["body"]) == {**body, "api_key": "***"}
    assert json.loads(line["response"]) == got.json()
    assert line["response_headers"]["X-Request-Id"] == "mine"
    assert "hidden" not in logging_server.log()


def test_what_is_refused_is_logged_as_it_came(logging_server: RunningServer) -> None:
    for body, logged in (
        (b"{not json", "{not json"),
        (b'"\xff\xfe"', '"\ufffd\ufffd"'),
        (b'{"prompt":"a\nb\x00","password":"x"}', '{"prompt":"a\nb\x00","password":"***"}'),
        (b"", ""),
    ):
        with Wire(logging_server.port) as wire:
            answer = wire.send(http_post(COMPLETIONS, body)).answer()
        line = lines(logging_server)[-1]
        assert (line["status"], line["body"]) == (400, logged)
        assert json.loads(line["response"]) == answer.json()
    for method, path, status in (("GET", "/nope", 404), ("DELETE", COMPLETIONS, 405), ("HEAD", "/nope", 404)):
        requests.request(method, logging_server.url + path, timeout=20)
        line = lines(logging_server)[-1]
        assert (line["method"], line["path"], line["status"], line["body"]) == (method, path, status, "")


def test_a_long_body_is_cut(logging_server: RunningServer) -> None:
    body = b'{"prompt": "' + b"x" * (MOST_BYTES + 1000) + b'"}'
    with Wire(logging_server.port) as wire:
        wire.send(http_post(COMPLETIONS, body)).answer()
    logged = lines(logging_server)[-1]["body"]
    assert logged.endswith(f"xxx... ({len(body)} bytes)")
    assert len(logged) < MOST_BYTES + 50
