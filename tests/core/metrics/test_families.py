"""The families are those of the recorded vLLM 0.32:

names, types, labels, bounds (families.json).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.core.base.metrics.instruments import Exposition, Families
from app.core.base.metrics.recorder import FinishedSequence, Recorder, RecorderOptions
from app.core.base.metrics.table import FINISHED, TABLE
from app.core.server.http.response import Response
from app.core.server.middleware.http_metrics import HttpMetrics
from app.shared.virtual_clock import VirtualClock
from tests.application import request

FACTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("families.json").read_text())
ALIASES = {spec.name: spec.alias_of for spec in TABLE if spec.alias_of}


def scrape(recorder: Recorder) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(recorder.render())}


def new_recorder(older_names: bool = False) -> Recorder:
    return Recorder(
        "tiny",
        2048,
        {"block_size": "32", "num_gpu_blocks": "66"},
        options=RecorderOptions(older_names=older_names),
    )


@pytest.fixture
def recorder() -> Recorder:
    return new_recorder()


@pytest.mark.parametrize("name", FACTS)
def test_metric_family_has_the_recorded_type_labels_and_buckets(
    name: str, recorder: Recorder
) -> None:
    facts = FACTS[name]
    family = scrape(recorder)[name.removesuffix("_total") if facts["type"] == "counter" else name]
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    bounds = dict.fromkeys(
        sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")
    )
    assert (family.type, labels, list(bounds)) == (
        facts["type"],
        facts["labels"],
        facts.get("bounds", []),
    )


@pytest.mark.parametrize("older_names", [False, True])
def test_only_exported_metrics_with_older_names_are_missing_from_vllm(
    older_names: bool,
) -> None:
    bases = {
        name.removesuffix("_total") if fact["type"] == "counter" else name
        for name, fact in FACTS.items()
    }
    families = {name for name in scrape(new_recorder(older_names)) if name.startswith("vllm:")}
    others = families - bases - {f"{base}_created" for base in bases | ALIASES.keys()}
    assert others == (ALIASES.keys() if older_names else set())


def test_deprecated_metric_names_repeat_the_current_values() -> None:
    recorder = new_recorder(older_names=True)
    recorder.decoded(4, 0.03, at_s=1.0)
    recorder.sequence_finished(
        FinishedSequence(
            "stop",
            1,
            generation_tokens=17,
            cached_tokens=0,
            max_tokens=64,
            queue_s=0,
            prefill_s=0,
            decode_s=0,
            e2e_s=1,
            choices=2,
            longest=17,
        )
    )
    families = scrape(recorder)
    for alias, modern in ALIASES.items():
        repeated = [
            (sample.name.replace(alias, modern), *sample[1:3]) for sample in families[alias].samples
        ]
        assert repeated == [sample[:3] for sample in families[modern].samples]


def test_series_that_vllm_has_at_startup_exist_before_the_first_request(recorder: Recorder) -> None:
    families = scrape(recorder)
    success = {
        s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples
    }
    assert success == dict.fromkeys(FINISHED, 0.0)
    state = {s.labels["sleep_state"]: s.value for s in families["vllm:engine_sleep_state"].samples}
    assert state == {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}


def exposed(http: HttpMetrics, *families: Families) -> str:
    return Exposition([*families, http.text], http.process_text).render().decode()


def test_scrape_contains_engine_http_process_and_python_metrics() -> None:
    http = HttpMetrics()
    http.end(request("/v1/completions", "POST"), Response(b"{}"))
    text = exposed(http, Recorder('mo"del\\\n%s', 2048, {}).render)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {
        "vllm:num_requests_running",
        "http_requests",
        "process_open_fds",
        "python_info",
    } <= families.keys()
    (running,) = families["vllm:num_requests_running"].samples
    assert running.labels == {"model_name": 'mo"del\\\n%s', "engine": "0"}


def test_metrics_are_recorded_inside_an_embedding_flask_application() -> None:
    http = HttpMetrics()
    count = http.exporter.counter("tea_pots", "Pots of tea.")(lambda: "tea")
    with Flask("embedding").test_request_context("/"):
        assert [count(), count()] == ["tea", "tea"]
    assert "tea_pots_total 2.0" in exposed(http)


def test_metrics_ignore_the_prometheus_multiprocess_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    assert "process_open_fds" in exposed(HttpMetrics())


def test_only_process_metrics_are_cached_for_a_second() -> None:
    reads = []
    clock = VirtualClock()

    class Counted(HttpMetrics):
        def process_text(self) -> str:
            reads.append(clock.now())
            return super().process_text()

    recorder = Recorder("tiny", 2048, {})
    http = Counted()
    exposition = Exposition(
        [recorder.render], http.process_text, clock=clock.now, process_age_s=1.0
    )
    for count, pause_s in enumerate((0.0, 0.05, 0.9, 0.05, 0.5), start=1):
        clock.advance(pause_s)
        recorder.decoded(1, 0.02, at_s=clock.now())
        text = exposition.render().decode()
        assert f'vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {count}.0\n' in text
        assert "python_info" in text
    assert reads == [0.0, pytest.approx(1.0)]


def test_cache_config_info_metric_is_one_at_startup(recorder: Recorder) -> None:
    [info] = scrape(recorder)["vllm:cache_config_info"].samples
    assert info.value == 1


@pytest.mark.parametrize(("context_tokens", "last_bound"), [(1999, 1000), (2000, 2000)])
def test_token_histogram_buckets_extend_to_the_context_length(
    context_tokens: int, last_bound: float
) -> None:
    recorder = Recorder("tiny", context_tokens, {})
    samples = scrape(recorder)["vllm:request_prompt_tokens"].samples
    bounds = [float(sample.labels["le"]) for sample in samples if "le" in sample.labels]
    assert bounds[-2:] == [last_bound, float("inf")]


def test_waiting_request_gauges_are_zero_for_every_reason_at_startup(recorder: Recorder) -> None:
    samples = scrape(recorder)["vllm:num_requests_waiting_by_reason"].samples
    assert {s.labels["reason"]: s.value for s in samples} == {"capacity": 0.0, "deferred": 0.0}
