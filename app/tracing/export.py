"""The way of ended spans to the collector: OTLP over HTTP, in batches, from a native thread.

OpenTelemetry's own batch processor starts a thread that gevent turns into a greenlet: it would encode in the
hub, where every stream waits for it.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from sys import getsizeof

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from config import VERSION
from config.settings import TracingSettings

log = logging.getLogger(__name__)

BATCH = 64
"""Spans in one message. Encoding them holds Python's lock for about two milliseconds."""
DELAY_S = 1.0
"""How long a span waits for others to go with."""
SOON = 512
"""With so many waiting, none waits any longer."""
LIMIT_BYTES = 32 * 2**20
"""Memory of the spans that wait for a collector, about 10,000; further ones are lost."""
SPAN_BYTES, ATTRIBUTE_BYTES = 3072, 96
"""Memory of an ended span without its attributes, and of each attribute without its value."""
FLUSH_S = 2.0
"""What an exit waits for the last spans."""
SWITCH_S = 0.0005
"""How long the hub waits for Python's lock while spans are encoded; usual is ten times as long."""
QUIET_S = 60.0
"""At most one line is logged about lost spans in so many seconds."""


def exporter_to(settings: TracingSettings) -> SpanExporter:
    """The sender of spans to the collector of `settings`; slow to make, and idle until it is used.

    Headers, timeout, compression and certificates are those of OpenTelemetry's OTEL_EXPORTER_OTLP_ variables.
    """
    return OTLPSpanExporter(endpoint=settings.otlp_traces_endpoint)


def resource_of(settings: TracingSettings) -> Resource:
    """What spans say of their server.

    To be made at the start: OpenTelemetry asks its detectors in threads, for which the hub cannot wait.
    """
    return Resource.create({SERVICE_NAME: settings.otlp_service_name, SERVICE_VERSION: VERSION})


def sender_to(settings: TracingSettings) -> SpanSender:
    """What keeps ended spans and hands them to `exporter_to`'s exporter; idle until the first one."""
    return SpanSender(exporter_to(settings), FailureReason.of(trace_exporter.__name__))


def tracer_to(sender: SpanSender, resource: Resource) -> Tracer:
    """A tracer whose spans `sender` sends. To be made in the worker, whose exit sends the last ones."""
    sys.setswitchinterval(SWITCH_S)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(sender)
    return provider.get_tracer("understudy", VERSION)


class FailureReason(logging.Handler):
    """Keeps the first line that a library logs, instead of logging them all, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    @classmethod
    def of(cls, logger_name: str) -> FailureReason:
        logger, reason = logging.getLogger(logger_name), cls()
        logger.handlers, logger.propagate = [reason], False
        return reason

    def take(self) -> str:
        text, self._text = self._text, ""
        return text or "no reason given"

    def handle(self, record: logging.LogRecord) -> bool:
        """Without a lock: a single thread writes, and not the one that the hub's locks are for."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        self._text = self._text or record.getMessage()


class SpanSender(SpanProcessor):
    """Hands ended spans to `exporter`. A collector that is slow or gone costs spans and nothing else.

    One greenlet at a time empties the list, and a native thread does its work. It ends with the list, so
    nothing runs while there is nothing to send. Spans for which `limit_bytes` leaves no room are lost.
    `reason` knows why the exporter failed; `now` gives monotonic seconds.
    """

    def __init__(
        self, exporter: SpanExporter, reason: FailureReason, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._exporter = exporter
        self._reason = reason
        self._now = now
        self.size_bytes = 0
        """What the spans that wait take."""
        self.limit_bytes = LIMIT_BYTES
        self._ended: deque[tuple[ReadableSpan, int]] = deque()
        """Spans that wait, and the memory of each."""
        self._sender: gevent.Greenlet | None = None
        self._hurry = Event()
        self._ending = False
        self._lost = 0
        self._quiet_until_s = -math.inf

    @cached_property
    def _pool(self) -> ThreadPool:
        return ThreadPool(1)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span is of interest when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        size = span_bytes(span)
        if self.size_bytes + size > self.limit_bytes:
            self._lost += 1
            return
        self.size_bytes += size
        self._ended.append((span, size))
        if self._sender is None:
            self._sender = gevent.spawn(self._send)
        elif len(self._ended) == SOON:
            self._hurry.set()

    def force_flush(self, timeout_millis: int = int(FLUSH_S * 1000)) -> bool:
        """Sends the spans that wait. False when they could not be sent in time."""
        self._hurry.set()
        if self._sender is not None:
            self._sender.join(timeout_millis / 1000)
        return self._sender is None

    def shutdown(self) -> None:
        """Sends the spans that wait, at exit, if that can be done soon."""
        self._ending = True
        if self.force_flush():
            self._exporter.shutdown()
        else:
            self._lost += len(self._ended)
            self._report_losses()

    def _send(self) -> None:
        """Greenlet: sends all that ended, and ends."""
        try:
            while self._ended:
                self._hurry.wait(DELAY_S)
                self._hurry.clear()
                while self._ended:
                    batch = [span for span, _ in islice(self._ended, BATCH)]
                    self._deliver(batch)
                    for _ in batch:
                        self.size_bytes -= self._ended.popleft()[1]
                    self._report_losses()
        finally:
            self._sender = None

    def _deliver(self, batch: list[ReadableSpan]) -> None:
        """Have a native thread export a batch. At their exit some Pythons (3.12.1) begin none: then here."""
        try:
            self._pool.apply(self._export, (batch,))
        except RuntimeError:
            if not self._ending:
                raise
            self._export(batch)

    def _export(self, batch: list[ReadableSpan]) -> None:
        """Native thread: encode and send one batch. It blocks, and takes its time when nobody answers."""
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            sent = False
            self._reason.handle(logging.makeLogRecord({"msg": repr(error)}))
        if not sent:
            self._lost += len(batch)

    def _report_losses(self) -> None:
        if self._lost and self._now() >= self._quiet_until_s:
            log.warning("%d spans are lost: %s", self._lost, self._reason.take())
            self._lost = 0
            self._quiet_until_s = self._now() + QUIET_S


def span_bytes(span: ReadableSpan) -> int:
    """Memory of an ended span, rather too much than too little."""
    values = list((span.attributes or {}).values())
    state = span.context.trace_state if span.context is not None else {}
    inherited = sum(getsizeof(text) for item in state.items() for text in item)
    return SPAN_BYTES + ATTRIBUTE_BYTES * (len(values) + len(state)) + sum(map(getsizeof, values)) + inherited
