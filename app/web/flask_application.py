"""Flask around the routes: it serves what the fast path does not, and everything under other workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from typing import Any

from flask import Blueprint, Flask, Request
from flask.globals import request_ctx
from flask.sessions import NullSession, SessionInterface
from flask.wrappers import Response as FlaskResponse
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, MapAdapter, Rule

from app.api.errors import forget_frames, respond_to_error
from app.http.context import RequestContext, current_request
from app.http.response import Response, json_response
from app.http.route import Route
from app.http.wsgi import CONTEXT, context_of
from app.middleware.stack import MiddlewareStack

_VARIABLE = re.compile(r"\{(\w+)\}")
_CONVERTER = re.compile(r"<(?:[^<>:]+:)?([^<>]+)>")


class RouteTable:
    """All routes of an application, found by Flask's rules or by method and path."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, Route] = {}

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_endpoint.values())

    def of(self, rule: Rule) -> Route | None:
        """The route behind a rule; None behind one of whoever embeds the application."""
        return self._by_endpoint.get(rule.endpoint)

    def blueprint(self, name: str, routes: Iterable[Route]) -> Blueprint:
        """A blueprint that serves `routes`, to be registered under `name`."""
        blueprint = Blueprint(name, __name__)
        for number, route in enumerate(routes):
            endpoint = f"route_{number}"
            self._by_endpoint[f"{name}.{endpoint}"] = route
            path = _VARIABLE.sub(r"<\1>", route.path)
            blueprint.add_url_rule(path, endpoint, _view(route), methods=list(route.methods))
        return blueprint


def label_of(rule: Rule) -> str:
    """The path of a rule as vLLM writes it, with its variable parts in braces."""
    return _CONVERTER.sub(r"{\1}", rule.rule)


def _view(route: Route) -> Callable[..., Response]:
    def view(**params: str) -> Response:
        return route.handle(request_ctx.request.environ[CONTEXT])

    return view


StaticRules = dict[tuple[str, str], Rule]


class ExactRule(Rule):
    """A rule without the HEAD and OPTIONS that Flask would add to it."""

    def __init__(self, string: str, methods: Any = None, **options: Any) -> None:
        super().__init__(string, methods=methods, **options)
        if self.methods is not None and methods is not None:
            self.methods = {method.upper() for method in methods} - {"OPTIONS"}

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        """What makes a URL of the rule is compiled when somebody asks for one: half the work of a rule."""
        compiled = cache(partial(super()._compile_builder, append_unknown))

        def build(rule: Rule, **values: object) -> tuple[str, str]:
            return compiled()(rule, **values)

        return build


def static_rules(routes: Map) -> StaticRules:
    """The rules of `routes` without variable parts, by path and method."""
    rules = [rule for rule in routes.iter_rules() if not rule.arguments]
    return {(rule.rule, method): rule for rule in rules for method in rule.methods or ()}


class DirectAdapter(MapAdapter):
    """Finds static rules by a look into `rules`; the general search, with its errors, is for the rest.

    The general search costs ten times as much and leaves cyclic garbage with every request.
    """

    def __init__(self, routes: Map, rules: StaticRules, scheme: str, path: str, method: str) -> None:
        super().__init__(routes, "localhost", "/", "", scheme, path, method)
        self._rules = rules

    def match(self, *args: Any, return_rule: bool = False, **options: Any) -> Any:
        rule = self._rules.get((self.path_info, self.default_method)) if return_rule and not args else None
        if rule is not None:
            return rule, {}
        if self.path_info.startswith("//"):  # which the general search would take for a single slash
            raise NotFound
        return super().match(*args, return_rule=return_rule, **options)  # type: ignore[call-overload]


class NoSessions(SessionInterface):
    """Nobody logs in here."""

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return NO_SESSION

    def save_session(self, app: Flask, session: object, response: FlaskResponse) -> None:
        """There is nothing to save."""


METRICS = "/metrics"
NO_SESSION = NullSession()


class FlaskApplication(Flask):
    """Routes as blueprints, middleware around them, and nothing of Flask's that nobody uses."""

    url_rule_class: type[Rule] = ExactRule
    session_interface = NoSessions()

    def __init__(self, middleware: MiddlewareStack, new_id: Callable[[], str], root_path: str = "") -> None:
        """`new_id` makes the id of a request that has none; `root_path` may stand in front of every path."""
        super().__init__("app", static_folder=None)
        self.url_map.merge_slashes = False
        self.middleware = middleware
        self._new_id = new_id
        self._root_path = root_path
        self.routes = RouteTable()
        self.register_error_handler(HTTPException, self._http_error)
        self.register_error_handler(Exception, self._error)

    def add_routes(self, name: str, routes: Iterable[Route]) -> None:
        """Serve `routes` as a blueprint of this name."""
        self.register_blueprint(self.routes.blueprint(name, routes))

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes depend on path and method only, so nothing else of the environment is looked at."""
        if request is None:  # nobody asks for the URL of a route
            return None
        context = request.environ.get(CONTEXT)
        if context is None:
            context = request.environ[CONTEXT] = context_of(request.environ)
        context.new_id = self._new_id
        if self._root_path and context.path.startswith(f"{self._root_path}/"):
            context.path = context.path.removeprefix(self._root_path)
        # Where vLLM mounts an application that looks at no more of the path.
        path = METRICS if context.path.startswith(METRICS) else context.path
        return DirectAdapter(self.url_map, self._static_rules, context.scheme, path, context.method)

    @cached_property
    def _static_rules(self) -> StaticRules:
        return static_rules(self.url_map)

    def preprocess_request(self) -> Any:
        """The middleware, once it is known which route is meant."""
        context = current_context()
        current_request.set(context)
        request = request_ctx.request
        if request.url_rule is not None:
            context.route = self.routes.of(request.url_rule)
            context.label = context.route.path if context.route else label_of(request.url_rule)
            context.params = request.view_args or {}
        response = self.middleware.begin_general(context)
        if response is None and self.before_request_funcs:  # of whoever embeds the application
            return super().preprocess_request()
        return response

    def make_response(self, rv: Any) -> Response:  # type: ignore[override]  # a WSGI callable, as Flask's own
        """Our routes return responses; views and hooks of who embeds the application, what Flask allows."""
        if isinstance(rv, Response):
            return rv
        made = super().make_response(rv)
        body = made.get_data() if made.is_sequence else made.iter_encoded()
        response = Response(body, made.status_code, dict(made.headers))
        response.on_close(made.close)
        return response

    def process_response(self, response: Any) -> Any:
        if self.after_request_funcs:
            response = super().process_response(response)
        self.middleware.end(current_context(), response)
        return response

    def do_teardown_request(self, *error: BaseException | None) -> None:
        """Nothing is left to tear down: who has something to close is told by `Response.on_close`."""

    def do_teardown_appcontext(self, *error: BaseException | None) -> None:
        """As for a request."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """No view here is a coroutine; Flask would look at each, for every request."""
        return func

    def _error(self, error: Exception) -> Response:
        return respond_to_error(error, current_context())

    def _http_error(self, error: HTTPException) -> Response:
        """What routing refuses keeps the web framework's own body (vllm-api.md section 4)."""
        forget_frames(error)
        if isinstance(error, NotFound) and (moved := _without_slash()):
            return Response(b"", 307, {"Location": moved})
        if isinstance(error, MethodNotAllowed) and current_context().path == "/":
            error = NotFound()  # as in vLLM, which has no such path: GET / is ours
        response = json_response({"detail": error.name}, error.code or 500)
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        if current_context().method == "HEAD":
            response.without_body()
        return response


def current_context() -> RequestContext:
    """The context of the request that Flask serves now."""
    context = request_ctx.request.environ[CONTEXT]
    assert isinstance(context, RequestContext)
    return context


def _without_slash() -> str | None:
    """Where a path with a slash too many should have gone; None when there is no such route."""
    request, adapter = request_ctx.request, request_ctx.url_adapter
    path = request.path.rstrip("/")
    if not path or path == request.path or adapter is None:
        return None
    try:
        rule, _ = adapter.match(path, method=request.method, return_rule=True)
        current_context().label = f"{label_of(rule)}/"
    except MethodNotAllowed:
        pass
    except HTTPException:
        return None
    query = request.query_string.decode("latin-1")
    return request.host_url.rstrip("/") + path + (f"?{query}" if query else "")
