"""Routes behind Flask: one blueprint a family, found by rule, by path and by method."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from flask import Flask, url_for
from flask import Response as FlaskResponse

from app.http.context import RequestContext
from app.http.response import PendingResponse, Response, json_response
from app.http.route import Route, get, post
from app.web.application import FLASK
from app.web.flask_application import ExactRule, FlaskApplication, RouteTable, label_of
from tests.application import application


def told(context: RequestContext) -> Response:
    """What the request is, as far as routing knows."""
    assert context.route is not None
    return json_response([context.method, context.route.path, context.params])


BOTH = Route(methods=("GET", "DELETE"), path="/both", handle=told)
ROUTES = [
    get("/things", told),
    post("/things", told),
    get("/things/{name}", told),
    post("/things/{name}/parts/{part}", told),
    BOTH,
]


def test_a_route_is_called_with_its_request() -> None:
    client = application(ROUTES).test_client()
    for method, path, expected in (
        ("GET", "/things", ["/things", {}]),
        ("POST", "/things", ["/things", {}]),
        ("GET", "/things/a%2Cb", ["/things/{name}", {"name": "a,b"}]),
        ("POST", "/things/a/parts/1", ["/things/{name}/parts/{part}", {"name": "a", "part": "1"}]),
        ("GET", "/both", ["/both", {}]),
        ("DELETE", "/both", ["/both", {}]),
    ):
        assert client.open(path, method=method).json == [method, *expected]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/things", "GET, POST"),
        ("HEAD", "/things", "GET, POST"),
        ("OPTIONS", "/things/a", "GET"),
        ("POST", "/both", "DELETE, GET"),
    ],
)
def test_another_method_is_told_which_there_are(method: str, path: str, allowed: str) -> None:
    answer = application(ROUTES).test_client().open(path, method=method)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.headers["Content-Length"] == "31"
    assert answer.data == (b"" if method == "HEAD" else b'{"detail":"Method Not Allowed"}')


def test_a_table_has_all_routes_of_all_blueprints_in_their_order() -> None:
    app = application(ROUTES[:2])
    app.add_routes("more", ROUTES[2:])
    assert list(app.routes) == list(app.flask.routes) == ROUTES
    assert set(app.flask.blueprints) == {"test", "more"}
    with pytest.raises(RuntimeError, match="late"):
        app.add_routes("too late", ())


def test_a_table_finds_the_route_behind_a_rule() -> None:
    app = application(ROUTES).flask
    found = {
        (rule.rule, method): app.routes.of(rule)
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }
    assert found[("/things", "GET")] is ROUTES[0] and found[("/things", "POST")] is ROUTES[1]
    assert found[("/things/<name>", "GET")] is ROUTES[2]
    assert found[("/both", "GET")] is found[("/both", "DELETE")] is BOTH
    assert len(found) == len(ROUTES) + 1, "no method but those that are named"


def test_two_families_may_have_routes_of_the_same_function() -> None:
    table = RouteTable()
    blueprints = [table.blueprint(name, [get(f"/{name}", told)]) for name in ("one", "two")]
    assert [blueprint.name for blueprint in blueprints] == ["one", "two"]
    assert [route.path for route in table] == ["/one", "/two"]


def test_a_route_has_what_it_was_made_with() -> None:
    def on_error(error: Exception) -> Response:
        return Response(status=500)

    def plain(context: RequestContext, body: bytes) -> Response | PendingResponse | None:
        return None

    route = post("/a", told, on_error, plain)
    assert (route.methods, route.path, route.handle) == (("POST",), "/a", told)
    assert (route.on_error, route.plain) == (on_error, plain)
    assert (get("/a", told).on_error, get("/a", told).plain) == (None, None)
    with pytest.raises(AttributeError):
        route.path = "/b"  # type: ignore[misc]


# Of whoever embeds the application


@pytest.fixture
def embedded() -> FlaskApplication:
    """Routes of ours, and views as Flask has them."""
    app = application(ROUTES).flask

    @app.get("/text")
    def text() -> str:
        return "ünïcode"

    @app.get("/tuple")
    def several() -> tuple[dict[str, int], int, dict[str, str]]:
        return {"a": 1}, 418, {"X-Pot": "tea"}

    @app.get("/own")
    def own() -> FlaskResponse:
        return FlaskResponse("own", 202, {"X-Own": "1"})

    @app.get("/converted/<path:rest>")
    def converted(rest: str) -> str:
        return rest

    return app


@pytest.mark.parametrize(
    ("path", "status", "body", "header"),
    [
        ("/text", 200, "ünïcode".encode(), ("Content-Type", "text/html; charset=utf-8")),
        ("/tuple", 418, b'{"a":1}\n', ("X-Pot", "tea")),
        ("/converted/a/b", 200, b"a/b", ("Content-Length", "3")),
        ("/own", 202, b"own", ("X-Own", "1")),
    ],
)
def test_views_may_return_what_flask_allows(
    embedded: FlaskApplication, path: str, status: int, body: bytes, header: tuple[str, str]
) -> None:
    answer = embedded.test_client().get(path)
    assert (answer.status_code, answer.data) == (status, body)
    assert header in list(answer.headers) and answer.headers["Content-Length"] == str(len(body))


def test_views_are_no_routes_of_ours_and_have_a_label(embedded: FlaskApplication) -> None:
    rules = {label_of(rule): embedded.routes.of(rule) for rule in embedded.url_map.iter_rules()}
    assert rules["/converted/{rest}"] is None and rules["/things/{name}"] is ROUTES[2]


def test_a_view_that_streams_is_closed_at_the_end(embedded: FlaskApplication) -> None:
    closed: list[str] = []

    @embedded.get("/stream")
    def stream() -> FlaskResponse:
        def body() -> Iterator[str]:
            yield from ("ü", "b")

        response = FlaskResponse(body())
        response.call_on_close(lambda: closed.append("closed"))
        return response

    answer = embedded.test_client().get("/stream")
    assert answer.data == "üb".encode() and "Content-Length" not in answer.headers
    answer.close()
    assert closed == ["closed"]


def test_the_url_of_a_route_can_still_be_made() -> None:
    app = Flask("embedding")
    app.url_rule_class = ExactRule
    app.add_url_rule("/v1/things/<name>", "thing", lambda name: name)
    with app.test_request_context():
        assert url_for("thing", name="a b", more="yes") == "/v1/things/a%20b?more=yes"


def test_requests_that_come_while_flask_is_loaded_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def slow(name: str, *args: Any, **named: Any) -> Any:
        if name == FLASK:
            gevent.sleep(0)
        return imports(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", slow)
    app = application(ROUTES)
    asked = [gevent.spawn(lambda: app.flask) for _ in range(5)]
    gevent.joinall(asked, raise_error=True)
    assert {id(one.value) for one in asked} == {id(app.flask)}
