"""The Flask application: one blueprint per family of routes, with middleware around all routes.

Flask serves requests that our worker does not pass to handlers itself, and all requests under other
servers. A program that embeds the application may add views, functions and extensions. Replaced
parts of Flask, with the reasons:

* HEAD is not added to GET: vLLM refuses HEAD (`ExactRule`);
* functions that build URLs are compiled when `url_for` calls them: two for each rule would take
  10 ms of the start (`ExactRule`);
* rules without variable parts are looked up by path and method: 6 us instead of 63 us by Werkzeug's
  search, which also leaves eight objects of cyclic garbage after each request (`DirectAdapter`);
* routes return `app.core.server.http.response.Response`: 6 us instead of 67 us for Werkzeug's
  response, which is copied and completed at each call (`make_response`, `process_response`).

Start with `Understudy`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, overload

from flask import Blueprint, Flask
from flask.globals import request_ctx
from flask.wrappers import Response as FlaskResponse
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, MapAdapter, Rule

from app.core.api.errors import forget_frames, respond_to_error
from app.core.base import Caches
from app.core.server.flask.additions import FlaskFunctions
from app.core.server.http.context import CONTEXT, RequestContext, context_of, current_request
from app.core.server.http.errors import not_found
from app.core.server.http.response import TEXT, Response, StreamingBody, json_response
from app.core.server.http.route import Handler, Route
from app.core.server.middleware.stack import MiddlewareStack

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask import Request
    from flask.testing import FlaskClient

    from app.core.api.health import Drains
    from app.core.server.flask.asgi import AsgiRefusal, Receive, Scope, Send
    from app.core.server.flask.other_server import OtherServer
    from app.core.server.http.rpc import RpcHandlers, RpcService

log = logging.getLogger(__name__)

METRICS = "/metrics"
TEST_CLIENT = "understudy.test_client"
"""Key in the environ of a test client."""
_VARIABLE = re.compile(r"\{(\w+)\}")
_CONVERTER = re.compile(r"<(?:[^<>:]+:)?([^<>]+)>")


class BackgroundService(Protocol):
    """A service with sockets or greenlets."""

    def start(self) -> None:
        """Opens sockets and starts greenlets, in the worker."""

    def close(self) -> None:
        """Finishes pending work, within about a second, then closes sockets and greenlets."""


class ExactRule(Rule):
    """A rule with exactly the given methods: Werkzeug adds HEAD to GET."""

    def __init__(self, string: str, methods: Iterable[str] | None = None, **options: Any) -> None:
        super().__init__(string, methods=methods, **options)
        if self.methods is not None and methods is not None:
            self.methods = {method.upper() for method in methods}

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        """Returns a function that builds URLs, and compiles it at its first call."""

        @cache
        def builder() -> Callable[..., tuple[str, str]]:
            return super(ExactRule, self)._compile_builder(append_unknown)

        def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
            return builder()(rule, **values)

        return build


class RouteMap(Map):
    """Werkzeug's map, with the rules that need no search."""

    @cached_property
    def static_rules(self) -> dict[tuple[str, str], Rule]:
        """Rules without variable parts, by path and method."""
        static_rules = {}
        for rule in self.iter_rules():
            if not rule.arguments:
                for method in rule.methods or ():
                    static_rules[rule.rule, method] = rule
        return static_rules


class DirectAdapter(MapAdapter):
    """Looks static rules up directly; all other paths, and errors, go through Werkzeug's search."""

    map: RouteMap

    def match(self, *args: Any, return_rule: bool = False, **options: Any) -> Any:
        """Returns the rule and its arguments; Flask calls this without arguments for a request."""
        rule = None
        if return_rule and not args:
            rule = self.map.static_rules.get((self.path_info, self.default_method))
        if rule is not None:
            return rule, {}
        if self.path_info.startswith("//"):  # Werkzeug would merge the two slashes
            raise NotFound
        return super().match(  # type: ignore[call-overload]
            *args, return_rule=return_rule, **options
        )


class Understudy(Flask):
    """Routes, middleware, and services that run as long as the worker.

    Clients may put `prefix` before every path: a proxy's path for this server.
    """

    url_map: RouteMap
    url_rule_class: type[Rule] = ExactRule
    url_map_class: type[Map] = RouteMap

    def __init__(
        self,
        engine: Drains,
        middleware: MiddlewareStack,
        ids: Random | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__("app", static_folder=None)
        self.url_map.merge_slashes = False
        self.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
        self.register_error_handler(HTTPException, self._http_error)
        self.register_error_handler(Exception, _respond_to_error)
        self.before_request(self._begin_request)
        self._functions = FlaskFunctions(self)
        self._engine = engine
        self.middleware = middleware
        self._ids = ids or Random()
        self.prefix = prefix
        self.rpc: RpcService | None = None
        """gRPC methods, if the server has any."""
        self.rpc_handlers: RpcHandlers | None = None
        """gRPC methods of an application with another role; `rpc` then has them."""
        self._routes: dict[str, Route] = {}
        """Routes by endpoint."""
        self.services: list[BackgroundService] = []
        """Started and closed with the worker."""
        self.until_drained: list[Callable[[], None]] = []
        """Called at SIGTERM to end work that has no end."""
        self.caches: list[Caches] = []
        """Caches in the answer to GET /admin/memory."""
        self._other_server: OtherServer | None = None
        """Imported with the first request of a server without hooks for this application."""
        self._other_server_lock = Lock()
        self._has_begun = False
        self.reason_for_absence: Callable[[str], str | None] = no_reason
        """Returns why the server lacks a path because of its model; None for other paths."""

    @property
    def routes(self) -> Iterator[Route]:
        """Yields all routes in the order of their registration."""
        return iter(self._routes.values())

    def take_direct_routes(self) -> list[Route]:
        """Returns the routes whose requests a server may pass to their handlers, without Flask.

        Those have no variable parts, and are still as `add_routes` has added them. There are none
        if a program has added functions that Flask calls around requests. From now on, no more
        can be added, as after the first request of any Flask application.
        """
        self._got_first_request = True
        blueprints = {endpoint.partition(".")[0] for endpoint in self._routes}
        if type(self) is not Understudy or self._functions.are_extended(blueprints):
            log.info(
                "Flask is serving all requests because functions were added to the application"
            )
            return []
        return [route for endpoint, route in self._routes.items() if self._is_direct(endpoint)]

    def _is_direct(self, endpoint: str) -> bool:
        """Returns whether Flask would do nothing but call the handler of a route."""
        route = self._routes[endpoint]
        view = self.view_functions.get(endpoint)
        if not isinstance(view, partial) or view.func is not _answer:
            return False
        if view.args != (route.handle,):
            return False
        for method in route.methods:
            rule = self.url_map.static_rules.get((route.path, method))
            if rule is None or rule.endpoint != endpoint:
                return False
        return True

    def add_routes(self, name: str, routes: Iterable[Route]) -> None:
        """Adds a blueprint with `routes`."""
        blueprint = Blueprint(name, __name__)
        for number, route in enumerate(routes):
            endpoint = f"route_{number}"
            self._routes[f"{name}.{endpoint}"] = route
            path = _VARIABLE.sub(r"<\1>", route.path)
            view = partial(_answer, route.handle)
            blueprint.add_url_rule(path, endpoint, view, methods=list(route.methods))
        self.register_blueprint(blueprint)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Returns an adapter for path and method alone: no route depends on more."""
        if request is None:
            return super().create_url_adapter(None)
        environ = request.environ
        if CONTEXT not in environ:  # a request of a test client
            environ[CONTEXT] = context_of(environ)
        context: RequestContext = environ[CONTEXT]
        context.new_id = self.new_request_id
        if self.prefix and context.path.startswith(f"{self.prefix}/"):
            context.path = context.path.removeprefix(self.prefix)
        path = context.path
        if path.startswith(METRICS):  # vLLM's application there ignores further parts of the path
            path = METRICS
        return DirectAdapter(
            map=self.url_map,
            server_name="localhost",
            script_name="/",
            subdomain="",
            url_scheme=context.scheme,
            path_info=path,
            default_method=context.method,
        )

    @overload
    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]: ...
    @overload
    def __call__(self, environ: Scope) -> AsgiRefusal: ...
    @overload
    def __call__(self, environ: Scope, start_response: Receive, send: Send) -> Awaitable[None]: ...

    def __call__(self, environ: Any, start_response: Any = None, send: Send | None = None) -> Any:
        """Serves a WSGI request.

        An ASGI server passes its scope alone (ASGI 2), or with two functions.
        """
        if start_response is None:
            return _refusal(environ)
        if send is not None:
            return _refusal(environ)(start_response, send)
        if CONTEXT in environ or TEST_CLIENT in environ:
            return self.wsgi_app(environ, start_response)
        other_server = self._other_server or self._use_other_server()
        return other_server.serve(environ, start_response)

    def _use_other_server(self) -> OtherServer:
        from app.core.server.flask.other_server import OtherServer

        with self._other_server_lock:  # the first requests may come in several threads
            if self._other_server is None:
                self._other_server = OtherServer(self, self.begin, self.end)
            return self._other_server

    def test_client(self, use_cookies: bool = True, **options: Any) -> FlaskClient:
        """Returns Flask's test client; its requests start no services."""
        client = super().test_client(use_cookies, **options)
        client.environ_base[TEST_CLIENT] = "1"
        return client

    def new_request_id(self) -> str:
        """Returns 32 random hex digits, for a request without an X-Request-Id."""
        return f"{self._ids.getrandbits(128):032x}"

    def _begin_request(self) -> Response | None:
        """Finds the route of a request for the middleware, which may answer it already."""
        request = request_ctx.request
        context: RequestContext = request.environ[CONTEXT]
        current_request.set(context)
        rule = request.url_rule
        if rule is not None:
            context.route = self._routes.get(rule.endpoint)
            context.label = context.route.path if context.route else label_of(rule)
            context.params = request.view_args or {}
        response = self.middleware.begin(context, is_general=True)
        if response is None and context.headers.get("upgrade", "").lower() == "websocket":
            return Response(b"", 403, content_type=TEXT)  # no route takes a WebSocket
        return response

    def make_response(self, rv: Any) -> Any:
        """Returns a `Response` unchanged, and Flask's response for any other value."""
        if isinstance(rv, Response):
            return rv
        return super().make_response(rv)

    def process_response(self, response: Any) -> Any:
        """Runs functions of extensions, then the middleware."""
        if self.after_request_funcs or request_ctx._after_request_functions or self.secret_key:
            if isinstance(response, Response):
                flask_response = FlaskResponse(
                    response.body, response.status, list(response.headers.items())
                )
                flask_response.call_on_close(response.close)
                response = flask_response
            response = super().process_response(response)
        if not isinstance(response, Response):
            response = _from_flask(response)
        context: RequestContext = request_ctx.request.environ[CONTEXT]
        if context.method == "HEAD":
            response.body = b""  # Content-Length still counts it
        try:
            self.middleware.end(context, response)
        except Exception as error:  # Flask would log it, and answer 500
            response.close()
            response = respond_to_error(error, context)
        return response

    def _http_error(self, error: HTTPException) -> Response:
        """Answers a request without a route, with FastAPI's body, as vLLM does."""
        forget_frames(error)
        context: RequestContext = request_ctx.request.environ[CONTEXT]
        if isinstance(error, NotFound):
            location = _without_slash(context)
            if location:
                return Response(b"", 307, {"Location": location})
        if isinstance(error, MethodNotAllowed) and context.path == "/":
            error = NotFound()  # vLLM has no path /: GET / exists only here
        if context.path.startswith("/v1/v1/"):
            url = f"{context.scheme}://{context.host}{context.path[3:]}"
            message = f"The base URL has one /v1 too many; the right URL is {url}"
            return respond_to_error(not_found(message), context)
        if isinstance(error, NotFound) and context.method == "POST":
            reason = self.reason_for_absence(context.path)
            if reason is not None:
                log.warning("POST %s answered 404: %s", context.path, reason)
        response = json_response({"detail": error.name}, error.code or 500)
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            methods = error.valid_methods
            for route in self.routes:
                if route.path == context.path:  # Starlette names the methods of the first route
                    methods = route.methods
                    break
            response.headers["Allow"] = ", ".join(sorted(methods))
        return response

    def begin(self) -> None:
        """Starts the services, once.

        Called before the worker accepts, or at the first request of another server.
        """
        if not self._has_begun:
            self._has_begun = True
            for service in self.services:
                service.start()

    def withdraw(self) -> None:
        """Reports not ready (SIGTERM), and ends endless work. Requests are still admitted."""
        for end in self.until_drained:
            end()
        self._engine.withdrawn = True

    def drain(self) -> None:
        """Admits no more requests; running requests continue."""
        self._engine.drain()

    @property
    def is_generating(self) -> bool:
        """True while requests run or wait in the engine."""
        return self._engine.is_generating

    def shut_down(self) -> None:
        """Admits no more requests, with vLLM's error; running requests continue."""
        self._engine.shut_down()

    def fail_requests(self) -> None:
        """Fails the requests that still run, with vLLM's error."""
        self._engine.fail()

    def end(self) -> None:
        """Closes the services after the worker's last request."""
        for service in reversed(self.services):
            service.close()


def _refusal(scope: Scope) -> AsgiRefusal:
    from app.core.server.flask.asgi import AsgiRefusal

    return AsgiRefusal(scope)


def no_reason(path: str) -> str | None:
    """Knows no path that the server lacks because of its model."""
    return None


def label_of(rule: Rule) -> str:
    """Returns the path of a rule with its variable parts in braces."""
    return _CONVERTER.sub(r"{\1}", rule.rule)


def _answer(handle: Handler, **params: str) -> Response:
    """Calls the handler of a route with the context of the request."""
    return handle(request_ctx.request.environ[CONTEXT])


def _respond_to_error(error: Exception) -> Response:
    return respond_to_error(error, request_ctx.request.environ[CONTEXT])


def _from_flask(flask_response: FlaskResponse) -> Response:
    """Returns a `Response` with the same content; a streamed body stays streamed."""
    body: bytes | Iterable[bytes]
    if isinstance(flask_response.response, StreamingBody):
        body = flask_response.response
    elif flask_response.is_sequence:
        body = flask_response.get_data()
    else:
        body = flask_response.iter_encoded()
    response = Response(body, flask_response.status_code, dict(flask_response.headers))
    response.on_close(flask_response.close)
    return response


def _without_slash(context: RequestContext) -> str | None:
    """Returns the URL without trailing slashes; None when that path has no route."""
    request = request_ctx.request
    adapter = request_ctx.url_adapter
    path = request.path.rstrip("/")
    if not path or path == request.path or adapter is None:
        return None
    try:
        rule, _ = adapter.match(path, method=request.method, return_rule=True)
        context.label = f"{label_of(rule)}/"
    except MethodNotAllowed:
        pass
    except HTTPException:
        return None
    url = request.host_url.rstrip("/") + path
    query = request.query_string.decode("latin-1")
    if query:
        url += f"?{query}"
    return url
