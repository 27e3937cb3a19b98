"""One scrape holds vLLM's, HTTP and process families and parses."""

from __future__ import annotations

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families

from app.base.metrics.exposition import Exposition, Families, engine_families
from app.base.metrics.recorder import Recorder
from app.serving.http.response import Response
from app.serving.middleware.http_metrics import HttpMetrics
from tests.application import request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def scrape(http: HttpMetrics, *families: Families) -> str:
    return Exposition([*families, http.text], http.process_text).render().decode()


def test_a_scrape_parses_and_has_every_kind_of_family() -> None:
    http = HttpMetrics()
    http.end(request("/v1/completions", "POST"), Response(b"{}"))
    text = scrape(http, engine_families(Recorder('mo"del\\\n%s', 2048, {})))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {
        "vllm:num_requests_running",
        "http_requests",
        "process_open_fds",
        "python_info",
    } <= families.keys()
    (running,) = families["vllm:num_requests_running"].samples
    assert running.labels == {"model_name": 'mo"del\\\n%s', "engine": "0"}


def test_what_an_embedding_application_counts_is_served() -> None:
    http = HttpMetrics()
    count = http.exporter.counter("tea_pots", "Pots of tea.")(lambda: "tea")
    with Flask("embedding").test_request_context("/"):
        assert [count(), count()] == ["tea", "tea"]
    assert "tea_pots_total 2.0" in scrape(http)


def test_metrics_are_those_of_this_process_whatever_directory_others_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    assert "process_open_fds" in scrape(HttpMetrics())


def test_process_families_are_read_now_and_then_and_the_others_always(clock: Clock) -> None:
    reads = []

    class Counted(HttpMetrics):
        def process_text(self) -> str:
            reads.append(clock.now)
            return super().process_text()

    recorder = Recorder("tiny", 2048, {})
    http = Counted()
    exposition = Exposition([engine_families(recorder)], http.process_text, clock=clock, process_age_s=1.0)
    for count, now in enumerate((0.0, 0.05, 0.95, 1.0, 1.5), start=1):
        clock.now = now
        recorder.decoded(1, 0.02, at_s=now)
        text = exposition.render().decode()
        assert f'vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {count}.0\n' in text
        assert "python_info" in text
    assert reads == [0.0, 1.0]
