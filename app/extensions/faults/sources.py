"""Decides if and how a request fails: by headers, plugins, rules and chance."""

import re
from collections.abc import Callable, Sequence
from random import Random

from cachetools import LRUCache
from msgspec.structs import replace

from app.core.api.fault import RequestFacts
from app.core.server.http.errors import ApiError, bad_request, sentence
from app.core.server.http.fault import Fault
from app.extensions.faults.fault import FaultScript, error_type, failure
from app.extensions.faults.fault_rules import parse_fault, parse_fault_rules
from app.extensions.faults.limits import MAX_HEADER_RULES
from app.extensions.faults.settings import FAILURE_TYPES, FailureSettings
from config.settings import ModelSettings

RETURN_ERROR = "X-Return-Error"
FAULT = "X-Fault"
INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
MAX_HEADER_CHARACTERS = 2048
"""Longest X-Fault header."""

FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request, or None."""


class FaultSources:
    """Asks the sources of faults in turn. `now` returns monotonic seconds.

    The first source with a fault decides: X-Return-Error, X-Fault, plugins, rules, the failure
    rate. Later sources do not see the request.
    """

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self._rng = rng
        self._now = now
        self._rules: str | None = None
        self._script: FaultScript | None = None
        self._header_rules: LRUCache[tuple[str, str], FaultScript] = LRUCache(MAX_HEADER_RULES)
        """Rules of X-Fault headers, by client and text."""

    @property
    def has_rules(self) -> bool:
        """True if the settings have rules."""
        return self._script is not None

    @property
    def header_rule_count(self) -> int:
        """Number of the rules of headers."""
        return len(self._header_rules)

    def use_rules(self, rules: str | None) -> None:
        """Applies the rules of the settings; unchanged rules keep their counters."""
        if rules != self._rules:
            self._rules = rules
            self._read_rules(self._script)

    def restart(self) -> None:
        """Resets the counters of all rules."""
        self._read_rules(None)
        self._header_rules.clear()

    def _read_rules(self, previous: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = None
        if rules:
            self._script = FaultScript(rules, self._now(), previous)

    def fault_for(
        self,
        request: RequestFacts,
        plugin_sources: Sequence[FaultSource],
        failures: FailureSettings,
        model: ModelSettings,
    ) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault of status 400."""

        def random_failure(request: RequestFacts) -> Fault | None:
            return self._random_failure(failures, model)

        headers: dict[str, str] = {}
        for source in (
            _return_error,
            self._header_fault,
            *plugin_sources,
            self._rule_fault,
            random_failure,
        ):
            fault = source(request)
            if fault is not None:
                headers |= fault.headers
                if fault.name:
                    return replace(fault, headers=headers)
        if not headers:
            return None
        return Fault(headers=headers)

    def _header_fault(self, request: RequestFacts) -> Fault | None:
        """Applies X-Fault.

        Requests of one client with the same text share one rule and its counters.
        """
        text = request.header(FAULT)
        if not text:
            return None
        key = (request.client(), text)
        script = self._header_rules.get(key)
        try:
            if len(text) > MAX_HEADER_CHARACTERS:
                raise ValueError(f"the header exceeds {MAX_HEADER_CHARACTERS} characters")
            if script is None:
                script = FaultScript([parse_fault(text)], self._now())
                self._header_rules[key] = script
        except ValueError as error:
            return Fault(name="x-fault", error=bad_request(f"{FAULT}: {sentence(error)}"))
        return script.fault_for(request, self._rng, self._now())

    def _rule_fault(self, request: RequestFacts) -> Fault | None:
        if self._script is None:
            return None
        return self._script.fault_for(request, self._rng, self._now())

    def _random_failure(self, failures: FailureSettings, model: ModelSettings) -> Fault | None:
        """Draws one of the configured failure types, or of all, with the rate in percent."""
        rate = failures.failure_injection_rate
        if not rate or self._rng.randint(1, 100) > rate:
            return None
        kind = self._rng.choice(failures.failure_types or FAILURE_TYPES)
        return Fault(name=kind, error=failure(kind, model.model, model.max_model_len))


def _return_error(request: RequestFacts) -> Fault | None:
    """Applies X-Return-Error: an error of this status, or status 400 for an invalid one."""
    text = request.header(RETURN_ERROR)
    if not text:
        return None
    return Fault(name="return-error", error=_error_of_status(text))


def _error_of_status(text: str) -> ApiError:
    if not INTEGER.fullmatch(text):
        return bad_request(f"{RETURN_ERROR} is {text[:40]!r}, which is not an integer.")
    status = int(text)
    if not 400 <= status <= 599:
        return bad_request(f"{RETURN_ERROR} is {status}; it can be from 400 to 599.")
    message = f"{RETURN_ERROR} asked for this status, {status}."
    return ApiError(status, error_type(status), message)
