"""Routes whose modules are imported by their first request.

A start imports what a chat needs. The modules of other routes take memory and part of the start's
time in every server, and most servers never need them.
"""

from collections.abc import Callable, Iterable
from functools import partial

from app.core.api.errors import error_response
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.http.route import Route

Load = Callable[[], Iterable[Route]]
Operation = tuple[tuple[str, ...], str]
"""Methods and path of a route."""


class LateRoute(Route, frozen=True, kw_only=True):
    """A route that has its path and its methods, and gets its handler and docs from `load`."""

    load: Callable[[], Route]

    def loaded(self) -> Route:
        """Imports the module of the route, and returns the route of the module."""
        return self.load()


class RouteGroup:
    """Routes that are loaded together, at the first use of any route."""

    def __init__(self, load: Load, operations: Iterable[Operation]) -> None:
        self._load = load
        self._operations = set(operations)
        self._routes: dict[Operation, Route] = {}

    def route(self, operation: Operation) -> Route:
        """Returns a loaded route. The first call imports the modules of the group.

        Raises:
            LookupError: the loaded routes have other methods and paths than the declared ones.
        """
        if not self._routes:
            routes = self._loaded_routes()
            if not self._routes:  # no other request has loaded them meanwhile
                self._routes = routes
        return self._routes[operation]

    def _loaded_routes(self) -> dict[Operation, Route]:
        routes = {(route.methods, route.path): route for route in self._load()}
        difference = routes.keys() ^ self._operations
        if difference:
            raise LookupError(f"the declared and the loaded routes differ in {difference}")
        return routes


def late_routes(load: Load, *operations: str) -> list[Route]:
    """Returns routes for `operations`, such as "POST /tokenize" or "GET,HEAD /docs".

    `load` imports a module and returns its routes, with exactly these methods and paths. The first
    request for such a route calls it on the event loop, so importing should take less than 20 ms;
    for more modules, `load` calls `import_modules`. It only builds routes: what has effects belongs
    in the hook that is called at the start.
    """
    keys = [_parsed(operation) for operation in operations]
    group = RouteGroup(load, keys)
    return [_late_route(group, key) for key in keys]


def _parsed(operation: str) -> Operation:
    methods, _, path = operation.partition(" ")
    return tuple(methods.split(",")), path


def _late_route(group: RouteGroup, operation: Operation) -> Route:
    def handle(context: RequestContext) -> Response:
        route = group.route(operation)
        context.route = route  # its `on_error` answers errors
        return route.handle(context)

    def on_error(error: Exception) -> Response:
        """Answers an error that precedes the handler, in the shape of the route's family."""
        respond = group.route(operation).on_error or error_response
        return respond(error)

    methods, path = operation
    return LateRoute(
        methods=methods,
        path=path,
        handle=handle,
        on_error=on_error,
        load=partial(group.route, operation),
    )
