"""Export of ended spans to the collector: OTLP over HTTP, in batches, from a native thread.

OpenTelemetry's batch processor is unused: gevent turns its thread into a greenlet, which would
encode in the hub and delay every stream.
"""

import logging
import math
import os
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
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from app.base.clock.pause import SWITCH_S
from config import VERSION
from config.settings import TracingSettings

log = logging.getLogger(__name__)

BATCH = 64
"""Spans per message. Encoding them holds the GIL for about two milliseconds."""
DELAY_S = 1.0
"""Longest wait of a span for its batch, in seconds."""
SOON = 512
"""Number of waiting spans that are sent without further delay."""
LIMIT_BYTES = 32 * 2**20
"""Most memory of waiting spans, in bytes: about 10,000 spans; further ones are lost."""
SPAN_BYTES, ATTRIBUTE_BYTES = 3072, 96
"""Memory of an ended span without its attributes, and of an attribute without its value, in bytes.
"""
FLUSH_S = 2.0
"""Longest wait for the last spans at exit, in seconds."""
QUIET_S = 60.0
"""Least time between two log lines about lost spans, in seconds."""


def tracing_to(settings: TracingSettings) -> "tuple[SpanSender, Callable[[], Tracer]]":
    """Makes the queue of ended spans for the collector; slow to make, idle without spans. Call it
    at start.

    The function makes a tracer with the queue: call it in the worker, whose exit flushes the queue.
    Headers, timeout, compression and certificates come from OpenTelemetry's OTEL_EXPORTER_OTLP_
    variables.
    """
    sender = SpanSender(OTLPSpanExporter(endpoint=settings.otlp_traces_endpoint))
    logging.getLogger(trace_exporter.__name__).filters = [sender.note]
    name = os.environ.get("OTEL_SERVICE_NAME") or "understudy"
    # Made now: OpenTelemetry runs detectors in threads, and the hub cannot wait for threads.
    resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: VERSION})

    def make_tracer() -> Tracer:
        sys.setswitchinterval(SWITCH_S)
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(sender)
        return provider.get_tracer("understudy", VERSION)

    return sender, make_tracer


class SpanSender(SpanProcessor):
    """Queues ended spans for `exporter`. A slow or missing collector only costs spans.

    One greenlet at a time empties the queue, through a native thread, and ends with it. Spans
    beyond `limit_bytes` are lost. `now` returns monotonic seconds.
    """

    def __init__(self, exporter: SpanExporter, now: Callable[[], float] = time.monotonic) -> None:
        self._exporter, self._now = exporter, now
        self._reason = ""
        """First error of the exporter since the last log line."""
        self.size_bytes = 0
        """Memory of the waiting spans."""
        self.limit_bytes = LIMIT_BYTES
        self._ended: deque[tuple[ReadableSpan, int]] = deque()
        """Waiting spans, each with its memory in bytes."""
        self._sender: gevent.Greenlet | None = None
        self._hurry = Event()
        self._ending = False
        self._lost = 0
        self._quiet_until_s = -math.inf

    @cached_property
    def _pool(self) -> ThreadPool:
        return ThreadPool(1)

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

    def note(self, record: logging.LogRecord) -> bool:
        """Keeps what the exporter logs, as a filter:

        locks of handlers belong to the hub's thread.
        """
        self._reason = self._reason or record.getMessage()
        return False

    def force_flush(self, timeout_millis: int = int(FLUSH_S * 1000)) -> bool:
        """Sends the waiting spans. False on a timeout."""
        self._hurry.set()
        if self._sender is not None:
            self._sender.join(timeout_millis / 1000)
        return self._sender is None

    def shutdown(self) -> None:
        """Sends the waiting spans at exit; spans that cannot be sent within FLUSH_S are lost."""
        self._ending = True
        if self.force_flush():
            self._exporter.shutdown()
        else:
            self._lost += len(self._ended)
            self._report_losses()

    def _send(self) -> None:
        """Sends batches until the queue is empty. Runs in its own greenlet."""
        try:
            while self._ended:
                self._hurry.wait(DELAY_S)
                self._hurry.clear()
                while self._ended:
                    batch = [span for span, _ in islice(self._ended, BATCH)]
                    try:
                        self._pool.apply(self._export, (batch,))
                    except (
                        RuntimeError
                    ):  # at exit some Pythons cannot start threads, such as 3.12.1
                        if not self._ending:
                            raise
                        self._export(batch)
                    for _ in batch:
                        self.size_bytes -= self._ended.popleft()[1]
                    self._report_losses()
        finally:
            self._sender = None

    def _export(self, batch: list[ReadableSpan]) -> None:
        """Encodes and sends a batch. Runs in a native thread, because sending blocks."""
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            sent = False
            self._reason = self._reason or repr(error)
        if not sent:
            self._lost += len(batch)

    def _report_losses(self) -> None:
        if self._lost and self._now() >= self._quiet_until_s:
            log.warning("%d spans are lost: %s", self._lost, self._reason or "no reason given")
            self._lost, self._reason = 0, ""
            self._quiet_until_s = self._now() + QUIET_S


def span_bytes(span: ReadableSpan) -> int:
    """Estimates the memory of an ended span, rather too high than too low."""
    values = list((span.attributes or {}).values())
    values += [value for event in span.events for value in (event.attributes or {}).values()]
    state = span.context.trace_state if span.context is not None else {}
    inherited = sum(getsizeof(text) for item in state.items() for text in item)
    return (
        SPAN_BYTES
        + ATTRIBUTE_BYTES * (len(values) + len(state))
        + sum(map(getsizeof, values))
        + inherited
    )
