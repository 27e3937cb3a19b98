"""Overloaded at the beginning of each period: 503 with a true Retry-After, as behind a busy
gateway.

python -m app --plugin examples/plugins/rush_hour.py --rush-hour-every 60s --rush-hour-lasts 5s
"""

from math import ceil
from typing import Annotated

from app.plugins import (
    About,
    ApiError,
    Duration,
    Fault,
    FaultHook,
    PluginHost,
    RequestFacts,
    Section,
    hookimpl,
)

API = 1
VERSION = "1.0"


class Settings(Section, frozen=True, kw_only=True):
    """Rush hours."""

    every: Annotated[
        Duration, About("From the beginning of one to that of the next.", live=True)
    ] = 60.0
    lasts: Annotated[Duration, About("How long one lasts.", live=True)] = 5.0


@hookimpl
def fault(host: PluginHost) -> FaultHook:
    begun_s = host.now()

    def overloaded(request: RequestFacts) -> Fault | None:
        at = host.settings
        into_s = (host.now() - begun_s) % at.every if at.every else 0.0
        if into_s >= at.lasts:
            return None
        wait = {"Retry-After": str(ceil(at.lasts - into_s))}
        error = ApiError(503, "ServiceUnavailableError", "It is rush hour.", headers=wait)
        return Fault(name="rush-hour", error=error)

    return overloaded
