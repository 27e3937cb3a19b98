"""Routes answer the methods that they name and no others, as vLLM's do, and are found at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.routing import Map, MapAdapter, Rule

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
