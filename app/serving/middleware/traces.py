"""Traces requests, from arrival to the end of their answers, and posts their spans to a collector.

A request has a span, and each of its sequences child spans `queued`, `prefill` and `decode`. The child spans
are made at the end of a sequence, from the times of its outcome: tokens cost nothing. Spans are sent as OTLP
over HTTP in its JSON form (opentelemetry.io/docs/specs/otlp), in batches from a greenlet.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPException
from itertools import islice
from urllib.parse import unquote

import gevent
import msgspec
from gevent.event import Event

from app.base.clock.clock import Clock
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch
from app.serving.http.client import JSON, Target
from app.serving.http.context import RequestContext
from app.serving.http.response import Response
from app.serving.middleware.http_metrics import METHODS
from app.serving.middleware.stack import Middleware
from config import VERSION
from config.settings import TracingSettings

log = logging.getLogger(__name__)
Attributes = dict[str, str | int | float | tuple[str, ...]]

# Names of span attributes: from vLLM, from OpenTelemetry's HTTP conventions, and one of Understudy's.
REQUEST, USAGE, LATENCY = "gen_ai.request.", "gen_ai.usage.", "gen_ai.latency."
RESPONSE_MODEL, FINISH_REASONS = "gen_ai.response.model", "gen_ai.response.finish_reasons"
PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS = (
    f"{USAGE}{kind}_tokens" for kind in ("prompt", "cached", "completion")
)
TIME_TO_FIRST_TOKEN = f"{LATENCY}time_to_first_token"
CHOICE = "understudy.choice"
"""Index of a sequence among the choices of its request, from 0."""

UNTRACED = frozenset(("/health", "/health/ready", "/load", "/metrics", "/ping", "/ready", "/version"))
"""Paths that probes and scrapers request many times a minute."""
OTHER = "_OTHER"
"""Name of an unknown method in OpenTelemetry's conventions."""
NAME = "llm_request"
"""Name of a generation request's span, from vLLM."""
QUEUED, PREFILL, DECODE = PHASES = ("queued", "prefill", "decode")
BROKEN = ("abort", "error")
"""Finish reasons that mark a span as an error."""
INTERNAL, SERVER = 1, 2
"""Kinds of spans in OTLP."""
ERROR = 2
"""Code of a failed span's status in OTLP."""
PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
"""A client's span in the header `traceparent` (W3C trace context)."""
NANOSECONDS = 1_000_000_000
READINGS, TOGETHER_S = 4, 2e-5
"""Most readings of the two clocks, and longest time between readings in seconds: longer means a context
switch.
"""
BATCH = 64
"""Spans per message."""
DELAY_S = 1.0
"""Longest wait of a span for its batch, in seconds."""
SOON = 512
"""Number of waiting spans that are sent without further delay."""
LIMIT_BYTES = 32 * 2**20
"""Most memory of waiting spans, in bytes: about 30,000 spans; further ones are lost."""
FLUSH_S = 2.0
"""Longest wait for the last spans at exit, in seconds."""
QUIET_S = 60.0
"""Least time between two log lines about lost spans, in seconds."""


class SpanSender:
    """Queues encoded spans, and posts them to the collector. A slow or missing collector only costs spans.

    One greenlet at a time empties the queue. It ends with the queue, so an idle sender runs nothing. Spans
    beyond `limit_bytes` are lost. `post` sends a message, and returns why it failed, or an empty text.
    """

    def __init__(
        self, post: Callable[[bytes], str], resource: Attributes, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`now` returns monotonic seconds."""
        self._post, self._now = post, now
        about = msgspec.json.encode({"attributes": encoded(resource)})
        scope = msgspec.json.encode({"name": "understudy", "version": VERSION})
        self._head = b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":[' % (about, scope)
        self.size_bytes, self.limit_bytes = 0, LIMIT_BYTES
        self._ended: deque[bytes] = deque()
        self._sender: gevent.Greenlet | None = None
        self._hurry = Event()
        self._lost, self._reason = 0, ""
        self._quiet_until_s = -math.inf

    @classmethod
    def of(cls, settings: TracingSettings, environ: Mapping[str, str]) -> SpanSender:
        """Makes the sender to the collector in the settings. Raises ConfigError for an unusable address.

        Headers, timeout in seconds and attributes of the server come from OpenTelemetry's own variables.
        """
        target = Target.of(settings.otlp_traces_endpoint or "")
        headers = pairs(environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
        timeout_s = float(environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") or 10)
        given = pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
        own = {"service.name": settings.otlp_service_name, "service.version": VERSION}
        return cls(partial(post, target, headers, timeout_s), {**given, **own})

    def put(self, span: bytes) -> None:
        """Queues a span in OTLP's JSON."""
        if self.size_bytes + len(span) > self.limit_bytes:
            self._lost += 1
            return
        self.size_bytes += len(span)
        self._ended.append(span)
        if self._sender is None:
            self._sender = gevent.spawn(self._send)
        elif len(self._ended) == SOON:
            self._hurry.set()

    def start(self) -> None:
        """Does nothing: the first span starts the greenlet."""

    def close(self) -> None:
        """Sends the waiting spans; spans that cannot be sent within FLUSH_S are lost."""
        self._hurry.set()
        if self._sender is not None:
            self._sender.join(FLUSH_S)
            if self._sender is not None:
                self._sender.kill(block=False)
                self._lost += len(self._ended)
                self._report_losses()

    def _send(self) -> None:
        """Greenlet: sends batches until the queue is empty."""
        try:
            while self._ended:
                self._hurry.wait(DELAY_S)
                self._hurry.clear()
                while batch := list(islice(self._ended, BATCH)):
                    reason = self._post(self._head + b",".join(batch) + b"]}]}]}")
                    for span in batch:
                        self._ended.popleft()
                        self.size_bytes -= len(span)
                    if reason:
                        self._lost, self._reason = self._lost + len(batch), reason
                    self._report_losses()
        finally:
            self._sender = None

    def _report_losses(self) -> None:
        if self._lost and self._now() >= self._quiet_until_s:
            log.warning("%d spans are lost: %s", self._lost, self._reason or "they wait for the collector")
            self._lost, self._reason = 0, ""
            self._quiet_until_s = self._now() + QUIET_S


def post(target: Target, headers: Mapping[str, str], timeout_s: float, message: bytes) -> str:
    """Posts one message to the collector; returns why it failed, or an empty text."""
    try:
        limit = gevent.Timeout(timeout_s, TimeoutError("it takes too long"))
        with limit, closing(target.connection(timeout_s)) as connection:
            connection.request("POST", target.prefix, message, {**headers, **JSON})
            response = connection.getresponse()
            response.read()
        return "" if response.status < 300 else f"{target.address} answers {response.status}"
    except (OSError, HTTPException) as error:
        return f"{target.address}: {error!r}"


def pairs(text: str) -> dict[str, str]:
    """Reads `name=value,name=value`, percent-encoded, as OpenTelemetry's variables have it."""
    named = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in named}


def encoded(attributes: Attributes) -> list[object]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: str | int | float | tuple[str, ...]) -> dict[str, object]:
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def sampled_part(environ: Mapping[str, str]) -> float:
    """Returns the part of traces without a client's span to record, by OpenTelemetry's variables."""
    name = environ.get("OTEL_TRACES_SAMPLER", "")
    if name.endswith("ratio"):
        return float(environ.get("OTEL_TRACES_SAMPLER_ARG") or 1)
    return 0.0 if name.endswith("always_off") else 1.0


class Traces(Middleware):
    """Traces requests and their sequences: as the client decided, or else this `part` of them.

    `clock` stamps arrivals, `unix_ns` returns the Unix time in nanoseconds, `new_id` random hexadecimal
    digits for so many bytes.
    """

    def __init__(
        self,
        sender: SpanSender,
        clock: Clock,
        part: float = 1.0,
        unix_ns: Callable[[], int] = time.time_ns,
        new_id: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self.caches, self.sender = {"spans": sender}, sender
        self._put, self._clock, self._bound = sender.put, clock, int(part * 2**64)
        self._unix_ns, self._new_id = unix_ns, new_id

    def begin(self, context: RequestContext) -> None:
        if context.path in UNTRACED:
            return
        if parent := PARENT.fullmatch(context.headers.get("traceparent", "")):
            trace_id, parent_id, is_sampled = parent[1], parent[2], bool(int(parent[3], 16) & 1)
        else:
            trace_id, parent_id = self._new_id(16), ""
            is_sampled = int(trace_id[16:], 16) < self._bound
        if not is_sampled:
            return
        for _ in range(READINGS):  # the Unix time of the clock's zero, from both clocks in quick succession
            before_s, unix_ns, after_s = self._clock.now(), self._unix_ns(), self._clock.now()
            if after_s - before_s < TOGETHER_S:
                break
        zero_ns = unix_ns - int((before_s + after_s) / 2 * NANOSECONDS)
        state = context.headers.get("tracestate", "") if parent else ""
        ids = {"traceId": trace_id, "traceState": state}
        trace = RequestTrace(self._put, ids, parent_id, context.arrival_s, zero_ns, self._new_id)
        trace.name = context.method if context.method in METHODS else OTHER
        trace.attributes = {"http.request.method": trace.name, "url.path": context.path}
        if context.route:
            trace.attributes["http.route"] = context.route.path
            trace.name += f" {context.route.path}"
        context.keep(trace)
        context.observers = (*context.observers, trace.watch)

    def end(self, context: RequestContext, response: Response) -> None:
        trace = context.kept(RequestTrace)
        if trace is not None:
            trace.attributes["http.response.status_code"] = response.status
            trace.error = "" if response.status >= 500 else None
            response.on_close(lambda: trace.end(self._clock.now()))


class RequestTrace:
    """The trace of a request that arrived at `arrival_s`; encoded spans go to `put`.

    `trace` are the fields that all its spans share, `parent_id` is the client's span, or empty. `zero_ns` is
    the Unix time in nanoseconds of the clock's zero.
    """

    def __init__(
        self,
        put: Callable[[bytes], None],
        trace: Mapping[str, str],
        parent_id: str,
        arrival_s: float,
        zero_ns: int,
        new_id: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self._put, self._trace, self._new_id = put, trace, new_id
        self._id, self._parent_id = new_id(8), parent_id
        self._arrival_s, self._zero_ns = arrival_s, zero_ns
        self.name = ""
        self.attributes: Attributes = {}
        self.error: str | None = None
        self._tokens = {PROMPT_TOKENS: 0, CACHED_TOKENS: 0, COMPLETION_TOKENS: 0}
        self._latency: dict[str, float] = {}
        self._reasons: list[str] = []
        self._open = 0
        """Number of running sequences."""
        self._answered_s: float | None = None

    def watch(self, generation: EngineRequest) -> Watch:
        """Returns the callback for the outcome of a sequence of this request."""
        if generation.index == 0:
            self.name = NAME
            self.attributes |= {
                f"{REQUEST}id": generation.request_id,
                f"{REQUEST}model": generation.model,
                RESPONSE_MODEL: generation.model,
                f"{REQUEST}max_tokens": generation.max_tokens,
                f"{REQUEST}n": generation.n,
                f"{USAGE}num_sequences": generation.num_choices,
            }
        self._open += 1
        return partial(self._ended, generation)

    def end(self, now_s: float) -> None:
        """Ends the request's span as of `now_s`, once its last sequence is over."""
        self._answered_s = now_s
        if self._open:
            return
        if self._reasons:
            self.attributes |= {**self._tokens, **self._latency, FINISH_REASONS: tuple(self._reasons)}
        error = next((reason for reason in self._reasons if reason in BROKEN), self.error)
        ids, times_s = (self._id, self._parent_id), (self._arrival_s, now_s)
        self._emit(self.name, SERVER, ids, times_s, self.attributes, error)

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
        for phase, times_s in passed.items():
            facts: Attributes = {CHOICE: generation.index}
            if phase == PREFILL:
                facts |= {PROMPT_TOKENS: len(generation.prompt_ids), CACHED_TOKENS: outcome.cached_tokens}
            elif phase == DECODE:
                facts |= {COMPLETION_TOKENS: outcome.tokens, FINISH_REASONS: (outcome.reason,)}
            broke = outcome.reason in BROKEN and phase == list(passed)[-1]
            ids = (self._new_id(8), self._id)
            self._emit(phase, INTERNAL, ids, times_s, facts, outcome.reason if broke else None)
        self._open -= 1
        if self._answered_s is not None:
            self.end(self._answered_s)

    def _emit(
        self,
        name: str,
        kind: int,
        ids: tuple[str, str],
        times_s: tuple[float, float],
        attributes: Attributes,
        error: str | None,
    ) -> None:
        """`ids`: of the span and its parent; `times_s`: begin and end; `error`: why it failed, if it did."""
        begin_ns, end_ns = (self._zero_ns + int(moment_s * NANOSECONDS) for moment_s in times_s)
        span = {
            **self._trace,
            **{"spanId": ids[0], "parentSpanId": ids[1], "name": name, "kind": kind},
            **{"startTimeUnixNano": str(begin_ns), "endTimeUnixNano": str(end_ns)},
            "attributes": encoded(attributes),
            "status": {} if error is None else {"code": ERROR, "message": error},
        }
        self._put(msgspec.json.encode(span))


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
