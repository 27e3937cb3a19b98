"""Routes whose modules are imported by the first request to one of them."""

from collections.abc import Callable

import gevent
import pytest

from app.core.api.errors import respond_to_error
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.late_routes import late_routes
from app.core.server.http.response import Response
from app.core.server.http.route import Route, get, post


def context_for(route: Route) -> RequestContext:
    return RequestContext(
        method=route.methods[0],
        path=route.path,
        target=route.path,
        headers={},
        client="",
        arrival_s=0.0,
        route=route,
    )


def view_a(context: RequestContext) -> Response:
    return Response(b"a")


def view_b(context: RequestContext) -> Response:
    return Response(b"b")


def error_of_b(error: Exception) -> Response:
    return Response(b"error of b", 500)


def loader(calls: list[str], load_s: float | None = None) -> Callable[[], list[Route]]:
    """A loader of two routes; it lets others run for `load_s`."""

    def load() -> list[Route]:
        calls.append("load")
        if load_s is not None:
            gevent.sleep(load_s)
        return [get("/a", view_a), post("/b", view_b, on_error=error_of_b)]

    return load


def test_first_request_loads_all_lazy_routes_of_a_group_once() -> None:
    calls: list[str] = []
    a, b = late_routes(loader(calls), "GET /a", "POST /b")
    assert (a.methods, a.path, b.methods, b.path) == (("GET",), "/a", ("POST",), "/b")
    assert not calls
    assert a.handle(context_for(a)).body == b"a"
    assert b.handle(context_for(b)).body == b"b"
    assert a.loaded() is a.loaded() and calls == ["load"]


def test_handling_a_request_replaces_its_lazy_route_with_the_loaded_route() -> None:
    _, b = late_routes(loader([]), "GET /a", "POST /b")
    context = context_for(b)
    b.handle(context)
    assert context.route is b.loaded()
    assert context.route is not None and context.route.on_error is not None


def test_lazy_route_formats_its_errors_as_the_loaded_route_does() -> None:
    a, b = late_routes(loader([]), "GET /a", "POST /b")
    assert respond_to_error(bad_request("no"), context_for(b)).body == b"error of b"
    answer = respond_to_error(bad_request("no"), context_for(a))
    assert answer.status == 400
    assert b'"message":"no"' in answer.body


def test_concurrent_first_requests_of_a_lazy_route_use_one_loaded_route() -> None:
    calls: list[str] = []
    a, b = late_routes(loader(calls, load_s=0.01), "GET /a", "POST /b")
    loads = [gevent.spawn(route.loaded) for route in (a, b, a)]
    gevent.joinall(loads, raise_error=True)
    assert len(calls) == 3
    assert loads[0].value is loads[2].value is a.loaded()
    assert loads[1].value is b.loaded()


@pytest.mark.parametrize("operations", [["GET /a"], ["GET /a", "POST /b", "POST /c"], ["GET /b"]])
def test_lazy_route_raises_an_error_if_the_loaded_routes_differ(
    operations: list[str],
) -> None:
    route, *_ = late_routes(loader([]), *operations)
    with pytest.raises(LookupError, match="declared"):
        route.loaded()
