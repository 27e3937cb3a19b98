"""Traces requests, from arrival to the end of their answers.

A request has a span, and each of its sequences child spans `queued`, `prefill` and `decode`. The
child spans are created at the end of a sequence, from the times of its outcome: tokens cost
nothing.
"""

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.core.base import Bounded
from app.core.base.clock.clock import Clock
from app.core.engine.request import DECODE, PREFILL, EngineRequest, SequenceOutcome, Watch
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.http_metrics import METHODS
from app.core.server.middleware.stack import Middleware
from app.extensions.explanation.delays import DelayLog
from app.extensions.explanation.explanation import Explanation, explain

# Names of span attributes: from vLLM, from OpenTelemetry's HTTP conventions, and one of
# Understudy's.
REQUEST = "gen_ai.request."
USAGE = "gen_ai.usage."
LATENCY = "gen_ai.latency."
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
PROMPT_TOKENS = f"{USAGE}prompt_tokens"
CACHED_TOKENS = f"{USAGE}cached_tokens"
COMPLETION_TOKENS = f"{USAGE}completion_tokens"
TIME_TO_FIRST_TOKEN = f"{LATENCY}time_to_first_token"
PARENT = ("traceparent", "tracestate")
"""Request headers with the parent span."""
CHOICE = "understudy.choice"
"""Index of a sequence among the choices of its request, from 0."""
DELAY = "understudy.delay"
"""Sentence that explains the latency, and prefix of the attributes of events."""
MIN_WAIT_S = 0.05
"""Shortest wait in the queue, in seconds, that is explained."""
MAX_EXPLAINING_S = 0.01
"""Most time of explanations in a row, in seconds; each takes 1 to 2 ms."""
EXPLAINING_SHARE = 0.1
"""Share of all time that explanations may take."""
UNTRACED = frozenset(
    ("/health", "/health/ready", "/load", "/metrics", "/ping", "/ready", "/version")
)
"""Paths that probes and scrapers request many times a minute."""
OTHER = "_OTHER"
"""Method of a span for a request with an invented method."""
NAME = "llm_request"
"""Name of a generation request's span, from vLLM."""
EXPLAINED_PHASES = ("queue", "transfer", "preempted")
"""Phases of an explanation that become events."""
BROKEN = ("abort", "error")
NANOSECONDS = 1_000_000_000


class Traces(Middleware):
    """Traces requests.

    The first request calls `make_tracer`, so that the worker creates the tracer. `caches` hold
    spans to send.
    """

    def __init__(
        self,
        make_tracer: Callable[[], Tracer],
        clock: Clock,
        delays: DelayLog,
        unix_ns: Callable[[], int] = time.time_ns,
        caches: Mapping[str, Bounded] = MappingProxyType({}),
    ) -> None:
        self.caches = caches
        self._make_tracer = make_tracer
        self._clock = clock
        self._explainer = Explainer(delays, clock.now)
        self._unix_ns = unix_ns
        self._propagator = TraceContextTextMapPropagator()

    @cached_property
    def _tracer(self) -> Tracer:
        return self._make_tracer()

    def begin(self, context: RequestContext) -> None:
        """Starts the span of the request."""
        if context.path in UNTRACED:
            return
        method = context.method if context.method in METHODS else OTHER
        name = method
        attributes = {"http.request.method": method, "url.path": context.path}
        if context.route:
            attributes["http.route"] = context.route.path
            name = f"{method} {context.route.path}"
        zero_ns = self._unix_ns() - int(self._clock.now() * NANOSECONDS)
        carrier = {key: context.headers[key] for key in PARENT if key in context.headers}
        span = self._tracer.start_span(
            name,
            self._propagator.extract(carrier, Context()),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=zero_ns + int(context.arrival_s * NANOSECONDS),
        )
        if span.is_recording():
            trace = RequestTrace(self._tracer, span, zero_ns, self._explainer)
            context.keep(trace)
            context.observers = (*context.observers, trace.watch)

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the status to the span, which ends with the answer."""
        trace = context.kept(RequestTrace)
        if trace is not None:
            trace.span.set_attribute("http.response.status_code", response.status)
            if response.status >= 500:
                trace.span.set_status(Status(StatusCode.ERROR))
            response.on_close(partial(self._end_trace, trace))

    def _end_trace(self, trace: "RequestTrace") -> None:
        trace.end(self._clock.now())


class Explainer:
    """Explains choices, within a limit of time: hundreds that end at once do not hold the loop."""

    def __init__(self, delays: DelayLog, now: Callable[[], float]) -> None:
        self._delays = delays
        self._now = now
        self._budget_s = MAX_EXPLAINING_S
        self._updated_s = now()

    def __call__(self, generation: EngineRequest, outcome: SequenceOutcome) -> Explanation | None:
        """Explains a choice; returns None while the time is used up."""
        begin_s = self._now()
        self._budget_s += EXPLAINING_SHARE * (begin_s - self._updated_s)
        self._budget_s = min(self._budget_s, MAX_EXPLAINING_S)
        explanation = None
        if self._budget_s > 0:
            explanation = explain(generation, outcome, self._delays)
        self._updated_s = self._now()
        self._budget_s -= self._updated_s - begin_s
        return explanation


class RequestTrace:
    """The trace of a request with its `span`. `unix_ns` is the Unix time of the clock's zero."""

    def __init__(self, tracer: Tracer, span: Span, unix_ns: int, explainer: Explainer) -> None:
        self.span = span
        self._tracer = tracer
        self._unix_ns = unix_ns
        self._explain = explainer
        self._child_context = set_span_in_context(span, Context())
        self._tokens = {PROMPT_TOKENS: 0, CACHED_TOKENS: 0, COMPLETION_TOKENS: 0}
        self._latency: dict[str, float] = {}
        self._reasons: list[str] = []
        self._open_sequences = 0
        self._answered_s: float | None = None
        """Time of the end of the answer (monotonic seconds); None before."""

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
        self._open_sequences += 1
        return partial(self._ended, generation)

    def end(self, now_s: float) -> None:
        """Ends the span, once all sequences have ended, too."""
        self._answered_s = now_s
        if self._open_sequences:
            return
        if self._reasons:
            self.span.set_attributes(
                {**self._tokens, **self._latency, FINISH_REASONS: tuple(self._reasons)}
            )
        for reason in set(self._reasons).intersection(BROKEN):
            self.span.set_status(Status(StatusCode.ERROR, reason))
        self.span.end(self._ns(now_s))

    def _ended(self, generation: EngineRequest, outcome: SequenceOutcome) -> None:
        """Adds the outcome of a sequence to the request's span, and creates spans of its phases."""
        self._reasons.append(outcome.reason)
        self._tokens[COMPLETION_TOKENS] += outcome.tokens
        if generation.index % generation.n == 0:  # choices share their prompt
            self._tokens[PROMPT_TOKENS] += len(generation.prompt_ids)
            self._tokens[CACHED_TOKENS] += outcome.cached_tokens
        for name, seconds in latencies(generation.arrival_s, outcome).items():
            previous = self._latency.get(name, seconds)
            if name == TIME_TO_FIRST_TOKEN:
                self._latency[name] = min(seconds, previous)
            else:
                self._latency[name] = max(seconds, previous)
        self._add_phases(generation, outcome)
        self._add_delays(generation, outcome)
        self._open_sequences -= 1
        if self._answered_s is not None:
            self.end(self._answered_s)

    def _add_phases(self, generation: EngineRequest, outcome: SequenceOutcome) -> None:
        """Creates a span for each phase that the sequence reached."""
        times = outcome.phases(generation.arrival_s)
        for phase, (begin_s, end_s) in times.items():
            attributes: dict[str, AttributeValue] = {CHOICE: generation.index}
            if phase == PREFILL:
                attributes[PROMPT_TOKENS] = len(generation.prompt_ids)
                attributes[CACHED_TOKENS] = outcome.cached_tokens
            elif phase == DECODE:
                attributes[COMPLETION_TOKENS] = outcome.tokens
                attributes[FINISH_REASONS] = (outcome.reason,)
            span = self._tracer.start_span(
                phase, self._child_context, attributes=attributes, start_time=self._ns(begin_s)
            )
            if outcome.reason in BROKEN and phase == list(times)[-1]:
                span.set_status(Status(StatusCode.ERROR, outcome.reason))
            span.end(self._ns(end_s))

    def _add_delays(self, generation: EngineRequest, outcome: SequenceOutcome) -> None:
        """Adds an event for each wait, transfer and preemption, and the explanation's sentence.

        The sentence of the last choice to end replaces those of other choices.
        """
        queued_until_s = outcome.ended_s if outcome.scheduled_s is None else outcome.scheduled_s
        has_waited = queued_until_s - generation.arrival_s >= MIN_WAIT_S
        if not (has_waited or outcome.preemptions or generation.remote_prefill):
            return
        explanation = self._explain(generation, outcome)
        if explanation is None:
            return
        self.span.set_attribute(DELAY, explanation.sentence)
        for phase_time in explanation.phases:
            if phase_time.phase in EXPLAINED_PHASES:
                attributes: dict[str, AttributeValue] = {
                    CHOICE: generation.index,
                    f"{DELAY}.cause": phase_time.cause,
                    f"{DELAY}.detail": phase_time.detail,
                    f"{DELAY}.seconds": round(phase_time.took_ms / 1000, 4),
                }
                begin_s = generation.arrival_s + phase_time.from_ms / 1000
                self.span.add_event(phase_time.phase, attributes, self._ns(begin_s))

    def _ns(self, moment_s: float) -> int:
        return self._unix_ns + int(moment_s * NANOSECONDS)


def latencies(arrival_s: float, outcome: SequenceOutcome) -> dict[str, float]:
    """Returns vLLM's latencies of a sequence in seconds, without phases that it did not reach."""
    durations = outcome.seconds()
    seconds_by_name = {
        "e2e": outcome.ended_s - arrival_s,
        "time_in_queue": durations.queue_s,
    }
    if outcome.first_token_s is not None:
        inference_s = durations.prefill_s + durations.decode_s
        seconds_by_name["time_to_first_token"] = outcome.first_token_s - arrival_s
        seconds_by_name["time_in_model_prefill"] = durations.prefill_s
        seconds_by_name["time_in_model_decode"] = durations.decode_s
        seconds_by_name["time_in_model_inference"] = inference_s
    return {LATENCY + name: seconds for name, seconds in seconds_by_name.items()}
