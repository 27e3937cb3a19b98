"""The middleware stack: order, early responses, and inactive middleware."""

import re

import pytest

from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.core.server.http.route import get
from app.core.server.middleware.stack import Middleware, MiddlewareStack
from tests.application import application, empty_response, request

Ran = list[str]


class Named(Middleware):
    """Writes down when it begins and ends; `answer` or `error` are what it begins with."""

    def __init__(
        self, name: str, ran: Ran, answer: Response | None = None, error: Exception | None = None
    ) -> None:
        self.name = name
        self.ran = ran
        self.answer = answer
        self.error = error

    def begin(self, context: RequestContext) -> Response | None:
        self.ran.append(f"{self.name} begins")
        if self.error is not None:
            raise self.error
        return self.answer

    def end(self, context: RequestContext, response: Response) -> None:
        self.ran.append(f"{self.name} ends {response.status}")


def exchange(stack: MiddlewareStack, status: int = 200) -> Response | None:
    """One request, and a response of `status` that leaves unless a middleware gives one."""
    context = request()
    early_response = stack.begin(context)
    stack.end(context, early_response or Response(status=status))
    return early_response


def test_end_hooks_run_in_reverse_order_even_if_a_begin_hook_responds() -> None:
    ran: Ran = []
    assert exchange(MiddlewareStack([Named("a", ran), Named("b", ran), Named("c", ran)])) is None
    assert ran == ["a begins", "b begins", "c begins", "c ends 200", "b ends 200", "a ends 200"]
    del ran[:]
    answer = Response(status=401)
    assert (
        exchange(MiddlewareStack([Named("a", ran), Named("b", ran, answer), Named("c", ran)]))
        is answer
    )
    assert ran == ["a begins", "b begins", "c ends 401", "b ends 401", "a ends 401"]


def test_begin_hook_runs_only_for_requests_with_the_header_that_it_names() -> None:
    ran: Ran = []
    named = Named("one", ran)
    named.header = "x-one"
    stack = MiddlewareStack([named, Named("two", ran)])
    stack.begin(request())
    assert ran == ["two begins"]
    del ran[:]
    stack.begin(request(headers={"x-one": ""}))
    assert ran == ["one begins", "two begins"]


def test_begin_hook_runs_only_for_routes_with_the_paths_that_it_names() -> None:
    ran: Ran = []
    named = Named("one", ran)
    named.route_paths = re.compile("/one")
    stack = MiddlewareStack([named, Named("two", ran)])
    context = request("/one/1")
    stack.begin(context)
    assert ran == ["two begins"], "no route serves the request"
    del ran[:]
    context.route = get("/two", empty_response)
    stack.begin(context)
    assert ran == ["two begins"]
    del ran[:]
    context.route = get("/one/{number}", empty_response)
    stack.begin(context)
    assert ran == ["one begins", "two begins"]


def test_middleware_switched_during_a_request_affects_only_later_requests() -> None:
    for active in (True, False):
        ran: Ran = []
        single = Named("one", ran)
        single.active = active
        stack = MiddlewareStack([single])
        context = request()
        stack.begin(context)
        single.active = not active
        stack.refresh()
        stack.end(context, Response())
        assert ran == (["one begins", "one ends 200"] if active else [])


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/none", 404), ("/fails", 405), ("/fails", 500), ("/refuses", 429)],
)
def test_every_response_passes_through_the_middleware_stack_once(path: str, status: int) -> None:
    ran: Ran = []

    def fails(context: RequestContext) -> Response:
        raise RuntimeError

    def refuses(context: RequestContext) -> Response:
        raise ApiError(429, "RateLimitError", "later")

    routes = [get("/", empty_response), get("/fails", fails), get("/refuses", refuses)]
    client = application(routes, Named("a", ran), Named("b", ran)).test_client()
    method = "PUT" if status == 405 else "GET"
    assert client.open(path, method=method).status_code == status
    assert ran == ["a begins", "b begins", f"b ends {status}", f"a ends {status}"]
