"""Failure injection: stores the fault of a request, and carries it out.

`FaultSources` decides which requests fail. Its module is imported with the first rule, failure
rate, plugin or header: most servers inject no faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING

from app.core.api.fault import FaultInjection, RequestFacts
from app.core.server.http.context import RequestContext
from app.core.server.http.fault import Fault
from app.core.server.http.response import Response
from app.extensions.faults.limits import MAX_HEADER_RULES, RULE_BYTES
from app.extensions.faults.settings import FailureSettings
from app.shared.client_names import client_name
from config.settings import ModelSettings, Settings

if TYPE_CHECKING:
    from app.extensions.faults.sources import FaultSource, FaultSources

BYTES_PER_TOKEN = 4


class FaultInjector(FaultInjection):
    """Makes requests fail. `now` returns monotonic seconds."""

    limit_bytes = MAX_HEADER_RULES * RULE_BYTES

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self.active = False
        """True after the first injected fault."""
        self._rng = rng
        self._now = now
        self._plugin_sources: Sequence[FaultSource] = ()
        self._failures = FailureSettings()
        self._model = ModelSettings()
        self.is_quiet = True
        """True while only a header can request a fault; changes only with the settings."""

    @cached_property
    def _sources(self) -> FaultSources:
        from app.extensions.faults.sources import FaultSources

        return FaultSources(self._rng, self._now)

    @property
    def _has_sources(self) -> bool:
        return "_sources" in vars(self)

    def use_sources(self, sources: Sequence[FaultSource]) -> None:
        """Asks `sources`, which come from plugins, about each request, before rules and chance."""
        self._plugin_sources = sources
        self.is_quiet = self._asks_no_source()

    def _asks_no_source(self) -> bool:
        if self._failures.failure_injection_rate or self._plugin_sources:
            return False
        return not self._has_sources or not self._sources.has_rules

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the rules of headers."""
        if not self._has_sources:
            return 0
        return self._sources.header_rule_count * RULE_BYTES

    def on_settings(self, settings: Settings) -> None:
        """Applies `settings`; unchanged rules keep their counters."""
        self._failures = settings.section(FailureSettings)
        self._model = settings.model
        rules = self._failures.fault_rules
        if self._has_sources or rules:
            self._sources.use_rules(rules)
        self.is_quiet = self._asks_no_source()

    def restart(self) -> None:
        """Resets the counters of all rules."""
        self.active = False
        if self._has_sources:
            self._sources.restart()

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault of status 400."""
        return self._sources.fault_for(request, self._plugin_sources, self._failures, self._model)

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decides about a decoded generation request, or raises `ApiError` as `apply`."""
        context.is_generation = True
        headers = context.headers
        if self.is_quiet and not ("x-fault" in headers or "x-return-error" in headers):
            return
        fault = self.fault_for(facts_of(context, model))
        if fault is not None:
            self.apply(context, fault)

    def apply(self, context: RequestContext, fault: Fault) -> None:
        """Stores the fault in the request's context.

        Raises:
            ApiError: The fault is an error instead of an answer.
        """
        context.fault = fault
        context.delays = fault.delays
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error

    def damage(self, response: Response, context: RequestContext) -> Response:
        """Returns `response` with the headers and the damage of the request's fault."""
        if context.fault is None:
            return response
        from app.extensions.faults.damage import damage

        return damage(response, context.fault, context)


def facts_of(context: RequestContext, model: str | None) -> RequestFacts:
    """Returns the parts of a request that rules compare."""

    def header(name: str) -> str | None:
        return context.headers.get(name.lower())

    return RequestFacts(
        path=context.path if context.route is None else context.route.path,
        model=model,
        header=header,
        client=partial(client_name, context),
        tokens=(context.content_length or 0) / BYTES_PER_TOKEN,
    )
