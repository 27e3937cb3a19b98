"""The application: routes with middleware around them, and what lives as long as the worker does.

Flask, which serves what the fast path does not, is loaded when it is first needed, or beside the event loop
once the worker has begun: it would be a tenth of a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib import import_module
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import gevent

from app.api.admin.reports import Caches
from app.clock.pause import call_off_hub
from app.http.route import Route
from app.http.rpc import RpcService
from app.http.wsgi import CONTEXT
from app.middleware.stack import MiddlewareStack
from app.web.other_server import OtherServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.web.flask_application import FlaskApplication

FLASK = "app.web.flask_application"


class BackgroundService(Protocol):
    """Something with sockets or greenlets of its own."""

    def start(self) -> None:
        """Open them, in the worker."""

    def close(self) -> None:
        """Finish what is under way, within a second or so, and close them."""


class StartedLater:
    """Calls `work` in a greenlet when the worker has begun: what no request has to wait for yet."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def start(self) -> None:
        gevent.spawn(self._work)

    def close(self) -> None:
        """It ends by itself."""


class Drains(Protocol):
    """What answers requests, until it is told to take no more."""

    def drain(self) -> None:
        """Admit no more requests; running ones go on."""


class Understudy:
    """A WSGI application, with what the worker needs to know of it."""

    def __init__(self, engine: Drains, middleware: MiddlewareStack, ids: Random | None = None) -> None:
        self._engine = engine
        self.middleware = middleware
        self._ids = ids or Random()
        self.root_path = ""
        """May stand in front of every path: where a proxy serves us."""
        self.rpc: RpcService | None = None
        """What is answered over gRPC, where the server speaks that, too."""
        self.bypasses_fast_path = False
        """Nearly every request is Flask's, which is then loaded before the first one comes."""
        self._families: dict[str, tuple[Route, ...]] = {}
        self.services: list[BackgroundService] = [StartedLater(self._load_flask)]
        """What lives as long as the worker does."""
        self.until_drained: list[Callable[[], None]] = []
        """Called when the worker is told to go: they end what would go on for ever."""
        self.caches: list[Caches] = []
        """What GET /admin/memory tells of."""
        self._other_server = OtherServer(self)
        self._has_begun = False

    def new_request_id(self) -> str:
        """32 random hex digits, for a request without an X-Request-Id."""
        return f"{self._ids.getrandbits(128):032x}"

    def add_routes(self, name: str, routes: Iterable[Route]) -> None:
        """Serve `routes` as a family of this name. RuntimeError when Flask serves already."""
        if "flask" in self.__dict__:
            raise RuntimeError(f"too late for the routes of {name}")
        self._families[name] = tuple(routes)

    @property
    def routes(self) -> Iterator[Route]:
        """All of them."""
        return chain.from_iterable(self._families.values())

    @cached_property
    def flask(self) -> FlaskApplication:
        """The Flask application. Who embeds it may add views and hooks."""
        from app.web.flask_application import FlaskApplication

        made: FlaskApplication | None = self.__dict__.get("flask")
        if made is not None:  # for another request, while this one, too, waited for the module
            return made
        flask = FlaskApplication(self.middleware, self.new_request_id, self.root_path)
        for name, routes in self._families.items():
            flask.add_routes(name, routes)
        return flask

    def _load_flask(self) -> None:
        call_off_hub(import_module, FLASK)
        self.flask  # noqa: B018  # made here, so that no request has to wait for it

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        serve = self.flask if CONTEXT in environ else self._other_server.serve
        return serve(environ, start_response)

    def test_client(self) -> Any:
        """Flask's client for tests."""
        return self.flask.test_client()

    def begin(self) -> None:
        """The worker is about to accept connections. Once is enough: a server without hooks does so late."""
        if self._has_begun:
            return
        self._has_begun = True
        if self.bypasses_fast_path:
            self._load_flask()
        for service in self.services:
            service.start()

    def end(self) -> None:
        """The worker has served its last request."""
        for service in reversed(self.services):
            service.close()

    def drain(self) -> None:
        """Admit no more requests; running ones go on (SIGTERM)."""
        for end in self.until_drained:
            end()
        self._engine.drain()
