"""What serving asks of whoever plays generations: the simulation, or later a real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.engine.outputs import Event
from app.engine.request import Generation


class Performance(Protocol):
    """One generation that has been accepted."""

    def fits(self) -> bool:
        """True when it could begin now, were a place free."""

    def start(self, emit: Callable[[Event], None], at_s: float) -> None:
        """Begin: a place was taken at `at_s` (monotonic seconds; arrival, when none had to be waited for).

        Every event goes to `emit`, from the hub or from this call.
        """

    def cancel(self) -> None:
        """Emit nothing more."""


class Performer(Protocol):
    """Plays generations."""

    def prepare(self, generation: Generation) -> Performance:
        """Accept `generation`; called in order of arrival, before a place is free."""
