"""A collector of traces: OTLP over HTTP, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.http_server import Handler, serving

PATIENCE_S = 20.0
ERROR = 2
"""Status code of a span that failed."""
SERVER = 2
"""Kind of a span that serves."""
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it arrived; ids in hexadecimal, moments in Unix seconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_s: float
    end_s: float
    status: int
    reason: str
    told: dict[str, Any]
    resource: dict[str, Any]

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Collector:
    port: int = 0
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each message; names in lower case."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def receive(self, headers: dict[str, str], message: bytes) -> None:
        with self.changed:
            self.headers.append(headers)
            self.spans += decoded(message)
            self.changed.notify_all()

    def wait_for(self, holds: Callable[[list[Received]], bool]) -> list[Received]:
        """All spans, once `holds` of them. AssertionError when it does not come to that."""
        with self.changed:
            assert self.changed.wait_for(lambda: holds(self.spans), PATIENCE_S), self.spans
            return list(self.spans)

    def trace(self, wanted: str) -> list[Received]:
        """The spans of the trace with the id `wanted`, its server span among them, by begin and choice."""
        spans = self.wait_for(lambda all_: any(s.trace_id == wanted and s.kind == SERVER for s in all_))
        own = [span for span in spans if span.trace_id == wanted]
        return sorted(
            own, key=lambda span: (span.told.get("understudy.choice", -1), span.start_s, span.end_s)
        )


def decoded(message: bytes) -> Iterator[Received]:
    for group in ExportTraceServiceRequest.FromString(message).resource_spans:
        resource = {pair.key: plain(pair.value) for pair in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield Received(
                name=span.name,
                kind=span.kind,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                start_s=span.start_time_unix_nano / NANOSECONDS,
                end_s=span.end_time_unix_nano / NANOSECONDS,
                status=span.status.code,
                reason=span.status.message,
                told={pair.key: plain(pair.value) for pair in span.attributes},
                resource=resource,
            )


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [plain(item) for item in found.values] if kind == "array_value" else found


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector on a free port, for as long as the block lasts."""
    collector = Collector()

    class Receiver(Handler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.receive({name.lower(): value for name, value in self.headers.items()}, self.body())
            self.reply(200)

    with serving(Receiver) as collector.port:
        yield collector
