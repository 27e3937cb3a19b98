"""Overload at the beginning of each period: 503 with a Retry-After, like a busy gateway.

understudy --plugin examples/plugins/rush_hour.py --rush-hour-every 60s --rush-hour-lasts 5s
"""

from collections.abc import Callable
from math import ceil
from typing import Annotated

from app.plugins import About, ApiError, Duration, Fault, Plugin, RequestFacts, Section, ServerParts

API = 2
VERSION = "1.0"


class RushHourSettings(Section, frozen=True, kw_only=True):
    """Rush hours."""

    every: Annotated[Duration, About("Time from one rush hour to the next.", live=True)] = 60.0
    lasts: Annotated[Duration, About("Length of a rush hour.", live=True)] = 5.0


class RushHour(Plugin):
    """Rejects requests at the beginning of each period."""

    name = "rush-hour"
    Settings = RushHourSettings

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._start_s = self.now()

    def fault(self) -> Callable[[RequestFacts], Fault | None]:
        """Returns the function that refuses requests."""
        return self._overload

    def _overload(self, facts: RequestFacts) -> Fault | None:
        settings = self.settings
        elapsed_s = (self.now() - self._start_s) % settings.every if settings.every else 0.0
        if elapsed_s >= settings.lasts:
            return None
        headers = {"Retry-After": str(ceil(settings.lasts - elapsed_s))}
        error = ApiError(503, "ServiceUnavailableError", "It is rush hour.", headers=headers)
        return Fault(name="rush-hour", error=error)


EXTENSION = RushHour
