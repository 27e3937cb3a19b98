"""Routes as Flask knows them: one blueprint a family, whose views call the route's function.

They answer the methods that they name and no others, as vLLM's do, and are found at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

from flask import Blueprint
from flask.globals import request_ctx
from werkzeug.exceptions import NotFound
from werkzeug.routing import Map, MapAdapter, Rule

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
