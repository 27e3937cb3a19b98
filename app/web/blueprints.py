"""Routes as Flask knows them: one blueprint a family, whose views call the route's function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from flask import Blueprint
from flask.globals import request_ctx
from werkzeug.routing import Rule

from app.http.response import Response
from app.http.route import Route
from app.http.wsgi import CONTEXT

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
