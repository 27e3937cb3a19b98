"""An ASGI server that starts the application logs one line, not a traceback."""

import logging
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

import pytest

from app.core.server.flask.application import Understudy
from app.core.server.flask.asgi import REFUSAL
from tests.application import application


@pytest.fixture(scope="module")
def app() -> Understudy:
    return application([])


class Asgi:
    """The functions that an ASGI server passes; `sent` has the messages of the application."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)


def finish(awaitable: Awaitable[None]) -> None:
    """Runs a coroutine that waits for nothing."""
    assert isinstance(awaitable, Coroutine)
    with pytest.raises(StopIteration):
        awaitable.send(None)


def messages_as_asgi3(app: Understudy, scope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    server = Asgi()
    finish(app(scope, server.receive, server.send))
    return server.sent


def messages_as_asgi2(app: Understudy, scope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    server = Asgi()
    finish(app(scope)(server.receive, server.send))
    return server.sent


@pytest.mark.parametrize("messages_of", [messages_as_asgi2, messages_as_asgi3])
def test_startup_under_an_asgi_server_fails_with_a_one_line_error(
    app: Understudy, messages_of: Any
) -> None:
    [message] = messages_of(app, {"type": "lifespan", "asgi": {"version": "3.0"}})
    assert message == {"type": "lifespan.startup.failed", "message": REFUSAL}
    assert "\n" not in REFUSAL
    assert "gunicorn wsgi:app" in REFUSAL


@pytest.mark.parametrize("messages_of", [messages_as_asgi2, messages_as_asgi3])
def test_asgi_request_to_an_unstarted_application_returns_500(
    app: Understudy, messages_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        start, body = messages_of(app, {"type": "http", "method": "GET", "path": "/health"})
    assert (start["type"], start["status"]) == ("http.response.start", 500)
    assert (body["type"], body["body"]) == ("http.response.body", f"{REFUSAL}\n".encode())
    assert [record.getMessage() for record in caplog.records] == [REFUSAL]


def test_asgi_websocket_is_closed(app: Understudy) -> None:
    [message] = messages_as_asgi3(app, {"type": "websocket", "path": "/"})
    assert message == {"type": "websocket.close", "code": 1011}
