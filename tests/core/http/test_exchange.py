"""Request contexts from WSGI environs, and responses with their close callbacks."""

import io
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from app.core.server.http.context import context_of
from app.core.server.http.response import Response
from tests.application import request


def served(response: Response) -> tuple[str, list[tuple[str, str]], Iterable[bytes]]:
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        started[:] = [status, headers]

    body = response({}, start_response)
    return started[0], started[1], body


def content(body: Iterable[bytes]) -> bytes:
    """All of it; closed then if it can be, as a server does."""
    whole = b"".join(body)
    if hasattr(body, "close"):
        body.close()
    return whole


class Closing:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)

    def close(self) -> None:
        self.closed += 1


def test_only_a_complete_body_has_a_content_length() -> None:
    response = Response(b"{}", 201, {"X-First": "1"}, "application/json")
    response.headers["X-Last"] = "2"
    status, headers, body = served(response)
    typed = [("Content-Type", "application/json"), ("Content-Length", "2")]
    assert (status, headers) == ("201 CREATED", [("X-First", "1"), *typed, ("X-Last", "2")])
    assert content(body) == b"{}"
    status, headers, body = served(Response([b"a", b"b"], content_type="text/event-stream"))
    assert (status, headers) == ("200 OK", [("Content-Type", "text/event-stream")])
    assert content(body) == b"ab"


def test_status_line_phrase_does_not_depend_on_the_python_version() -> None:
    phrases = {
        200: "OK",
        405: "METHOD NOT ALLOWED",
        413: "REQUEST ENTITY TOO LARGE",
        449: "RETRY WITH",
    }
    phrases |= {422: "UNPROCESSABLE ENTITY", 499: "UNKNOWN", 599: "UNKNOWN"}
    for status, phrase in phrases.items():
        assert Response(status=status).status_line == f"{status} {phrase}"


# The end


def test_close_callbacks_run_once_after_the_body_is_closed() -> None:
    closed: list[str] = []
    body = Closing(b"a")
    response = Response(body)

    def note_closed_body() -> None:
        closed.append(f"first, {body.closed} closed")

    response.on_close(note_closed_body)
    response.on_close(partial(closed.append, "second"))
    _, _, sent = served(response)
    assert next(iter(sent)) == b"a" and not closed
    for _ in range(2):
        sent.close()  # type: ignore[attr-defined]
    assert closed == ["first, 1 closed", "second"]


def test_query_contains_the_last_value_of_each_name() -> None:
    context = request("/wake_up?tags=a&level=2&tags=b%20c&empty=&%C3%BC=%ff")
    assert (context.arguments("tags"), list(context.arguments("none"))) == (["a", "b c"], [])
    assert context.query() == {"tags": "b c", "level": "2", "empty": "", "ü": "�"}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=8))
def test_decoded_query_has_the_values_that_were_encoded(pairs: list[tuple[str, str]]) -> None:
    context = request("/a?" + urlencode(pairs))
    for name, _ in pairs:
        assert list(context.arguments(name)) == [
            value for name_of_pair, value in pairs if name_of_pair == name
        ]


# From a WSGI environ


def environ(path: str = "/", **options: Any) -> dict[str, Any]:
    return EnvironBuilder(path=path, **options).get_environ()


def test_request_context_is_read_from_the_wsgi_environ() -> None:
    body = io.BytesIO(b"{}")
    wsgi_environ = environ(
        "/v1/caf%C3%A9?a=1",
        method="POST",
        input_stream=body,
        content_type="application/json",
        headers={"X-Request-Id": "mine", "Host": "example"},
        base_url="https://example",
        environ_overrides={"REMOTE_ADDR": "10.1.2.3", "SERVER_PROTOCOL": "HTTP/1.0"},
    )
    context = context_of(wsgi_environ, 12.5)
    assert (context.method, context.path, context.target) == (
        "POST",
        "/v1/café",
        "/v1/caf%C3%A9?a=1",
    )
    assert (context.client, context.arrival_s, context.http_version) == (
        "10.1.2.3",
        12.5,
        "HTTP/1.0",
    )
    assert (context.scheme, context.host) == ("https", "example")
    assert (context.content_type, context.headers["x-request-id"]) == ("application/json", "mine")
    assert (context.source, context.body, context.connection) == (body, None, None)
    assert context.query() == {"a": "1"}
