"""The Flask application: a blueprint for each family of routes, and middleware around all of them.

Flask serves what the fast path does not, and everything under other servers. Views, functions and extensions
of a program that embeds the application work as in any other. What is replaced of Flask, and why:

* HEAD is not added to GET, as vLLM refuses it (`ExactRule`);
* rules without variable parts are found by path and method: Werkzeug's search takes ten times as long, and
  leaves cyclic garbage behind every request (`DirectAdapter`);
* routes return `app.http.response.Response`, which Werkzeug's own would copy and complete at every call
  (`make_response`, `process_response`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from flask import Blueprint, Flask
from flask.globals import request_ctx
from flask.wrappers import Response as FlaskResponse
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, MapAdapter, Rule

from app.api.admin.reports import Caches
from app.api.errors import forget_frames, respond_to_error
from app.http.context import CONTEXT, RequestContext, context_of, current_request
from app.http.response import Response, StreamingBody, json_response
from app.http.route import Route
from app.http.rpc import RpcService
from app.middleware.stack import MiddlewareStack
from app.web.other_server import OtherServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask import Request
    from flask.testing import FlaskClient

METRICS = "/metrics"
TEST_CLIENT = "understudy.test_client"
"""Key in the environ of a test client, which no server has made."""
_VARIABLE = re.compile(r"\{(\w+)\}")
_CONVERTER = re.compile(r"<(?:[^<>:]+:)?([^<>]+)>")
StaticRules = dict[tuple[str, str], Rule]


class BackgroundService(Protocol):
    """A part with its own sockets or greenlets."""

    def start(self) -> None:
        """Opens them, in the worker."""

    def close(self) -> None:
        """Finishes what is under way, within a second or so, and closes them."""


class StartedLater:
    """Calls `work` in a greenlet when the worker has begun: what no request has to wait for yet."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def start(self) -> None:
        gevent.spawn(self._work)

    def close(self) -> None:
        """The greenlet ends by itself."""


class Drains(Protocol):
    """The engine, or whatever else answers requests until it is drained."""

    def drain(self) -> None:
        """Admits no more requests; running ones go on."""


class ExactRule(Rule):
    """A rule of the methods that it is given, and no other."""

    def __init__(self, string: str, methods: Iterable[str] | None = None, **options: Any) -> None:
        super().__init__(string, methods=methods, **options)
        if self.methods is not None and methods is not None:
            self.methods = {method.upper() for method in methods}


class DirectAdapter(MapAdapter):
    """Finds static rules by a look into `rules`; Werkzeug's search, with its errors, is for the rest."""

    def __init__(self, routes: Map, rules: StaticRules, scheme: str, path: str, method: str) -> None:
        super().__init__(routes, "localhost", "/", "", scheme, path, method)
        self._rules = rules

    def match(self, *args: Any, return_rule: bool = False, **options: Any) -> Any:
        rule = self._rules.get((self.path_info, self.default_method)) if return_rule and not args else None
        if rule is not None:
            return rule, {}
        if self.path_info.startswith("//"):  # which Werkzeug would take for a single slash
            raise NotFound
        return super().match(*args, return_rule=return_rule, **options)  # type: ignore[call-overload]


class Understudy(Flask):
    """Routes with middleware around them, and services that live as long as the worker does.

    `prefix` may stand in front of every path: where a proxy serves us.
    """

    url_rule_class: type[Rule] = ExactRule

    def __init__(
        self, engine: Drains, middleware: MiddlewareStack, ids: Random | None = None, prefix: str = ""
    ) -> None:
        super().__init__("app", static_folder=None)
        self.url_map.merge_slashes = False
        self.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
        self.register_error_handler(HTTPException, self._http_error)
        self.register_error_handler(Exception, self._error)
        self.before_request(self._begin_request)
        self._engine = engine
        self.middleware = middleware
        self._ids = ids or Random()
        self.prefix = prefix
        self.rpc: RpcService | None = None
        """Methods of gRPC, if the server speaks that, too."""
        self._routes: dict[str, Route] = {}
        """By their endpoints."""
        self.services: list[BackgroundService] = []
        """Parts that live as long as the worker does."""
        self.until_drained: list[Callable[[], None]] = []
        """Called at SIGTERM: they end work that would go on for ever."""
        self.caches: list[Caches] = []
        """Caches that GET /admin/memory shows."""
        self._other_server = OtherServer(self)
        self._has_begun = False

    # Routes.

    @property
    def routes(self) -> Iterator[Route]:
        """All routes, in order of addition."""
        return iter(self._routes.values())

    def add_routes(self, name: str, routes: Iterable[Route]) -> None:
        """Serves `routes` as a blueprint of this name."""
        blueprint = Blueprint(name, __name__)
        for number, route in enumerate(routes):
            endpoint = f"route_{number}"
            self._routes[f"{name}.{endpoint}"] = route
            path = _VARIABLE.sub(r"<\1>", route.path)
            blueprint.add_url_rule(path, endpoint, _view(route), methods=list(route.methods))
        self.register_blueprint(blueprint)

    @cached_property
    def _static_rules(self) -> StaticRules:
        rules = [rule for rule in self.url_map.iter_rules() if not rule.arguments]
        return {(rule.rule, method): rule for rule in rules for method in rule.methods or ()}

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes depend on path and method only, so nothing else of the environ is looked at."""
        if request is None:
            return super().create_url_adapter(None)
        context = current_context(request)
        context.new_id = self.new_request_id
        if self.prefix and context.path.startswith(f"{self.prefix}/"):
            context.path = context.path.removeprefix(self.prefix)
        # Where vLLM mounts an application that looks at no more of the path.
        path = METRICS if context.path.startswith(METRICS) else context.path
        return DirectAdapter(self.url_map, self._static_rules, context.scheme, path, context.method)

    # Requests.

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_ours = CONTEXT in environ or TEST_CLIENT in environ
        return (self.wsgi_app if is_ours else self._other_server.serve)(environ, start_response)

    def test_client(self, use_cookies: bool = True, **options: Any) -> FlaskClient:
        """Flask's own; its requests begin no services."""
        client = super().test_client(use_cookies, **options)
        client.environ_base[TEST_CLIENT] = "1"
        return client

    def new_request_id(self) -> str:
        """32 random hex digits, for a request without an X-Request-Id."""
        return f"{self._ids.getrandbits(128):032x}"

    def _begin_request(self) -> Response | None:
        """The middleware, once it is known which route is meant."""
        context, request = current_context(), request_ctx.request
        current_request.set(context)
        if (rule := request.url_rule) is not None:
            context.route = self._routes.get(rule.endpoint)
            context.label = context.route.path if context.route else label_of(rule)
            context.params = request.view_args or {}
        return self.middleware.begin_general(context)

    def make_response(self, rv: Any) -> Any:
        """Routes return responses of ours; other views and functions, what Flask allows."""
        return rv if isinstance(rv, Response) else super().make_response(rv)

    def process_response(self, response: Any) -> Any:
        """Functions of extensions come first, then the middleware."""
        if self.after_request_funcs or request_ctx._after_request_functions or self.secret_key:
            response = super().process_response(_of_flask(response))
        if not isinstance(response, Response):
            response = _of_ours(response)
        self.middleware.end(current_context(), response)
        return response

    def _error(self, error: Exception) -> Response:
        return respond_to_error(error, current_context())

    def _http_error(self, error: HTTPException) -> Response:
        """Answers a request that no route takes, with the web framework's own body, as vLLM does."""
        forget_frames(error)
        context = current_context()
        if isinstance(error, NotFound) and (moved := _without_slash(context)):
            return Response(b"", 307, {"Location": moved})
        if isinstance(error, MethodNotAllowed) and context.path == "/":
            error = NotFound()  # as in vLLM, which has no such path: GET / is ours
        response = json_response({"detail": error.name}, error.code or 500)
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        if context.method == "HEAD":
            response.without_body()
        return response

    # From the first request to the last.

    def begin(self) -> None:
        """The worker is about to accept connections. Once is enough: a server without hooks does so late."""
        if not self._has_begun:
            self._has_begun = True
            for service in self.services:
                service.start()

    def drain(self) -> None:
        """Admits no more requests; running ones go on (SIGTERM)."""
        for end in self.until_drained:
            end()
        self._engine.drain()

    def end(self) -> None:
        """The worker has served its last request."""
        for service in reversed(self.services):
            service.close()


def label_of(rule: Rule) -> str:
    """The path of a rule as vLLM writes it, with its variable parts in braces."""
    return _CONVERTER.sub(r"{\1}", rule.rule)


def current_context(request: Request | None = None) -> RequestContext:
    """The context of `request`, which Flask serves now; one that a test makes gets it here."""
    environ = (request or request_ctx.request).environ
    context: RequestContext | None = environ.get(CONTEXT)
    if context is None:
        context = environ[CONTEXT] = context_of(environ)
    return context


def _view(route: Route) -> Callable[..., Response]:
    def view(**params: str) -> Response:
        return route.handle(current_context())

    return view


def _of_flask(response: Any) -> FlaskResponse:
    """Builds the Flask response that extensions are given, with the same body."""
    if not isinstance(response, Response):
        return response  # type: ignore[no-any-return]
    made = FlaskResponse(response.body, response.status, list(response.headers.items()))
    made.call_on_close(response.close)
    return made


def _of_ours(response: FlaskResponse) -> Response:
    """The same response; a body that comes piece by piece goes on doing so."""
    body: bytes | Iterable[bytes] = response.get_data() if response.is_sequence else response.iter_encoded()
    if isinstance(response.response, StreamingBody):
        body = response.response
    made = Response(body, response.status_code, dict(response.headers))
    made.on_close(response.close)
    return made


def _without_slash(context: RequestContext) -> str | None:
    """Returns the URL without a slash too many; None when no route has it."""
    request, adapter = request_ctx.request, request_ctx.url_adapter
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
    query = request.query_string.decode("latin-1")
    return request.host_url.rstrip("/") + path + (f"?{query}" if query else "")
