"""Failure injection: decides if and how a generation request fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from sys import getsizeof

from cachetools import LRUCache

from app.serving.faults.fault import Fault, draw_failure, failure, returned_error
from app.serving.faults.script import FaultScript, RequestFacts
from app.serving.http.context import RequestContext, client_name
from app.serving.http.errors import bad_request
from config.fault_rules import parse_fault, parse_fault_rules
from config.settings import Settings

RETURN_ERROR, FAULT = "X-Return-Error", "X-Fault"
BYTES_PER_TOKEN = 4
LIMIT_BYTES = 2**20
"""Most memory of the rules of X-Fault headers, in bytes: about 400 rules with their counters."""
ENTRY_BYTES, FIELD_BYTES = 2048, 64
"""Bytes of a cache entry without its texts, and of each field of its rule. The rule repeats the header's
text.
"""


FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request; None for no fault."""


class FaultInjector:
    """Decides which requests fail. `now` returns monotonic seconds.

    The first source with a fault decides: X-Return-Error, X-Fault, plugins, rules, chance. Later sources do
    not see the request.
    """

    def __init__(self, rng: Random, now: Callable[[], float], sources: Sequence[FaultSource] = ()) -> None:
        """`sources` come from plugins."""
        self.active = False
        """True after the first injected fault."""
        self._rng = rng
        self._now = now
        self._sources = tuple(sources)
        self._rate = 0
        self._kinds: tuple[str, ...] = ()
        self._model, self._context = "", 0
        self._rules: str | None = None
        self._script: FaultScript | None = None
        self.limit_bytes = LIMIT_BYTES
        self._header_scripts: LRUCache[tuple[str, str], FaultScript]
        """Rules of X-Fault headers, by client and text."""
        self._header_scripts = LRUCache(LIMIT_BYTES, getsizeof=lambda script: script.size_bytes)

    @property
    def is_quiet(self) -> bool:
        """True when only faults requested by a header can occur; changes with the settings only."""
        return not self._rate and self._script is None and not self._sources

    @property
    def size_bytes(self) -> int:
        return int(self._header_scripts.currsize)

    def on_settings(self, settings: Settings) -> None:
        """Applies `settings`; unchanged rules keep their counters."""
        failures = settings.failures
        self._rate, self._kinds = failures.failure_injection_rate, failures.failure_types
        self._model, self._context = settings.model.model, settings.model.max_model_len
        if failures.fault_rules != self._rules:
            self._rules = failures.fault_rules
            self._work_by(self._script)

    def restart(self) -> None:
        """Restarts the counters of all rules and forgets the rules of headers."""
        self.active = False
        self._work_by(None)
        self._header_scripts.clear()

    def _work_by(self, before: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = FaultScript(rules, self._now(), before) if rules else None

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault, too: 400."""
        headers: dict[str, str] = {}
        for source in (self._returned, self._asked_for, *self._sources, self._scripted, self._drawn):
            fault = source(request)
            if fault is not None:
                headers |= fault.headers
                if fault.name:
                    return fault.with_headers(headers)
        return Fault(headers=headers) if headers else None

    def _returned(self, request: RequestFacts) -> Fault | None:
        asked = request.header(RETURN_ERROR)
        return Fault(name="return-error", error=returned_error(asked)) if asked else None

    def _asked_for(self, request: RequestFacts) -> Fault | None:
        """Applies X-Fault. Requests of one client with the same text share one rule and its counters."""
        text = request.header(FAULT)
        if not text:
            return None
        try:
            script = self._header_script(request.client(), text)
        except ValueError as error:
            return Fault(name="x-fault", error=bad_request(f"{FAULT}: {error}."))
        return script.fault_for(request, self._rng, self._now())

    def _header_script(self, client: str, text: str) -> FaultScript:
        """Returns the rule of `client` with this text. ValueError for an invalid text."""
        script = self._header_scripts.get((client, text))
        if script is None:
            script = FaultScript([parse_fault(text)], self._now(), size_bytes=_entry_bytes(client, text))
            if script.size_bytes <= self.limit_bytes:
                self._header_scripts[client, text] = script
        return script

    def _scripted(self, request: RequestFacts) -> Fault | None:
        return None if self._script is None else self._script.fault_for(request, self._rng, self._now())

    def _drawn(self, request: RequestFacts) -> Fault | None:
        kind = draw_failure(self._rate, self._kinds, self._rng)
        return Fault(name=kind, error=failure(kind, self._model, self._context)) if kind else None

    def exempt(self, context: RequestContext) -> bool:
        """True when no fault can occur: no rule is set, and the request has no fault header."""
        headers = context.headers
        return self.is_quiet and not ("x-fault" in headers or "x-return-error" in headers)

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decides about a decoded generation request, and keeps its `Fault` in the context.

        ApiError when the fault is an error instead of an answer.
        """
        context.is_generation = True
        if self.exempt(context):
            return
        facts = RequestFacts(
            context.path,
            model,
            lambda name: context.headers.get(name.lower()),
            partial(client_name, context),
            (context.content_length or 0) / BYTES_PER_TOKEN,
        )
        fault = self.fault_for(facts)
        if fault is not None:
            self.apply(context, fault)

    def apply(self, context: RequestContext, fault: Fault) -> None:
        """Keeps the fault in the request's context. ApiError when the fault is an error instead of an
        answer.
        """
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error


def _entry_bytes(client: str, text: str) -> int:
    return ENTRY_BYTES + getsizeof(client) + 2 * getsizeof(text) + FIELD_BYTES * text.count(":")


def fault_of(context: RequestContext) -> Fault | None:
    return context.kept(Fault)
