"""What a request is to those who handle it, and how a WSGI environ becomes one."""

import io
from typing import Any
from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from app.serving.http.context import context_of
from tests.application import request


def test_a_query_has_the_last_of_each_name() -> None:
    context = request("/wake_up?tags=a&level=2&tags=b%20c&empty=&%C3%BC=%ff")
    assert (context.arguments("tags"), list(context.arguments("none"))) == (["a", "b c"], [])
    assert context.query() == {"tags": "b c", "level": "2", "empty": "", "ü": "�"}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=8))
def test_every_query_is_read_as_it_was_written(pairs: list[tuple[str, str]]) -> None:
    context = request("/a?" + urlencode(pairs))
    for name, _ in pairs:
        assert list(context.arguments(name)) == [value for own, value in pairs if own == name]


# From a WSGI environ


def environ(path: str = "/", **given: Any) -> dict[str, Any]:
    return EnvironBuilder(path=path, **given).get_environ()


def test_an_environ_becomes_a_context() -> None:
    body = io.BytesIO(b"{}")
    given = environ(
        "/v1/caf%C3%A9?a=1",
        method="POST",
        input_stream=body,
        content_type="application/json",
        headers={"X-Request-Id": "mine", "Host": "example"},
        base_url="https://example",
        environ_overrides={"REMOTE_ADDR": "10.1.2.3", "SERVER_PROTOCOL": "HTTP/1.0"},
    )
    context = context_of(given, 12.5)
    assert (context.method, context.path, context.target) == ("POST", "/v1/café", "/v1/caf%C3%A9?a=1")
    assert (context.client, context.arrival_s, context.http_version) == ("10.1.2.3", 12.5, "HTTP/1.0")
    assert (context.scheme, context.host) == ("https", "example")
    assert (context.content_type, context.headers["x-request-id"]) == ("application/json", "mine")
    assert (context.source, context.body, context.connection) == (body, None, None)
    assert context.query() == {"a": "1"}
