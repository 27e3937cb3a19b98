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

from app.core.base.clock.pause import SWITCH_S
from app.extensions.tracing.settings import TracingSettings
from config import VERSION

log = logging.getLogger(__name__)

BATCH_SPANS = 64
"""Spans per message. Encoding them holds the GIL for about two milliseconds."""
MAX_DELAY_S = 1.0
"""Maximum wait of a span for its batch, in seconds."""
URGENT_SPANS = 512
"""Number of waiting spans that are sent without further delay."""
LIMIT_BYTES = 32 * 2**20
"""Memory limit of waiting spans, in bytes: about 10,000 spans; further ones are lost."""
SPAN_BYTES = 3072
"""Memory of an ended span without its attributes, in bytes."""
ATTRIBUTE_BYTES = 96
"""Memory of an attribute without its value, in bytes."""
FLUSH_S = 2.0
"""Maximum wait for the last spans at exit, in seconds."""
LOG_INTERVAL_S = 60.0
"""Minimum time between two log lines about lost spans, in seconds."""


def create_tracing(settings: TracingSettings) -> "tuple[SpanSender, Callable[[], Tracer]]":
    """Creates the queue of ended spans for the collector, and a function that creates a tracer.

    The queue is slow to create, so call this at start. Call the function in the worker, whose exit
    flushes the queue. Headers, timeout, compression and certificates come from OpenTelemetry's
    OTEL_EXPORTER_OTLP_ variables.
    """
    sender = SpanSender(OTLPSpanExporter(endpoint=settings.otlp_traces_endpoint))
    logging.getLogger(trace_exporter.__name__).filters = [sender.record_error]
    name = os.environ.get("OTEL_SERVICE_NAME") or "understudy"
    # Created here: OpenTelemetry runs detectors in threads, and the hub cannot wait for threads.
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
        self._exporter = exporter
        self._now = now
        self._error = ""
        """First error of the exporter since the last log line."""
        self.size_bytes = 0
        """Memory of the waiting spans."""
        self.limit_bytes = LIMIT_BYTES
        self._ended: deque[tuple[ReadableSpan, int]] = deque()
        """Waiting spans, each with its memory in bytes."""
        self._sender: gevent.Greenlet | None = None
        self._send_now = Event()
        self._ending = False
        self._lost_count = 0
        self._next_log_s = -math.inf

    @cached_property
    def _pool(self) -> ThreadPool:
        return ThreadPool(1)

    def on_end(self, span: ReadableSpan) -> None:
        """Queues an ended span."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        size = span_bytes(span)
        if self.size_bytes + size > self.limit_bytes:
            self._lost_count += 1
            return
        self.size_bytes += size
        self._ended.append((span, size))
        if self._sender is None:
            self._sender = gevent.spawn(self._send)
        elif len(self._ended) == URGENT_SPANS:
            self._send_now.set()

    def record_error(self, record: logging.LogRecord) -> bool:
        """Records the exporter's first log line; a logging filter that drops all lines.

        A filter, because locks of handlers belong to the hub's thread.
        """
        self._error = self._error or record.getMessage()
        return False

    def force_flush(self, timeout_millis: int = int(FLUSH_S * 1000)) -> bool:
        """Sends the waiting spans; returns False on a timeout."""
        self._send_now.set()
        if self._sender is not None:
            self._sender.join(timeout_millis / 1000)
        return self._sender is None

    def shutdown(self) -> None:
        """Sends the waiting spans at exit; spans that cannot be sent within FLUSH_S are lost."""
        self._ending = True
        if self.force_flush():
            self._exporter.shutdown()
        else:
            self._lost_count += len(self._ended)
            self._report_losses()

    def _send(self) -> None:
        """Sends batches until the queue is empty. Runs in its own greenlet."""
        try:
            while self._ended:
                self._send_now.wait(MAX_DELAY_S)
                self._send_now.clear()
                while self._ended:
                    batch = [span for span, _ in islice(self._ended, BATCH_SPANS)]
                    try:
                        self._pool.apply(self._export, (batch,))
                    except RuntimeError:
                        # At exit, some Pythons cannot start threads, such as 3.12.1.
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
            is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            is_sent = False
            self._error = self._error or repr(error)
        if not is_sent:
            self._lost_count += len(batch)

    def _report_losses(self) -> None:
        if self._lost_count and self._now() >= self._next_log_s:
            reason = self._error or "no reason given"
            log.warning("%d spans were dropped: %s", self._lost_count, reason)
            self._lost_count = 0
            self._error = ""
            self._next_log_s = self._now() + LOG_INTERVAL_S


def span_bytes(span: ReadableSpan) -> int:
    """Returns an upper estimate of the memory of an ended span, in bytes."""
    values = list((span.attributes or {}).values())
    values += [value for event in span.events for value in (event.attributes or {}).values()]
    state = span.context.trace_state if span.context is not None else {}
    values_bytes = sum(map(getsizeof, values))
    state_bytes = sum(getsizeof(text) for pair in state.items() for text in pair)
    return SPAN_BYTES + ATTRIBUTE_BYTES * (len(values) + len(state)) + values_bytes + state_bytes
