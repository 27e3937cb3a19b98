"""The Flask application: our kind of responses, routes and nothing that nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from flask import Flask, Request, Response
from flask.globals import request_ctx
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.routing import MapAdapter, Rule

from app.api.admin.health import Drains
from app.http.response import Reply
from app.web.routing import DirectAdapter, ExactRule, StaticRules, static_rules


class NoSessions(SessionInterface):
    """Nobody logs in here."""

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return NO_SESSION

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        """There is nothing to save."""


NO_SESSION = NullSession()


class BackgroundService(Protocol):
    """Something with sockets or greenlets of its own."""

    def start(self) -> None:
        """Open them, in the worker."""

    def close(self) -> None:
        """Finish what is under way, within a second or so, and close them."""


class Understudy(Flask):
    """The Flask application, with what the worker needs to know of it."""

    response_class = Reply
    url_rule_class: type[Rule] = ExactRule
    session_interface = NoSessions()

    def __init__(self, service: Drains) -> None:
        super().__init__("app", static_folder=None)
        self.url_map.merge_slashes = False
        self._service = service
        self.services: list[BackgroundService] = []
        """What lives as long as the worker does."""

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes depend on path and method only, so nothing else of the environment is looked at."""
        if request is None:  # nobody asks for the URL of a route
            return None
        scheme = request.environ["wsgi.url_scheme"]
        path = request.environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        return DirectAdapter(self.url_map, self._static_rules, scheme, path, request.method)

    @cached_property
    def _static_rules(self) -> StaticRules:
        return static_rules(self.url_map)

    def preprocess_request(self) -> Any:
        """The hooks of the application; blueprints have none of their own, here and below."""
        for hook in self.before_request_funcs.get(None, ()):
            if (answer := hook()) is not None:
                return answer
        return None

    def process_response(self, response: Response) -> Response:
        own: list[Any] = request_ctx._after_request_functions
        for hook in (*own, *reversed(self.after_request_funcs.get(None, ()))):
            response = hook(response)
        return response

    def do_teardown_request(self, *error: BaseException | None) -> None:
        """Nothing is left to tear down: who has something to close is told by `call_on_close`."""

    def do_teardown_appcontext(self, *error: BaseException | None) -> None:
        """As for a request."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """No view and no hook here is a coroutine; Flask would look at each, for every request."""
        return func

    def begin(self) -> None:
        """The worker is about to accept connections."""
        for companion in self.services:
            companion.start()

    def end(self) -> None:
        """The worker has served its last request."""
        for companion in reversed(self.services):
            companion.close()

    def drain(self) -> None:
        """Admit no more requests; running ones go on (SIGTERM)."""
        self._service.drain()
