"""The one decision about a request: does it go wrong, and how?"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from cachetools import LRUCache

from app.faults.fault import Fault
from app.faults.injection import draw, failure, returned_error
from app.faults.script import Asking, Script
from app.http.errors import bad_request
from config.fault_rules import parse_fault, parse_fault_rules
from config.settings import Settings

RETURN_ERROR, FAULT = "X-Return-Error", "X-Fault"
MOST_SCRIPTS = 256
"""Scripts of request headers that are remembered, with what they have met."""


class FaultPlan:
    """What goes wrong: as a request asks (X-Return-Error, X-Fault), as rules say, or by chance.

    The first of these that strikes decides; those after it do not see the request. `now` gives monotonic
    seconds. `apply` follows the settings.
    """

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self._rng = rng
        self._now = now
        self._rate = 0
        self._kinds: tuple[str, ...] = ()
        self._model = ""
        self._text: str | None = None
        self._script: Script | None = None
        self._asked: LRUCache[tuple[str, str], Script] = LRUCache(MOST_SCRIPTS)

    @property
    def is_quiet(self) -> bool:
        """True when nothing goes wrong but what a request asks for."""
        return not self._rate and self._script is None

    def apply(self, settings: Settings) -> None:
        """Work by `settings` from now on; rules that have not changed go on counting."""
        room = settings.failures
        self._rate, self._kinds = room.failure_injection_rate, room.failure_types
        self._model = settings.model.model
        if room.fault_rules != self._text:
            self._text = room.fault_rules
            self.restart()

    def restart(self) -> None:
        """Every rule, those of headers too, counts from its first request again."""
        rules = parse_fault_rules(self._text)
        self._script = Script(rules, self._now()) if rules else None
        self._asked.clear()

    def strike(self, asking: Asking) -> Fault | None:
        """The fault of a request, or None. A header that makes no sense is one, too: 400."""
        headers: dict[str, str] = {}
        for source in (self._returned, self._asked_for, self._scripted, self._drawn):
            fault = source(asking)
            if fault is not None:
                headers |= fault.headers
                if fault.name:
                    return fault.with_headers(headers)
        return Fault(headers=headers) if headers else None

    def _returned(self, asking: Asking) -> Fault | None:
        asked = asking.header(RETURN_ERROR)
        return Fault(name="return-error", error=returned_error(asked)) if asked else None

    def _asked_for(self, asking: Asking) -> Fault | None:
        """What X-Fault says. Requests of one client with the same text share one script."""
        text = asking.header(FAULT)
        if not text:
            return None
        key = asking.client(), text
        script = self._asked.get(key)
        if script is None:
            try:
                script = self._asked[key] = Script([parse_fault(text)], self._now())
            except ValueError as error:
                return Fault(name="x-fault", error=bad_request(f"{FAULT}: {error}."))
        return script.strike(asking, self._rng, self._now())

    def _scripted(self, asking: Asking) -> Fault | None:
        return None if self._script is None else self._script.strike(asking, self._rng, self._now())

    def _drawn(self, asking: Asking) -> Fault | None:
        kind = draw(self._rate, self._kinds, self._rng)
        return Fault(name=kind, error=failure(kind, self._model)) if kind else None
