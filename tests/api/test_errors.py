"""Errors leave in vLLM's form, whatever raised them; what is nobody's business stays inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.api.errors import init_errors
from app.http.errors import ApiError, too_many
from app.http.response import Reply, json_reply
from app.tokenization.base import TokenizerInputError, TokenizerServiceError
from app.web.routing import ExactRule


class House(Flask):
    response_class = Reply
    url_rule_class = ExactRule


RAISED: dict[str, Exception] = {
    "known": ApiError(404, "NotFoundError", "no such thing", "model"),
    "busy": too_many("later", retry_after_s=3),
    "text": TokenizerInputError("token id 99 is not in the vocabulary"),
    "service": TokenizerServiceError("the render service does not answer"),
    "bug": KeyError("secret detail"),
}


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    app = House("house", static_folder=None)
    init_errors(app)

    @app.post("/raise/<name>")
    def raise_named(name: str) -> Reply:
        raise RAISED[name]

    @app.get("/v1/things")
    def things() -> Reply:
        return json_reply({"ok": True})

    with app.test_client() as client:
        yield client


@pytest.mark.parametrize(
    ("name", "status", "kind", "param"),
    [
        ("known", 404, "NotFoundError", "model"),
        ("busy", 429, "RateLimitError", None),
        ("text", 400, "BadRequestError", None),
        ("service", 500, "InternalServerError", None),
        ("bug", 500, "InternalServerError", None),
    ],
)
def test_every_error_has_the_same_four_fields(
    client: FlaskClient, name: str, status: int, kind: str, param: str | None
) -> None:
    answer = client.post(f"/raise/{name}")
    assert (answer.status_code, answer.content_type) == (status, "application/json")
    error = answer.get_json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)


def test_a_bug_is_logged_and_not_told(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    assert b"secret" not in client.post("/raise/bug").data
    assert "secret detail" in caplog.text


def test_headers_of_an_error_are_sent(client: FlaskClient) -> None:
    assert client.post("/raise/busy").headers["Retry-After"] == "3"


def test_what_routing_refuses_has_the_framework_s_body(client: FlaskClient) -> None:
    missing, wrong = client.get("/nothing"), client.post("/v1/things")
    assert (missing.status_code, missing.get_json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.get_json()) == (405, {"detail": "Method Not Allowed"})
    assert wrong.headers["Allow"] == "GET"


def test_head_and_options_are_methods_like_any_other(client: FlaskClient) -> None:
    assert client.head("/v1/things").status_code == client.options("/v1/things").status_code == 405


@pytest.mark.parametrize("path", ["/v1/things/", "/v1/things//"])
def test_a_slash_too_many_is_redirected(client: FlaskClient, path: str) -> None:
    answer = client.get(path + "?a=%20b")
    assert answer.status_code == 307
    assert answer.headers["Location"] == "http://localhost/v1/things?a=%20b"


def test_a_redirect_leads_only_where_there_is_something(client: FlaskClient) -> None:
    assert client.get("/nothing/").status_code == 404
    assert client.get("//evil.example/").status_code == 404
