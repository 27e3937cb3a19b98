"""Failures on purpose where requests for generation enter: the one decision about each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from app.faults.fault import Fault
from app.faults.plan import FaultPlan
from app.faults.script import RequestFacts
from app.http.context import RequestContext, client_name
from config.settings import Settings

BYTES_PER_TOKEN = 4


class FaultInjector:
    """Decides by its plan what goes wrong with a request. `now` gives monotonic seconds."""

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self.plan = FaultPlan(rng, now)
        self.active = False
        """True as soon as something went wrong on purpose."""

    def on_settings(self, settings: Settings) -> None:
        """Work by `settings` from now on."""
        self.plan.on_settings(settings)

    @property
    def is_quiet(self) -> bool:
        """True when nothing goes wrong but what a request itself asks for; changes with the settings only."""
        return self.plan.is_quiet

    def spares(self, context: RequestContext) -> bool:
        """True when nothing can go wrong with the request: no rule is set, and it asks for no failure."""
        headers = context.headers
        return self.plan.is_quiet and not ("x-fault" in headers or "x-return-error" in headers)

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decide about a request for generation that has been decoded, and keep its `Fault` in the context.

        ApiError when it is to get an error instead of an answer.
        """
        context.is_generation = True
        if self.spares(context):
            return
        facts = RequestFacts(
            context.path,
            model,
            lambda name: context.headers.get(name.lower()),
            partial(client_name, context),
            (context.content_length or 0) / BYTES_PER_TOKEN,
        )
        fault = self.plan.fault_for(facts)
        if fault is None:
            return
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error

    def restart(self) -> None:
        """Rules count from their first request again."""
        self.active = False
        self.plan.restart()


def fault_of(context: RequestContext) -> Fault | None:
    """What is to go wrong with a request; None for nearly all."""
    return context.kept(Fault)
