"""Failures on purpose where requests for generation enter: does a request go wrong, and how?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from sys import getsizeof

from cachetools import LRUCache

from app.faults.fault import Fault, draw_failure, failure, returned_error
from app.faults.script import FaultScript, RequestFacts
from app.http.context import RequestContext, client_name
from app.http.errors import bad_request
from config.fault_rules import parse_fault, parse_fault_rules
from config.settings import Settings

RETURN_ERROR, FAULT = "X-Return-Error", "X-Fault"
BYTES_PER_TOKEN = 4
LIMIT_BYTES = 2**20
"""Memory of the scripts of request headers: about 400 of them are remembered, with what they have met."""
ENTRY_BYTES, FIELD_BYTES = 2048, 64
"""Memory of an entry without its texts, the second of which its rule repeats, and of each field of that."""


FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request, if there is one."""


class FaultInjector:
    """Decides what goes wrong with requests. `now` gives monotonic seconds.

    As a request asks (X-Return-Error, X-Fault), as plugins or rules say, or by chance: the first of these
    that has a fault decides; those after it do not see the request.
    """

    def __init__(self, rng: Random, now: Callable[[], float], sources: Sequence[FaultSource] = ()) -> None:
        """`sources` are those of plugins."""
        self.active = False
        """True as soon as something went wrong on purpose."""
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
        """By client and text of the header."""
        self._header_scripts = LRUCache(LIMIT_BYTES, getsizeof=lambda script: script.size_bytes)

    @property
    def is_quiet(self) -> bool:
        """True when nothing goes wrong but what a request itself asks for; changes with the settings only."""
        return not self._rate and self._script is None and not self._sources

    @property
    def size_bytes(self) -> int:
        return int(self._header_scripts.currsize)

    def on_settings(self, settings: Settings) -> None:
        """Works by `settings` from now on; rules that have not changed go on counting."""
        failures = settings.failures
        self._rate, self._kinds = failures.failure_injection_rate, failures.failure_types
        self._model, self._context = settings.model.model, settings.model.max_model_len
        if failures.fault_rules != self._rules:
            self._rules = failures.fault_rules
            self._work_by(self._script)

    def restart(self) -> None:
        """Every rule, those of headers too, counts from its first request again."""
        self.active = False
        self._work_by(None)
        self._header_scripts.clear()

    def _work_by(self, before: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = FaultScript(rules, self._now(), before) if rules else None

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """The fault of a request, or None. A header that makes no sense is one, too: 400."""
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
        """What X-Fault says. Requests of one client with the same text share one script."""
        text = request.header(FAULT)
        if not text:
            return None
        try:
            script = self._header_script(request.client(), text)
        except ValueError as error:
            return Fault(name="x-fault", error=bad_request(f"{FAULT}: {error}."))
        return script.fault_for(request, self._rng, self._now())

    def _header_script(self, client: str, text: str) -> FaultScript:
        """The script of `client` with this text. ValueError, with the reason, when it makes none."""
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
        """True when nothing can go wrong with the request: no rule is set, and it asks for no failure."""
        headers = context.headers
        return self.is_quiet and not ("x-fault" in headers or "x-return-error" in headers)

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decide about a request for generation that has been decoded, and keep its `Fault` in the context.

        ApiError when it is to get an error instead of an answer.
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
        """Let this go wrong with a request. ApiError when it is to get an error instead of an answer."""
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error


def _entry_bytes(client: str, text: str) -> int:
    return ENTRY_BYTES + getsizeof(client) + 2 * getsizeof(text) + FIELD_BYTES * text.count(":")


def fault_of(context: RequestContext) -> Fault | None:
    """Returns the fault of a request; None for nearly all."""
    return context.kept(Fault)
