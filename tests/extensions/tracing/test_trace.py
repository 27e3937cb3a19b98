"""The spans of a request, on a virtual clock."""

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from app.core.engine.request import EngineRequest, SequenceOutcome
from app.extensions.explanation.delays import DelayLog
from app.extensions.tracing.traces import MAX_EXPLAINING_S, NANOSECONDS, Explainer, RequestTrace
from tests.core.engine.harness import START_S, Harness

EPOCH_NS = 1_700_000_000 * NANOSECONDS


class Traced(Harness):
    """One request; tokens come a second apart, the first after two."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__(slots=slots, inter_token_latency=1.0, time_to_first_token=2.0)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.delays = DelayLog().attach(self.engine)
        self.trace = self.request()
        self.observers.append(self.trace.watch)

    def request(self) -> RequestTrace:
        zero_ns = EPOCH_NS - int(START_S * NANOSECONDS)
        start_ns = zero_ns + int(self.clock.now() * NANOSECONDS)
        attributes_ = {"http.route": "/v1/completions"}
        span = self.tracer.start_span("POST", attributes=attributes_, start_time=start_ns)
        return RequestTrace(self.tracer, span, zero_ns, Explainer(self.delays, self.clock.now))

    def end(self) -> ReadableSpan:
        self.trace.end(self.clock.now())
        return self.spans()[-1]

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def phases(self, choice: int = 0) -> dict[str, tuple[float, float]]:
        """Begin and end of each phase, in seconds since the start."""
        choice_spans = [
            span for span in self.spans() if attributes(span).get("understudy.choice") == choice
        ]
        return {
            span.name: (seconds(span.start_time), seconds(span.end_time)) for span in choice_spans
        }


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def seconds(moment_ns: int | None) -> float:
    assert moment_ns is not None
    return round((moment_ns - EPOCH_NS) / NANOSECONDS, 1)


def failed(spans: tuple[ReadableSpan, ...]) -> dict[str, str | None]:
    return {
        span.name: span.status.description
        for span in spans
        if span.status.status_code is StatusCode.ERROR
    }


def test_request_has_a_span_for_each_of_its_phases() -> None:
    traced = Traced(slots=1)
    traced.observers.clear()
    traced.ask("other", max_tokens=2)
    traced.observers.append(traced.trace.watch)
    traced.ask(max_tokens=4)
    traced.clock.advance(10)
    traced.end()
    assert traced.phases() == {"queued": (0, 3), "prefill": (3, 5), "decode": (5, 8)}
    assert failed(traced.spans()) == {}
    request_span = traced.spans()[-1]
    (queue_event,) = request_span.events
    assert (queue_event.name, seconds(queue_event.timestamp)) == ("queue", 0)
    assert queue_event.attributes == {
        "understudy.choice": 0,
        "understudy.delay.cause": "places",
        "understudy.delay.detail": "1 of 1 taken, one by the prompt of other (3 tokens)",
        "understudy.delay.seconds": pytest.approx(3.0, abs=0.01),
    }
    delay = str(attributes(request_span)["understudy.delay"])
    assert delay.startswith("Waited 3.0 s for a slot: 1 of 1 taken")


def test_delay_explanations_stop_after_their_time_budget() -> None:
    """Each call of this clock takes 2 ms, and so does an explanation."""
    traced = Traced()
    moment_s = 0.0

    def now() -> float:
        nonlocal moment_s
        moment_s += 0.002
        return moment_s

    explain = Explainer(traced.delays, now)
    late: list[tuple[EngineRequest, SequenceOutcome]] = []

    def watch(request: EngineRequest) -> Callable[[SequenceOutcome], None]:
        def end(outcome: SequenceOutcome) -> None:
            late.append((request, outcome))

        return end

    traced.observers.append(watch)
    traced.ask("late", max_tokens=2)
    traced.clock.advance(10)
    for _ in range(2):
        explained = [explain(*late[0]) is not None for _ in range(300)]
        assert explained[0] and 0.002 * sum(explained) <= MAX_EXPLAINING_S + 0.002
        moment_s += 100.0


def test_request_span_has_the_attributes_of_vllm() -> None:
    traced = Traced()
    traced.ask("cmpl-mine", choices=2, num_choices=2, max_tokens=4)
    traced.clock.advance(10)
    request_span = traced.end()
    assert request_span.name == "llm_request"
    assert (seconds(request_span.start_time), seconds(request_span.end_time)) == (0, 10)
    latency = "gen_ai.latency."
    latencies = {}
    others = {}
    for name, value in attributes(request_span).items():
        if name.startswith(latency):
            latencies[name] = value
        else:
            others[name] = value
    assert others == {
        "http.route": "/v1/completions",
        "gen_ai.request.id": "cmpl-mine",
        "gen_ai.request.model": "test",
        "gen_ai.response.model": "test",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.n": 2,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.cached_tokens": 0,
        "gen_ai.usage.completion_tokens": 8,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    assert latencies == {
        latency + "time_in_queue": pytest.approx(0),
        latency + "time_to_first_token": pytest.approx(2),
        latency + "time_in_model_prefill": pytest.approx(2),
        latency + "time_in_model_decode": pytest.approx(3),
        latency + "time_in_model_inference": pytest.approx(5),
        latency + "e2e": pytest.approx(5, abs=0.01),
    }


@pytest.mark.parametrize(
    ("after_s", "last"),
    [(1.0, ("prefill", 0.0, 1.0)), (4.5, ("decode", 2.0, 4.5)), (0.0, ("prefill", 0.0, 0.0))],
)
def test_client_disconnect_marks_the_current_phase_as_failed(
    after_s: float, last: tuple[str, float, float]
) -> None:
    traced = Traced()
    group = traced.ask(max_tokens=50)
    traced.clock.advance(after_s)
    group.abort()
    request_span = traced.end()
    name, (begin_s, end_s) = list(traced.phases().items())[-1]
    assert (name, begin_s, end_s) == last
    assert failed(traced.spans()) == {name: "abort", "llm_request": "abort"}
    assert attributes(request_span)["gen_ai.response.finish_reasons"] == ("abort",)


def test_request_aborted_in_the_queue_has_only_the_queued_phase() -> None:
    traced = Traced(slots=1)
    traced.ask("other", max_tokens=50)
    traced.exporter.clear()
    second = traced.request()
    traced.observers[:] = [second.watch]
    waiting = traced.ask("second")
    traced.clock.advance(7)
    waiting.abort()
    second.end(traced.clock.now())
    assert traced.phases() == {"queued": (0, 7)}
    assert failed(traced.spans()) == {"queued": "abort", "llm_request": "abort"}
    latency = attributes(traced.spans()[-1])
    assert (
        latency["gen_ai.latency.time_in_queue"] == latency["gen_ai.latency.e2e"] == pytest.approx(7)
    )
    assert "gen_ai.latency.time_to_first_token" not in latency
