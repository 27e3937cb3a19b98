"""Middleware as users name it in the setting `middleware`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

NUMBER = 3


class Tagged:
    """Adds a header to each answer, and refuses requests that ask for it."""

    def __init__(self, application: "WSGIApplication") -> None:
        self._application = application

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        if "HTTP_X_REFUSE" in environ:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"refused"]

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            tags = [value for name, value in headers if name == "x-tag"]
            return start_response(status, [*headers, ("x-tag", f"class{len(tags)}")], *rest)

        return self._application(environ, started)


def tagged(application: "WSGIApplication") -> "WSGIApplication":
    """Adds a header, too."""

    def call(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, ("x-tag", "function")], *rest)

        return application(environ, started)

    return call


class Asgi:
    """Middleware for Starlette."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope, receive, send)


async def of_fastapi(request: Any, call_next: Any) -> Any:
    """Middleware as a coroutine function."""
    return await call_next(request)
