"""Web pages of other origins: allowed as vLLM's framework allows them, and by default not at all."""

from __future__ import annotations

import pytest
import requests
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.serving.http.response import json_response
from app.serving.http.route import post as route
from app.serving.middleware.access import PREFLIGHT_VARY, Cors
from config.settings import AccessSettings
from tests.application import application

PAGE, OTHER = "https://page.example", "https://other.example"


def client(**access: object) -> FlaskClient:
    cors = Cors(AccessSettings(**access))  # type: ignore[arg-type]
    return application([route("/thing", lambda context: json_response({}))], cors).test_client()


def preflight(
    client: FlaskClient,
    origin: str = PAGE,
    method: str = "POST",
    headers: str | None = None,
    network: str | None = None,
) -> TestResponse:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    if network is not None:
        asked["Access-Control-Request-Private-Network"] = network
    if headers is not None:
        asked["Access-Control-Request-Headers"] = headers
    return client.options("/thing", headers=asked)


def allowed_origin(answer: TestResponse | requests.Response) -> str | None:
    return answer.headers.get("Access-Control-Allow-Origin")


def test_any_origin_is_answered_with_a_star_or_with_credentials_by_its_name() -> None:
    for credentials, told in ((False, "*"), (True, OTHER)):
        page = client(allowed_origins=("*",), allow_credentials=credentials)
        for answer in (preflight(page, OTHER), page.post("/thing", headers={"Origin": OTHER})):
            assert (answer.status_code, allowed_origin(answer)) == (200, told)
            given = answer.headers.get("Access-Control-Allow-Credentials")
            assert given == ("true" if credentials else None)
            assert credentials or "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"method": "POST"}, ""),
        ({"method": "DELETE"}, "method"),
        ({"method": "OS"}, "method"),
        ({"headers": "Authorization, content-type"}, ""),
        ({"headers": "authorization, x-other"}, "headers"),
        ({"headers": ""}, "headers"),
        ({"network": "true"}, "private-network"),
        ({"origin": OTHER, "method": "PUT", "headers": "x-other"}, "origin, method, headers"),
    ],
)
def test_a_preflight_says_what_is_not_allowed(asked: dict[str, str], refused: str) -> None:
    page = client(
        allowed_origins=(PAGE,), allowed_methods=("POST", "GET"), allowed_headers=("authorization",)
    )
    answer = preflight(page, **asked)
    assert answer.status_code == (400 if refused else 200)
    assert answer.text == (f"Disallowed CORS {refused}" if refused else "OK")
    assert answer.headers["Access-Control-Allow-Headers"].startswith("Accept, ")
    assert answer.headers["Access-Control-Allow-Methods"] == "POST, GET"
    assert answer.headers["Vary"] == PREFLIGHT_VARY


def test_an_origin_is_no_pattern_and_options_without_a_question_no_preflight() -> None:
    for origin in ("http://[::1]:3000", "https://*.example", "https://a.b"):
        page = client(allowed_origins=(origin,))
        assert allowed_origin(preflight(page, origin)) == origin
        for other in (origin + ".evil", "https://x.example", "https://aXb", "x" + origin):
            assert allowed_origin(preflight(page, other)) is None
            assert allowed_origin(page.post("/thing", headers={"Origin": other})) is None
    for headers in ({}, {"Origin": PAGE}, {"Access-Control-Request-Method": "POST"}):
        assert client(allowed_origins=(PAGE,)).options("/thing", headers=headers).status_code == 405
