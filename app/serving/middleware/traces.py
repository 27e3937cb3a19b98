"""Traces requests, from arrival to the end of their answers.

A request has a span, and each of its sequences child spans `queued`, `prefill` and `decode`. The
child spans are made at the end of a sequence, from the times of its outcome: tokens cost nothing.
"""

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.base import Bounded
from app.base.clock.clock import Clock
from app.engine.core.delays import DelayLog
from app.engine.core.explanation import Explanation, explain
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch
from app.serving.http.context import RequestContext
from app.serving.http.response import Response
from app.serving.middleware.http_metrics import METHODS
from app.serving.middleware.stack import Middleware

# Names of span attributes: from vLLM, from OpenTelemetry's HTTP conventions, and one of
# Understudy's.
REQUEST, USAGE, LATENCY = "gen_ai.request.", "gen_ai.usage.", "gen_ai.latency."
RESPONSE_MODEL, FINISH_REASONS = "gen_ai.response.model", "gen_ai.response.finish_reasons"
PROMPT_TOKENS, CACHED_TOKENS = f"{USAGE}prompt_tokens", f"{USAGE}cached_tokens"
COMPLETION_TOKENS = f"{USAGE}completion_tokens"
TIME_TO_FIRST_TOKEN = f"{LATENCY}time_to_first_token"
PARENT = ("traceparent", "tracestate")
CHOICE = "understudy.choice"
"""Index of a sequence among the choices of its request, from 0."""
DELAY = "understudy.delay"
"""Sentence that explains the latency, and prefix of the attributes of events."""
NOTICED_S = 0.05
"""Least time before a place, in seconds, that is explained."""
MOST_EXPLAINING_S, EXPLAINING_SHARE = 0.01, 0.1
"""Most time of explanations in one go, in seconds, and their share of all time:

each takes 1 to 2 ms.
"""

UNTRACED = frozenset(
    ("/health", "/health/ready", "/load", "/metrics", "/ping", "/ready", "/version")
)
"""Paths that probes and scrapers request many times a minute."""
OTHER = "_OTHER"

NAME = "llm_request"
"""Name of a generation request's span, from vLLM."""
QUEUED, PREFILL, DECODE = PHASES = ("queued", "prefill", "decode")
BROKEN = ("abort", "error")
NANOSECONDS = 1_000_000_000


class Traces(Middleware):
    """Traces requests.

    The first one calls `make_tracer`, so the worker does; `caches` hold spans to send.
    """

    def __init__(
        self,
        make_tracer: Callable[[], Tracer],
        clock: Clock,
        delays: DelayLog,
        unix_ns: Callable[[], int] = time.time_ns,
        caches: Mapping[str, Bounded] = MappingProxyType({}),
    ) -> None:
        self.caches, self._make_tracer = caches, make_tracer
        self._clock, self._explain, self._unix_ns = clock, Explainer(delays, clock.now), unix_ns
        self._propagator = TraceContextTextMapPropagator()

    @cached_property
    def _tracer(self) -> Tracer:
        return self._make_tracer()

    def begin(self, context: RequestContext) -> None:
        if context.path in UNTRACED:
            return
        method, name = context.method if context.method in METHODS else OTHER, ""
        attributes = {"http.request.method": method, "url.path": context.path}
        if context.route:
            attributes["http.route"] = context.route.path
            name = f" {context.route.path}"
        zero_ns = self._unix_ns() - int(self._clock.now() * NANOSECONDS)
        given = {key: context.headers[key] for key in PARENT if key in context.headers}
        parent = self._propagator.extract(given, Context())
        start_ns = zero_ns + int(context.arrival_s * NANOSECONDS)
        span = self._tracer.start_span(
            method + name, parent, SpanKind.SERVER, attributes, start_time=start_ns
        )
        if span.is_recording():
            trace = RequestTrace(self._tracer, span, zero_ns, self._explain)
            context.keep(trace)
            context.observers = (*context.observers, trace.watch)

    def end(self, context: RequestContext, response: Response) -> None:
        trace = context.kept(RequestTrace)
        if trace is not None:
            trace.span.set_attribute("http.response.status_code", response.status)
            if response.status >= 500:
                trace.span.set_status(Status(StatusCode.ERROR))
            response.on_close(lambda: trace.end(self._clock.now()))


class Explainer:
    """Explains choices, within a limit of time: hundreds that end at once do not hold the loop."""

    def __init__(self, delays: DelayLog, now: Callable[[], float]) -> None:
        self._delays, self._now = delays, now
        self._left_s, self._since_s = MOST_EXPLAINING_S, now()

    def __call__(self, generation: EngineRequest, outcome: SequenceOutcome) -> Explanation | None:
        """Returns None while the time is used up."""
        begin_s = self._now()
        self._left_s += EXPLAINING_SHARE * (begin_s - self._since_s)
        self._left_s = min(self._left_s, MOST_EXPLAINING_S)
        found = explain(generation, outcome, self._delays) if self._left_s > 0 else None
        self._since_s = self._now()
        self._left_s -= self._since_s - begin_s
        return found


class RequestTrace:
    """The trace of a request with its `span`. `unix_ns` is the Unix time of the clock's zero."""

    def __init__(self, tracer: Tracer, span: Span, unix_ns: int, explainer: Explainer) -> None:
        self.span, self._tracer, self._unix_ns, self._explain = span, tracer, unix_ns, explainer
        self._below = set_span_in_context(span, Context())
        self._tokens = {PROMPT_TOKENS: 0, CACHED_TOKENS: 0, COMPLETION_TOKENS: 0}
        self._latency: dict[str, float] = {}
        self._reasons: list[str] = []
        self._open = 0
        self._answered_s: float | None = None

    def watch(self, generation: EngineRequest) -> Watch:
        """Returns the callback for the outcome of a sequence of this request."""
        if generation.index == 0:
            self.span.update_name(NAME)
            self.span.set_attributes(
                {
                    f"{REQUEST}id": generation.request_id,
                    f"{REQUEST}model": generation.model,
                    RESPONSE_MODEL: generation.model,
                    f"{REQUEST}max_tokens": generation.max_tokens,
                    f"{REQUEST}n": generation.n,
                    f"{USAGE}num_sequences": generation.num_choices,
                }
            )
        self._open += 1
        return partial(self._ended, generation)

    def end(self, now_s: float) -> None:
        self._answered_s = now_s
        if self._open:
            return
        if self._reasons:
            self.span.set_attributes(
                {**self._tokens, **self._latency, FINISH_REASONS: tuple(self._reasons)}
            )
        for reason in set(self._reasons).intersection(BROKEN):
            self.span.set_status(Status(StatusCode.ERROR, reason))
        self.span.end(self._ns(now_s))

    def _ended(self, generation: EngineRequest, outcome: SequenceOutcome) -> None:
        """Adds the outcome of a sequence to the request's span, and makes the spans of its phases."""
        self._reasons.append(outcome.reason)
        self._tokens[COMPLETION_TOKENS] += outcome.tokens
        if generation.index % generation.n == 0:  # choices share their prompt
            self._tokens[PROMPT_TOKENS] += len(generation.prompt_ids)
            self._tokens[CACHED_TOKENS] += outcome.cached_tokens
        for name, seconds in latencies(generation.arrival_s, outcome).items():
            worst = min if name == TIME_TO_FIRST_TOKEN else max
            self._latency[name] = worst(seconds, self._latency.get(name, seconds))
        passed = phases(generation.arrival_s, outcome)
        for phase, (begin_s, end_s) in passed.items():
            facts: dict[str, AttributeValue] = {CHOICE: generation.index}
            if phase == PREFILL:
                facts[PROMPT_TOKENS] = len(generation.prompt_ids)
                facts[CACHED_TOKENS] = outcome.cached_tokens
            elif phase == DECODE:
                facts[COMPLETION_TOKENS], facts[FINISH_REASONS] = outcome.tokens, (outcome.reason,)
            span = self._tracer.start_span(
                phase, self._below, attributes=facts, start_time=self._ns(begin_s)
            )
            if outcome.reason in BROKEN and phase == list(passed)[-1]:
                span.set_status(Status(StatusCode.ERROR, outcome.reason))
            span.end(self._ns(end_s))
        self._add_delays(generation, outcome)
        self._open -= 1
        if self._answered_s is not None:
            self.end(self._answered_s)

    def _add_delays(self, generation: EngineRequest, outcome: SequenceOutcome) -> None:
        """Adds an event for each wait, transfer and preemption, and the sentence of the latest
        choice.
        """
        begun_s = outcome.ended_s if outcome.scheduled_s is None else outcome.scheduled_s
        waited = begun_s - generation.arrival_s >= NOTICED_S
        if not (waited or outcome.preemptions or generation.remote_prefill):
            return
        found = self._explain(generation, outcome)
        if found is None:
            return
        self.span.set_attribute(DELAY, found.sentence)
        for it in found.phases:
            if it.phase in ("queue", "transfer", "preempted"):
                facts: dict[str, AttributeValue] = {
                    CHOICE: generation.index,
                    f"{DELAY}.cause": it.cause,
                    f"{DELAY}.detail": it.detail,
                    f"{DELAY}.seconds": round(it.took_ms / 1000, 4),
                }
                self.span.add_event(
                    it.phase, facts, self._ns(generation.arrival_s + it.from_ms / 1000)
                )

    def _ns(self, moment_s: float) -> int:
        return self._unix_ns + int(moment_s * NANOSECONDS)


def phases(arrival_s: float, outcome: SequenceOutcome) -> dict[str, tuple[float, float]]:
    """Returns begin and end, in monotonic seconds, of each phase that a sequence reached."""
    reached = (arrival_s, outcome.scheduled_s, outcome.first_token_s)
    begun = [moment_s for moment_s in reached if moment_s is not None]
    over_s = None if outcome.reason in BROKEN else outcome.last_token_s
    ends = [*begun[1:], outcome.ended_s if over_s is None else over_s]
    return {
        phase: (begin_s, max(begin_s, end_s))
        for phase, begin_s, end_s in zip(PHASES, begun, ends, strict=False)
    }


def latencies(arrival_s: float, outcome: SequenceOutcome) -> dict[str, float]:
    """Returns vLLM's latencies of a sequence in seconds; phases that it did not reach are missing."""
    scheduled_s, first_s, last_s = outcome.scheduled_s, outcome.first_token_s, outcome.last_token_s
    queued_until_s = outcome.ended_s if scheduled_s is None else scheduled_s
    found = {"e2e": outcome.ended_s - arrival_s, "time_in_queue": queued_until_s - arrival_s}
    if scheduled_s is not None and first_s is not None and last_s is not None:
        found["time_to_first_token"] = first_s - arrival_s
        found["time_in_model_prefill"] = first_s - scheduled_s
        found["time_in_model_decode"] = last_s - first_s
        found["time_in_model_inference"] = last_s - scheduled_s
    return {LATENCY + name: seconds for name, seconds in found.items()}
