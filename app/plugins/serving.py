"""What plugins add around requests: middleware, routes, metric families, failures on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from app.faults.fault import DAMAGE, Fault
from app.faults.injector import FaultSource
from app.faults.script import RequestFacts
from app.http.context import RequestContext
from app.http.errors import ApiError, internal
from app.http.response import Response
from app.http.route import Handler, Route
from app.kvcache.memo import Bounded
from app.metrics.exposition import Families
from app.middleware.stack import Middleware
from app.plugins.guard import ON_PURPOSE, Guard, HookFailed
from app.plugins.hooks import FaultHook, MetricsHook
from config.declaration import ConfigError


class GuardedMiddleware(Middleware):
    """A plugin's middleware. Where its `begin` fails the request does: what it checks was not checked."""

    def __init__(self, inner: Middleware, guard: Guard) -> None:
        self._inner, self._guard = inner, guard

    @property
    def active(self) -> bool:  # type: ignore[override]
        return bool(self._inner.active)

    @property
    def most_plain_bytes(self) -> int:  # type: ignore[override]
        return int(self._inner.most_plain_bytes)

    @property
    def caches(self) -> Mapping[str, Bounded]:  # type: ignore[override]
        return self._inner.caches

    def begin(self, context: RequestContext) -> Response | None:
        try:
            return self._guard.call(self._begun, context)
        except HookFailed:
            raise failure(self._guard) from None

    def end(self, context: RequestContext, response: Response) -> None:
        try:
            self._guard.call(self._ended, context, response)
        except HookFailed:
            return
        except ON_PURPOSE as error:  # too late for that
            self._guard.failed(error)

    def _begun(self, context: RequestContext) -> Response | None:
        response = self._inner.begin(context)
        if response is not None and not isinstance(response, Response):
            raise TypeError(f"begin gave {type(response).__name__}, not a Response or None")
        return response

    def _ended(self, context: RequestContext, response: Response) -> None:
        before = response.headers
        response.headers = dict(before)
        try:
            self._inner.end(context, response)
            _check_headers(response.headers)
        except Exception:
            response.headers = before
            raise


def _check_headers(headers: Mapping[str, str]) -> None:
    """TypeError or ValueError for what cannot be sent."""
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else None
        if text is None or not text.isprintable() or not text.isascii():
            raise ValueError(f"header {name!r} has a value that cannot be sent")


def failure(guard: Guard) -> ApiError:
    """The answer to the one request that a plugin has spoilt."""
    return internal(f"The plugin {guard.plugin} failed to handle the request.")


def guarded_route(route: Route, guard: Guard) -> Route:
    """A plugin's route; it is never on the fast path. ConfigError for a path that is none."""
    if not route.path.startswith("/"):
        raise ConfigError(f"plugin {guard.plugin}: path {route.path!r} of a route must begin with a slash")
    return replace(route, handle=_guarded_handle(route.handle, guard), plain=None)


def _guarded_handle(inner: Handler, guard: Guard) -> Handler:
    def handled(context: RequestContext) -> Response:
        response = inner(context)
        if not isinstance(response, Response):
            raise TypeError(f"gave {type(response).__name__}, not a Response")
        _check_headers(response.headers)
        return response

    def handle(context: RequestContext) -> Response:
        try:
            return guard.call(handled, context)
        except HookFailed:
            raise failure(guard) from None

    handle.__doc__ = inner.__doc__
    return handle


def check_free(added: Iterable[Route], taken: Iterable[Route], plugin: str) -> None:
    """ConfigError for a route that is there already, whatever its variable parts are called."""
    seen = {pair for route in taken for pair in _answered(route)}
    for route in added:
        for method, path in _answered(route):
            if (method, path) in seen:
                raise ConfigError(f"plugin {plugin}: route {method} {route.path} is there already")
            seen.add((method, path))


def _answered(route: Route) -> list[tuple[str, str]]:
    parts = ["{}" if part.startswith("{") else part for part in route.path.split("/")]
    return [(method, "/".join(parts)) for method in route.methods]


def guarded_families(hook: MetricsHook, guard: Guard) -> Families:
    """The text of a plugin's families; nothing while it fails, so that all others are still scraped."""
    prefix = guard.plugin.replace("-", "_")

    def text() -> str:
        told = hook()
        for family in text_string_to_metric_families(told):
            if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                raise ValueError(f"family {family.name!r} must begin with {prefix}_")
        return told if told.endswith("\n") or not told else f"{told}\n"

    def families() -> str:
        try:
            return guard.call(text)
        except HookFailed:
            return ""

    return families


def fault_source(hook: FaultHook, guard: Guard) -> FaultSource:
    """A source of failures that has none where the plugin itself fails."""

    def checked(facts: RequestFacts) -> Fault | None:
        fault = hook(facts)
        if fault is None:
            return None
        _check_fault(fault)
        is_named = fault.name or not (fault.error or fault.damage or fault.delays)
        return fault if is_named else fault.named(guard.plugin)

    def source(facts: RequestFacts) -> Fault | None:
        try:
            return guard.call(checked, facts)
        except HookFailed:
            return None

    return source


def _check_fault(fault: object) -> None:
    """TypeError or ValueError for what could not be done to a request."""
    if not isinstance(fault, Fault):
        raise TypeError(f"gave {type(fault).__name__}, not a Fault or None")
    if fault.error is not None and not isinstance(fault.error, ApiError):
        raise TypeError("the error of its Fault is no ApiError")
    if fault.damage is not None and not isinstance(fault.damage, DAMAGE):
        raise TypeError("the damage of its Fault is none of config.fault_rules")
    _check_headers(fault.headers)
    if not all(isinstance(token, int) and 0 <= wait < 1e9 for token, wait in fault.delays):
        raise ValueError("the delays of its Fault are not (token, seconds)")
