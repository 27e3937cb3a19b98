"""Routes behind Flask: one blueprint a family, found by rule, by path and by method."""

from functools import partial
from itertools import islice

from flask import Response as FlaskResponse
from flask import session, url_for

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, get, post
from tests.application import app_of, application


def routed_request(context: RequestContext) -> Response:
    """What the request is, as far as routing knows."""
    assert context.route is not None
    return json_response([context.method, context.route.path, context.params])


BOTH = Route(methods=("GET", "DELETE"), path="/both", handle=routed_request)
ROUTES = [
    get("/things", routed_request),
    post("/things", routed_request),
    get("/things/{name}", routed_request),
    post("/things/{name}/parts/{part}", routed_request),
    BOTH,
]


def test_route_handler_receives_the_request_and_path_variables() -> None:
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


def test_wrong_method_returns_405_with_the_methods_of_the_first_route() -> None:
    client = application(ROUTES).test_client()
    for method, path, allowed in (
        ("PUT", "/things", "GET"),
        ("HEAD", "/things", "GET"),
        ("OPTIONS", "/things/a", "GET"),
        ("POST", "/both", "DELETE, GET"),
    ):
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
        assert answer.headers["Content-Length"] == "31"
        assert answer.data == (b"" if method == "HEAD" else b'{"detail":"Method Not Allowed"}')


def test_websocket_upgrade_is_rejected_on_every_route() -> None:
    client = app_of("--force-dummy-tokenizer", "--api-key", "key").test_client()
    for path, status, media_type in (
        ("/health", 403, "text/plain"),
        ("/none", 403, "text/plain"),
        ("/v1/responses", 401, "application/json"),
    ):
        answer = client.get(path, headers={"Upgrade": "WebSocket", "Connection": "Upgrade"})
        assert (answer.status_code, answer.mimetype) == (status, media_type)
    assert client.get("/health", headers={"Upgrade": "h2c"}).status_code == 200


def test_realtime_socket_is_rejected_at_the_handshake_as_by_models_without_speech() -> None:
    client = app_of("--force-dummy-tokenizer").test_client()
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    assert client.get("/v1/realtime?model=m", headers=headers).status_code == 403
    assert client.get("/v1/realtime").status_code == 404


def test_metrics_route_accepts_more_methods_than_the_ping_route() -> None:
    client = app_of("--force-dummy-tokenizer").test_client()
    for method, path, has_length in (
        ("GET", "/metrics", True),
        ("GET", "/metrics/more", False),
        ("HEAD", "/metrics", False),
        ("OPTIONS", "/metrics", False),
        ("TRACE", "/metrics", False),
        ("POST", "/metrics/more", False),
    ):
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.mimetype) == (200, "text/plain"), method
        assert ("Content-Length" in answer.headers) is has_length
        assert bool(answer.data) is (method != "HEAD")
    for method, status in (("GET", 200), ("POST", 200), ("DELETE", 405), ("HEAD", 405)):
        answer = client.open("/ping", method=method)
        assert answer.status_code == status
        assert answer.headers.get("Allow") == (None if status == 200 else "GET")


# Of whoever embeds the application


def test_views_that_a_program_adds_may_return_any_kind_of_flask_response() -> None:
    """Beside routes of ours; a stream is closed at its end."""
    app = application(ROUTES)
    closed = list[str]()

    @app.get("/text")
    def text() -> str:
        return "ünïcode"

    @app.get("/tuple")
    def tuple_of_parts() -> tuple[dict[str, int], int, dict[str, str]]:
        return {"a": 1}, 418, {"X-Pot": "tea"}

    @app.get("/response")
    def response() -> FlaskResponse:
        return FlaskResponse("own", 202, {"X-Own": "1"})

    @app.get("/converted/<path:path>")
    def converted(path: str) -> str:
        return path

    @app.get("/stream")
    def stream() -> FlaskResponse:
        response = FlaskResponse(iter(("ü", "b")))
        response.call_on_close(partial(closed.append, "closed"))
        return response

    client = app.test_client()
    for path, status, body, header in (
        ("/text", 200, "ünïcode".encode(), ("Content-Type", "text/html; charset=utf-8")),
        ("/tuple", 418, b'{"a":1}\n', ("X-Pot", "tea")),
        ("/converted/a/b", 200, b"a/b", ("Content-Length", "3")),
        ("/response", 202, b"own", ("X-Own", "1")),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.data) == (status, body)
        assert header in list(answer.headers) and answer.headers["Content-Length"] == str(len(body))
    answer = client.get("/stream")
    assert answer.data == "üb".encode() and "Content-Length" not in answer.headers
    answer.close()
    assert closed == ["closed"]
    with app.test_request_context():
        assert url_for("converted", path="a b", more="yes") == "/converted/a%20b?more=yes"


def test_after_request_functions_receive_flask_responses() -> None:
    """Whole ones and streams; what the middleware do comes behind them."""
    app = app_of("--force-dummy-tokenizer", "--enable-request-id-headers")
    app.secret_key = "a secret"
    seen: list[tuple[int, str | None]] = []

    @app.after_request
    def look(response: FlaskResponse) -> FlaskResponse:
        seen.append((response.status_code, response.headers.get("X-Request-Id")))
        response.headers["X-Extension"] = "1"
        if response.is_json and "object" in response.get_json():
            response.set_data(b'{"other":1}')
        return response

    @app.get("/visits")
    def visits() -> str:
        session["visits"] = session.get("visits", 0) + 1
        return str(session["visits"])

    client = app.test_client()
    assert [client.get("/visits").text for _ in range(2)] == ["1", "2"]
    models = client.get("/v1/models", headers={"X-Request-Id": "mine"})
    headers = models.headers["X-Request-Id"], models.headers["X-Extension"]
    assert (models.json, *headers) == ({"other": 1}, "mine", "1")
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
    answer = client.post("/v1/chat/completions", json=chat)
    assert answer.headers["X-Extension"] == "1" and answer.data.endswith(b"data: [DONE]\n\n")
    assert seen == [(200, None)] * 4


def test_flask_test_client_receives_a_stream_token_by_token() -> None:
    app = app_of("--force-dummy-tokenizer", "--inter-token-latency", "25ms")
    body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with app.test_client().post("/v1/completions", json=body) as answer:
        pieces = filter(None, answer.response)
        first_pieces = [*islice(pieces, 3)]
    assert len(first_pieces) == 3
    assert b"[DONE]" not in b"".join(first_pieces)
