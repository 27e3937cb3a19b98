"""Functions that a program has added to the Flask application, such as hooks of an extension.

Requests may skip Flask only where it would call nothing but our own functions.
"""

from collections.abc import Collection, Mapping
from types import FunctionType
from typing import Any

from flask import Flask, signals
from flask import app as flask_app

SIGNALS = (
    signals.appcontext_popped,
    signals.appcontext_pushed,
    signals.appcontext_tearing_down,
    signals.got_request_exception,
    signals.request_finished,
    signals.request_started,
    signals.request_tearing_down,
)
METHODS = (
    "wsgi_app",
    "full_dispatch_request",
    "preprocess_request",
    "dispatch_request",
    "finalize_request",
    "process_response",
    "handle_exception",
    "handle_user_exception",
)
"""Methods of Flask that programs wrap, for example to trace requests."""
Hooks = Mapping[Any, Any]
"""Functions by the name of their blueprint; the key None stands for all requests."""


class FlaskFunctions:
    """The functions that Flask calls around each request of `app`, when this object is created."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._original = self._applying(())
        self._original_teardowns = list(app.teardown_appcontext_funcs)

    def _applying(self, blueprints: Collection[str]) -> list[dict[Any, Any]]:
        """Returns copies of the functions for all requests, and for the given blueprints."""
        app = self._app
        kinds: tuple[Hooks, ...] = (
            app.before_request_funcs,
            app.after_request_funcs,
            app.teardown_request_funcs,
            app.url_value_preprocessors,
            app.error_handler_spec,
        )
        names = {None, *blueprints}
        return [
            {name: _copied(kind[name]) for name in names.intersection(kind) if kind[name]}
            for kind in kinds
        ]

    def are_extended(self, blueprints: Collection[str]) -> bool:
        """Returns whether functions were added that concern requests of `blueprints`.

        Those are hooks, error handlers, receivers of signals, replaced methods and sessions.
        """
        app = self._app
        if app.secret_key or "session_interface" in vars(app) or _has_replaced_methods(app):
            return True
        if app.teardown_appcontext_funcs != self._original_teardowns:
            return True
        if any(signal.receivers for signal in SIGNALS):
            return True
        return self._applying(blueprints) != self._original


def _has_replaced_methods(app: Flask) -> bool:
    """Returns whether methods or classes were replaced in `app`, or Flask's methods for all."""
    if any(callable(getattr(Flask, name, None)) for name in vars(app)):
        return True
    for name in METHODS:
        method = vars(Flask)[name]
        if type(method) is not FunctionType or method.__code__.co_filename != flask_app.__file__:
            return True
    return False


def _copied(functions: Any) -> Any:
    """Returns a copy of a list, or of nested dictionaries without empty ones."""
    if isinstance(functions, Mapping):
        return {key: _copied(value) for key, value in functions.items() if value}
    if isinstance(functions, list):
        return list(functions)
    return functions
