"""Applications for tests:

whole ones by their flags, small ones with routes of their own and middleware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from app.core.application import create_app
from app.core.server.flask.application import Understudy
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route
from app.core.server.middleware.api_keys import ApiKeys
from app.core.server.middleware.http_log import HttpLog
from app.core.server.middleware.stack import Middleware, MiddlewareStack
from app.core.settings import load, resolve, settings_type
from config.command_line import parse
from config.environment import as_environment
from config.settings import AccessSettings, LogSettings
from config.sources import ignore_warning
from config.validation import LiveSettings

if TYPE_CHECKING:
    from _typeshed import SupportsRead


def app_of(*flags: str) -> Understudy:
    """The application that a server with these flags has."""
    return create_app(load(flags, {}))


def empty_response(context: RequestContext) -> Response:
    """A view without a body."""
    return Response()


def empty_object(context: RequestContext) -> Response:
    """A view that returns {}."""
    return json_response({})


def handed_over(words: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a process that gets the settings of a command line."""
    environ = environ or {}
    flags = parse(words, {}, settings_type())
    settings = resolve(flags, environ, ignore_warning)
    return {**environ, **as_environment(flags, settings, environ)}


def check_caches(app: Understudy, names: Set[str]) -> dict[str, dict[str, int]]:
    """Checks that GET /admin/memory lists caches of these names, none above its limit.

    Returns the sizes of all caches, as `cache_sizes`.
    """
    caches = cache_sizes(app)
    assert set(caches) >= names
    for name, cache in caches.items():
        assert 0 <= cache["size_bytes"] <= cache["limit_bytes"], name
    return caches


def cache_sizes(app: Understudy) -> dict[str, dict[str, int]]:
    """Returns size and limit in bytes of each cache that GET /admin/memory lists, by its name."""
    answer = app.test_client().get("/admin/memory").json
    assert answer is not None
    caches: dict[str, dict[str, int]] = answer["caches"]
    assert answer["size_bytes"] == sum(cache["size_bytes"] for cache in caches.values())
    return caches


class NoEngine:
    """The engine of an application that serves no models. A test that ends it fails."""

    draining = False
    healthy = True
    is_generating = False
    withdrawn = False

    def drain(self) -> None:
        raise AssertionError("drained")

    def shut_down(self) -> None:
        raise AssertionError("shut down")

    def fail(self) -> None:
        raise AssertionError("failed")


def application(
    routes: Iterable[Route], *middleware: Middleware, live: LiveSettings | None = None
) -> Understudy:
    """Serves `routes`; the first of `middleware` is the outermost.

    They follow `live`, if it is given.
    """
    stack = MiddlewareStack(middleware)
    if live is not None:
        for middleware_part in middleware:
            if isinstance(middleware_part, ApiKeys):
                live.follow(AccessSettings, middleware_part.on_access)
            elif isinstance(middleware_part, HttpLog):
                live.follow(LogSettings, middleware_part.on_log)
            elif (on_settings := getattr(middleware_part, "on_settings", None)) is not None:
                live.subscribe(on_settings)
        live.watch(stack.refresh)
    app = Understudy(NoEngine(), stack)
    app.add_routes("test", routes)
    return app


def request(
    path: str = "/",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    source: SupportsRead[bytes] | None = None,
    **fields: Any,
) -> RequestContext:
    """The context of a request that arrived at 0 s; `headers` by lower-case names."""
    own_path = path.partition("?")[0]
    return RequestContext(
        method=method,
        path=own_path,
        target=path,
        headers=headers or {},
        client="10.0.0.1",
        arrival_s=0.0,
        source=source,
        **fields,
    )
