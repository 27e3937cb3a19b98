"""Failure injection: decides if and how a request fails."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from cachetools import LRUCache
from msgspec.structs import replace

from app.core.api.fault import Fault, RequestFacts
from app.core.server.http.context import RequestContext, client_name
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import Response
from app.extensions.faults.damage import damage
from app.extensions.faults.fault import FaultScript, error_type, failure
from app.extensions.faults.fault_rules import parse_fault, parse_fault_rules
from app.extensions.faults.settings import FAILURE_TYPES, FailureSettings
from config.settings import ModelSettings, Settings

RETURN_ERROR = "X-Return-Error"
FAULT = "X-Fault"
BYTES_PER_TOKEN = 4
INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
MAX_HEADER_RULES = 500
"""Most rules of X-Fault headers, by last use."""
MAX_HEADER_CHARACTERS = 2048
"""Longest X-Fault header."""
RULE_BYTES = 4096
"""Estimated memory of a rule."""

FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request, or None."""


class FaultInjector:
    """Decides which requests fail. `now` returns monotonic seconds.

    The first source with a fault decides: X-Return-Error, X-Fault, plugins, rules, the failure
    rate. Later sources do not see the request.
    """

    def __init__(
        self, rng: Random, now: Callable[[], float], sources: Sequence[FaultSource] = ()
    ) -> None:
        """`sources` come from plugins."""
        self.active = False
        """True after the first injected fault."""
        self._rng = rng
        self._now = now
        self._sources = tuple(sources)
        self._failures = FailureSettings()
        self._model = ModelSettings()
        self._rules: str | None = None
        self._script: FaultScript | None = None
        self.limit_bytes = MAX_HEADER_RULES * RULE_BYTES
        self._header_rules: LRUCache[tuple[str, str], FaultScript] = LRUCache(MAX_HEADER_RULES)
        """Rules of X-Fault headers, by client and text."""

    def use_sources(self, sources: Sequence[FaultSource]) -> None:
        """Asks `sources` about each request, before rules and chance."""
        self._sources = tuple(sources)

    @property
    def is_quiet(self) -> bool:
        """True when only a header can request a fault; changes only with the settings."""
        rate = self._failures.failure_injection_rate
        return not rate and self._script is None and not self._sources

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the rules of headers."""
        return len(self._header_rules) * RULE_BYTES

    def on_settings(self, settings: Settings) -> None:
        """Applies `settings`; unchanged rules keep their counters."""
        self._failures = settings.section(FailureSettings)
        self._model = settings.model
        rules = self._failures.fault_rules
        if rules != self._rules:
            self._rules = rules
            self._read_rules(self._script)

    def restart(self) -> None:
        """Resets the counters of all rules."""
        self.active = False
        self._read_rules(None)
        self._header_rules.clear()

    def _read_rules(self, previous: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = None
        if rules:
            self._script = FaultScript(rules, self._now(), previous)

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault of status 400."""
        headers: dict[str, str] = {}
        for source in (
            _return_error,
            self._header_fault,
            *self._sources,
            self._rule_fault,
            self._random_failure,
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
                raise ValueError(f"it has more than {MAX_HEADER_CHARACTERS} characters")
            if script is None:
                script = FaultScript([parse_fault(text)], self._now())
                self._header_rules[key] = script
        except ValueError as error:
            return Fault(name="x-fault", error=bad_request(f"{FAULT}: {error}."))
        return script.fault_for(request, self._rng, self._now())

    def _rule_fault(self, request: RequestFacts) -> Fault | None:
        if self._script is None:
            return None
        return self._script.fault_for(request, self._rng, self._now())

    def _random_failure(self, request: RequestFacts) -> Fault | None:
        """Draws one of the configured failure types, or of all, with the rate in percent."""
        failures = self._failures
        model = self._model
        rate = failures.failure_injection_rate
        if not rate or self._rng.randint(1, 100) > rate:
            return None
        kind = self._rng.choice(failures.failure_types or FAILURE_TYPES)
        return Fault(name=kind, error=failure(kind, model.model, model.max_model_len))

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
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error

    def damage(self, response: Response, fault: Fault | None, context: RequestContext) -> Response:
        """Returns `response` with the headers and the damage of a fault."""
        return damage(response, fault, context)


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
