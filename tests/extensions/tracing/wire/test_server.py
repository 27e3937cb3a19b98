"""A real server sends the spans of requests to a real collector."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.hostile.raw_client import Wire, ask, http_post
from tests.http_server import Handler, serving
from tests.running_server import RunningServer, free_port, running_server
from tests.waits import wait_for_log

PATIENCE_S = 20.0
ERROR = 2
"""Status code of a span that failed."""
SERVER = 2
"""Kind of a span that serves."""
NANOSECONDS = 1_000_000_000
COMPLETIONS = "/v1/completions"
PARENT = "00f067aa0ba902b7"


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
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def order(self) -> tuple[int, float, float]:
        """A sort key: spans without a choice come first."""
        return self.attributes.get("understudy.choice", -1), self.start_s, self.end_s


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

    def wait_for(self, is_wanted: Callable[[Received], bool]) -> Received:
        """Waits for a span, and returns it."""

        def wanted_spans() -> list[Received]:
            return [span for span in self.spans if is_wanted(span)]

        with self.changed:
            assert self.changed.wait_for(wanted_spans, PATIENCE_S), self.spans
            return wanted_spans()[0]

    def trace(self, trace_id: str) -> list[Received]:
        """The spans of a trace with a server span, by choice and start."""

        def is_server_span(span: Received) -> bool:
            return span.trace_id == trace_id and span.kind == SERVER

        self.wait_for(is_server_span)
        with self.changed:
            trace_spans = [span for span in self.spans if span.trace_id == trace_id]
        return sorted(trace_spans, key=Received.order)


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
                attributes={pair.key: plain(pair.value) for pair in span.attributes},
                resource=resource,
            )


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    return [plain(item) for item in content.values] if kind == "array_value" else content


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector on a free port, for as long as the block lasts."""
    collector = Collector()

    class Receiver(Handler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.receive(
                {name.lower(): value for name, value in self.headers.items()}, self.body()
            )
            self.reply(200)

    with serving(Receiver) as collector.port:
        yield collector


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[RunningServer]:
    """One slot, a first token after 50 ms, then one every 20 ms."""
    flags = (
        "--max-num-seqs=1",
        "--time-to-first-token=50ms",
        "--inter-token-latency=20ms",
        "--api-key=key",
    )
    env = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=mine",
        "OTEL_RESOURCE_ATTRIBUTES": "cluster=test",
    }
    with running_server(*flags, f"--otlp-traces-endpoint={collector.url}", env=env) as server:
        yield server
        trace_id, headers = fresh_trace()
        post(server, headers)
        assert server.stop() == 0
        assert len(collector.trace(trace_id)) == 4, "the last spans are sent at the end"


def fresh_trace() -> tuple[str, dict[str, str]]:
    """A trace id, and the headers of a client that has begun it."""
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01", "tracestate": "vendor=1"}
    return trace_id, {**headers, "Authorization": "Bearer key"}


def post(
    server: RunningServer, headers: Mapping[str, str], path: str = COMPLETIONS, **fields: object
) -> int:
    got = requests.post(server.url + path, json=ask(**fields), headers=headers, timeout=20)
    assert got.content
    return got.status_code


def names(spans: list[Received]) -> list[str]:
    return [span.name for span in spans]


@pytest.mark.parametrize("stream", [False, True])
def test_request_spans_belong_to_the_trace_of_the_client(
    traced: RunningServer, collector: Collector, stream: bool
) -> None:
    trace_id, headers = fresh_trace()
    assert post(traced, {**headers, "X-Request-Id": "mine"}, max_tokens=5, stream=stream) == 200
    request_span, *phases = collector.trace(trace_id)
    assert (request_span.name, request_span.kind, request_span.parent_id) == (
        "llm_request",
        SERVER,
        PARENT,
    )
    assert names(phases) == ["queued", "prefill", "decode"]
    assert {span.parent_id for span in phases} == {request_span.span_id}
    assert all(
        request_span.start_s <= span.start_s and span.end_s <= request_span.end_s for span in phases
    )
    attributes = request_span.attributes
    assert attributes["gen_ai.request.id"] == "cmpl-mine-0"
    assert attributes["gen_ai.usage.completion_tokens"] == 5
    assert attributes["http.response.status_code"] == 200
    assert attributes["http.route"] == COMPLETIONS
    decode = phases[2]
    first_token_s = attributes["gen_ai.latency.time_to_first_token"]
    assert first_token_s == pytest.approx(decode.start_s - request_span.start_s, abs=0.001)
    # The settings say 50 and 20 ms; a busy machine takes longer.
    assert first_token_s > 0.049
    assert decode.duration_s > 4 * 0.02 - 0.001
    assert request_span.status == 0


def test_trace_collector_receives_the_configured_service_name(
    traced: RunningServer, collector: Collector
) -> None:
    trace_id, headers = fresh_trace()
    post(traced, headers)
    resource = collector.trace(trace_id)[0].resource
    assert (resource["service.name"], resource["cluster"]) == ("understudy", "test")
    assert collector.headers[-1]["x-tenant"] == "mine"


def send(wire: Wire, headers: Mapping[str, str], **fields: object) -> Wire:
    lines = [
        f"{name}: {value}"
        for name, value in {"Content-Type": "application/json", **headers}.items()
    ]
    return wire.send(http_post(COMPLETIONS, json.dumps(ask(**fields)).encode(), *lines))


def test_client_disconnect_ends_the_span_of_the_request(
    traced: RunningServer, collector: Collector
) -> None:
    trace_id, headers = fresh_trace()
    with Wire(traced.port) as wire:
        next(send(wire, headers, max_tokens=4000, stream=True).events())
    request_span, *phases = collector.trace(trace_id)
    assert names(phases) == ["queued", "prefill", "decode"]
    assert [(span.status, span.reason) for span in (request_span, phases[-1])] == [
        (ERROR, "abort")
    ] * 2
    assert request_span.duration_s < 4000 * 0.02


@pytest.mark.parametrize(
    ("path", "fields", "status", "name"),
    [
        (COMPLETIONS, {"n": 0}, 400, f"POST {COMPLETIONS}"),
        (COMPLETIONS, {"model": "nope"}, 404, f"POST {COMPLETIONS}"),
        ("/v1/nope", {}, 404, "POST"),
    ],
)
def test_rejected_request_has_one_span_with_the_status_of_the_response(
    traced: RunningServer,
    collector: Collector,
    path: str,
    fields: dict[str, object],
    status: int,
    name: str,
) -> None:
    trace_id, headers = fresh_trace()
    assert post(traced, headers, path, **fields) == status
    (request_span,) = collector.trace(trace_id)
    assert (
        request_span.name,
        request_span.attributes["http.response.status_code"],
        request_span.status,
    ) == (name, status, 0)


@pytest.mark.parametrize("parent", [None, "00-nonsense", f"00-{'0' * 32}-{PARENT}-01"])
def test_request_without_a_valid_parent_starts_a_trace(
    traced: RunningServer, collector: Collector, parent: str | None
) -> None:
    headers = {"Authorization": "Bearer key", "X-Request-Id": f"own-{parent}"[:12]}
    post(traced, {**headers, **({"traceparent": parent} if parent else {})})
    request_id = f"cmpl-{headers['X-Request-Id']}-0"

    def is_request_span(span: Received) -> bool:
        return span.attributes.get("gen_ai.request.id") == request_id

    assert collector.wait_for(is_request_span).parent_id == ""


def test_health_probes_and_scrapes_are_not_traced(
    traced: RunningServer, collector: Collector
) -> None:
    paths = ("/health", "/metrics", "/ping", "/version", "/health/ready")
    for path in paths:
        requests.get(traced.url + path, timeout=20)
    trace_id, headers = fresh_trace()
    post(traced, headers)
    collector.trace(trace_id)
    assert not {span.attributes.get("url.path") for span in collector.spans} & set(paths)


@pytest.fixture
def silent() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]


@pytest.mark.parametrize("answers", [True, False])
def test_unreachable_collector_affects_neither_requests_nor_shutdown(
    answers: bool, silent: int
) -> None:
    endpoint = (
        f"--otlp-traces-endpoint=http://127.0.0.1:{free_port() if answers else silent}/v1/traces"
    )
    with running_server(endpoint, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}) as server:
        for _ in range(20):
            assert post(server, {}) == 200
        wait_for_log(server, "spans were dropped")
        for _ in range(20):
            assert post(server, {}) == 200
        assert server.stop() == 0
        assert server.log().count("spans were dropped") == 1
        assert server.log().count("Traceback") == 0


def test_missing_opentelemetry_is_reported_with_the_install_command(
    tmp_path: Path,
) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('no OpenTelemetry here')\n")
    with (
        pytest.raises(RuntimeError) as ended,
        running_server(
            "--otlp-traces-endpoint=http://127.0.0.1:4318", env={"PYTHONPATH": str(tmp_path)}
        ),
    ):
        pass
    lines = [line for line in str(ended.value).splitlines() if "otlp-traces-endpoint" in line]
    assert [line for line in lines if "pip install -e '.[tracing]'" in line]
    assert "Traceback" not in str(ended.value)
