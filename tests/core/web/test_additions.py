"""Which requests may skip Flask: none that a program has added something to."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from flask import Blueprint, Flask, Request, request_started
from flask import Response as FlaskResponse
from flask.sessions import SecureCookieSessionInterface

from app.core.server.flask.application import Understudy
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.http.route import get, post
from tests.application import application, empty_response


def things(context: RequestContext) -> Response:
    return Response(b"things")


ROUTES = (get("/things", things), post("/other", empty_response))


def do_nothing(*_: object) -> None:
    """Stands for what a program adds."""


def handle(error: Exception) -> str:
    return "handled"


def add_before_request(app: Flask) -> None:
    app.before_request(do_nothing)


def add_after_request(app: Flask) -> None:
    @app.after_request
    def keep(response: FlaskResponse) -> FlaskResponse:
        return response


def add_teardown(app: Flask) -> None:
    app.teardown_request(do_nothing)


def add_teardown_of_context(app: Flask) -> None:
    app.teardown_appcontext(do_nothing)


def add_preprocessor(app: Flask) -> None:
    app.url_value_preprocessor(do_nothing)


def add_error_handler(app: Flask) -> None:
    app.register_error_handler(ValueError, handle)


def replace_error_handler(app: Flask) -> None:
    app.register_error_handler(Exception, handle)


def wrap(app: Flask) -> None:
    inner = app.wsgi_app
    app.wsgi_app = partial(inner)  # type: ignore[method-assign]


def set_secret(app: Flask) -> None:
    app.secret_key = "a secret"


def replace_method(app: Flask) -> None:
    inner = app.dispatch_request
    app.dispatch_request = partial(inner)  # type: ignore[method-assign]


def replace_request_class(app: Flask) -> None:
    app.request_class = type("OtherRequest", (Request,), {})


def replace_sessions(app: Flask) -> None:
    app.session_interface = SecureCookieSessionInterface()


ADDITIONS = (
    add_before_request,
    add_after_request,
    add_teardown,
    add_teardown_of_context,
    add_preprocessor,
    add_error_handler,
    replace_error_handler,
    wrap,
    replace_method,
    replace_request_class,
    replace_sessions,
    set_secret,
)


@pytest.mark.parametrize("add", ADDITIONS)
def test_flask_hook_disables_the_direct_path_of_all_routes(add: Callable[[Any], None]) -> None:
    app = application(ROUTES)
    add(app)
    assert app.take_direct_routes() == []


@pytest.mark.parametrize("name", ("wsgi_app", "dispatch_request", "process_response"))
def test_wrapped_flask_method_disables_the_direct_path(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app = application(ROUTES)
    inner = getattr(Flask, name)

    @wraps(inner)
    def traced(*arguments: Any) -> Any:
        return inner(*arguments)

    monkeypatch.setattr(Flask, name, traced)
    assert app.take_direct_routes() == []


def view() -> str:
    return "a view of Flask"


def test_only_routes_without_variables_use_the_direct_path() -> None:
    app = application([*ROUTES, get("/things/{name}", empty_response)])
    assert [route.path for route in app.take_direct_routes()] == ["/things", "/other"]


def test_blueprint_with_hooks_keeps_other_routes_on_the_direct_path() -> None:
    app = application(ROUTES)
    other = Blueprint("other", __name__)
    other.before_request(do_nothing)
    other.add_url_rule("/mine", "mine", view)
    app.register_blueprint(other)
    assert len(app.take_direct_routes()) == 2


def test_flask_signal_receiver_disables_the_direct_path() -> None:
    app = application(ROUTES)

    def receive(sender: Flask, **arguments: object) -> None:
        """Receives nothing in this test."""

    with request_started.connected_to(receive):
        assert app.take_direct_routes() == []


def test_route_whose_view_is_replaced_does_not_use_the_direct_path() -> None:
    app = application(ROUTES)
    app.view_functions["test.route_0"] = view
    assert [route.path for route in app.take_direct_routes()] == ["/other"]

    app = application(ROUTES)
    app.add_url_rule("/things", "new", view, methods=["GET"])
    assert [route.path for route in app.take_direct_routes()] == ["/other"]


def test_flask_hooks_added_after_the_first_request_are_rejected() -> None:
    app: Understudy = application(ROUTES)
    app.take_direct_routes()
    with pytest.raises(AssertionError, match="already handled its first request"):
        add_after_request(app)
