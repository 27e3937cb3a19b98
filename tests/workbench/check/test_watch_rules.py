"""Findings of queries: what is wrong for a version of vLLM, and what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.base.metrics.families import engine_table
from tests.workbench.check.conftest import Check
from vllm_facts.history import read_history
from workbench.check.watch.catalog import OTHER_PROGRAMS, Catalog

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(check: Check, tmp_path: Path) -> Ask:
    """Returns a function that takes expressions, and flags, and returns the findings."""

    def findings_of(*expressions: str, flags: str = "") -> list[dict[str, Any]]:
        rules = [{"alert": "A", "expr": expression} for expression in expressions]
        (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"rules": rules}]}))
        return check(f"{flags} rules.yaml")

    return findings_of


RIGHT = [
    'sum by (model_name, finished_reason) (rate(vllm:request_success_total{pod=~"a.*"}[5m]))',
    "histogram_quantile(0.9, sum by (le, pod) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
    "histogram_quantile(0.9, rate(vllm:time_to_first_token_seconds_bucket[5m]))",
    "histogram_quantile(0.9, sum without (pod) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
    'vllm:time_to_first_token_seconds_bucket{le="0.5"}',
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"}',
    'vllm:request_prompt_tokens_bucket{le="2000.0"}',
    "rate(vllm:iteration_tokens_total_count[5m])",
    "rate(vllm:iteration_tokens_total_sum[5m])",
    "vllm:prompt_tokens_created",
    'vllm:num_requests_running{job="a",namespace="b",pod="c",instance="d",server="e"}',
    'vllm:num_requests_running{finished_reason=""}',
    'vllm:num_requests_running{finished_reason!="stop"}',
    'vllm:request_success_total{finished_reason=~"stop|length"}',
    'vllm:request_success_total{finished_reason=~"st.*"}',
    "sum by (le) (increase(vllm:request_generation_tokens_bucket[1h]))",
    "sum by (model_name) (label_replace(vllm:num_requests_running, 'engine', 'a', '', ''))",
    "sum by (reason) (up * on (pod) group_left (reason) vllm:num_requests_running)",
    "vllm:kv_offload_anything_total",
    "vllm:anything:rate5m",
    "vllm:current_qps / vllm:healthy_pods_total",
    "vllm:deployment_replicas",
    "rate(vllm:current_qps[5m])",
    'absent(vllm:num_requests_running{model_name="a"}) or vector(0)',
    "max_over_time(rate(vllm:prompt_tokens_total[5m])[1h:5m])",
    'count({__name__=~"vllm:.*"})',
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position='3'}",
]


@pytest.mark.check
@pytest.mark.parametrize("expression", RIGHT)
@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_right_query_has_no_finding(expression: str, version: str, ask: Ask) -> None:
    assert ask(expression, flags=f"--vllm-version {version}") == []


VARIABLES = [
    "rate(vllm:prompt_tokens_total[$__rate_interval])",
    "rate(vllm:prompt_tokens_total[${__interval}])",
    "rate(vllm:prompt_tokens_total[[[interval]]])",
    "rate(vllm:prompt_tokens_total[$interval:$step] offset $past)",
    'vllm:num_requests_running{model_name="$model_name", pod=~"${pod:regex}"}',
    "vllm:num_requests_running{$filters, pod=$pod}",
    "sum by ($group) (vllm:num_requests_running)",
    "topk($count, vllm:num_requests_running)",
    "histogram_quantile($q, sum by (le, $by) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
    "histogram_quantile(0.9, sum by ($by) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
    "vllm:$metric > ${limit}",
    "vllm:num_requests_${state}",
    'vllm:request_success_total{finished_reason=~"$reason"}',
    'vllm:time_to_first_token_seconds_bucket{le="$bound"}',
]


@pytest.mark.check
@pytest.mark.parametrize("expression", VARIABLES)
def test_variables_of_grafana_may_be_anything(expression: str, ask: Ask) -> None:
    assert ask(expression) == []


WRONG = [
    ("vllm:prompt_tokens", "W803", "use vllm:prompt_tokens_total"),
    (
        "vllm:inter_token_latency_second_bucket",
        "W803",
        "use vllm:inter_token_latency_seconds_bucket",
    ),
    ("vllm:time_per_output_token_seconds_sum", "W802", "use vllm:inter_token_latency_seconds_sum"),
    ("vllm:gpu_prefix_cache_queries_total", "W802", "use vllm:prefix_cache_queries_total"),
    ("vllm:avg_prompt_throughput_toks_per_s", "W801", "use rate(vllm:prompt_tokens_total[1m])"),
    ("vllm:cpu_cache_usage_perc", "W801", "remove the query"),
    ("sum by (finished_reason) (vllm:num_requests_running)", "W806", "use engine, model_name"),
    ('vllm:num_requests_running{le="1.0"}', "W806", "use engine, model_name"),
    ('vllm:time_to_first_token_seconds_bucket{le="1"}', "W811", 'use "1.0"'),
    ('vllm:time_to_first_token_seconds_bucket{le="0.7"}', "W811", 'use "0.5", "0.75"'),
    ('vllm:request_prompt_tokens_bucket{le="3000.0"}', "W811", ""),
    ("vllm:num_requests_running_count", "W812", "use vllm:num_requests_running"),
    ("vllm:prompt_tokens_total_bucket", "W812", "use vllm:prompt_tokens_total"),
    ("histogram_quantile(0.9, vllm:num_requests_running)", "W810", ""),
    (
        "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds[5m]))",
        "W810",
        "use vllm:e2e_request_latency_seconds_bucket",
    ),
    (
        "histogram_quantile(0.9, sum(rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        "W809",
        "add le to by",
    ),
    (
        "histogram_quantile(.9, sum without (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        "W809",
        "add le to by",
    ),
    ("irate(vllm:kv_cache_usage_perc[5m])", "W808", "use deriv or delta"),
    (
        'vllm:request_success_total{finished_reason=~"stop|stopped"}',
        "W807",
        "use abort, error, length, repetition, stop",
    ),
    ('{__name__="vllm:num_requests_swapped"}', "W801", "remove the query"),
    ('{__name__=~"^vllm:gpu_cache_usage_perc$"}', "W802", "use vllm:kv_cache_usage_perc"),
]


@pytest.mark.check
@pytest.mark.parametrize(("expression", "code", "fix"), WRONG)
def test_wrong_query_has_one_finding(expression: str, code: str, fix: str, ask: Ask) -> None:
    [finding] = ask(expression)
    assert (finding["code"], finding["fix"]) == (code, fix)


def test_each_metric_that_was_removed_is_found(ask: Ask) -> None:
    for name, lifetime in read_history().metrics.items():
        if not lifetime.is_in("0.33") and "{" not in name:
            codes = {each["code"] for each in ask(name)} - {"W814"}
            assert codes in ({"W801"}, {"W802"}), name


def test_metric_is_unknown_before_the_version_that_brought_it(ask: Ask) -> None:
    expression = "vllm:request_num_preemptions_count"
    findings = ask(expression, flags="--vllm-version 0.20")
    assert [each["code"] for each in findings if each["code"] != "W814"] == ["W805"]


@pytest.mark.check
def test_upgrade_reports_what_is_new(ask: Ask) -> None:
    expressions = ("vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped", "vllm:typo_in_name")
    before = ask(*expressions, flags="--vllm-version 0.10")
    after = ask(*expressions, flags="--vllm-version 0.10 --upgrade-to 0.33")
    assert [each["code"] for each in before] == ["W801", "W804"]
    assert sorted(each["code"] for each in after) == ["W801", "W802", "W804"]


def test_unknown_version_is_a_note(ask: Ask) -> None:
    codes = [each["code"] for each in ask("vllm:num_requests_running", flags="--vllm-version 9")]
    assert "F502" in codes


@pytest.mark.check
def test_metric_that_a_rule_records_is_known(check: Check, tmp_path: Path) -> None:
    rules = [
        {"record": "vllm:tokens_per_second", "expr": "rate(vllm:generation_tokens_total[5m])"},
        {"alert": "Slow", "expr": "vllm:tokens_per_second < 1"},
    ]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"rules": rules}]}))
    assert check("rules.yaml") == []
    (tmp_path / "other.yaml").write_text(json.dumps({"groups": [{"rules": rules[1:]}]}))
    assert [each["code"] for each in check("other.yaml")] == ["W804"]
    assert check("rules.yaml other.yaml") == []


@pytest.mark.check
def test_router_exports_metrics_that_vllm_removed(ask: Ask) -> None:
    swapped = "sum(vllm:num_requests_swapped)"
    assert [each["code"] for each in ask(swapped)] == ["W801"]
    assert [each["code"] for each in ask(swapped, "vllm:current_qps")] == ["W817"]
    of_engine = 'vllm:num_requests_swapped{model_name="a"}'
    assert [each["code"] for each in ask(of_engine, "vllm:current_qps")] == ["W801"]
    of_pods = 'vllm:gpu_prefix_cache_hits_total{endpoint="service-port"}'
    assert [each["code"] for each in ask(of_pods, "vllm:current_qps")] == ["W802"]


@pytest.mark.check
def test_router_of_one_file_exports_nothing_for_another(check: Check, tmp_path: Path) -> None:
    for name, expression in (("a", "vllm:current_qps"), ("b", "vllm:num_requests_swapped")):
        text = json.dumps({"panels": [{"targets": [{"expr": expression}]}]})
        (tmp_path / f"{name}.json").write_text(text)
    assert [each["code"] for each in check("a.json b.json")] == ["W801"]


def test_names_are_found_without_a_parser(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.check.watch.watchers.missing", lambda extra: ["parser"])
    expressions = ("sum(vllm:gpu_cache_usage_perc)", "rate(vllm:num_requests_running[5m])")
    findings = ask(*expressions)
    assert [each["code"] for each in findings] == ["W814", "W802"]
    assert "[check]" in findings[0]["message"]


@pytest.mark.check
def test_names_of_a_query_that_cannot_be_parsed_are_checked(ask: Ask) -> None:
    findings = ask("sum(rate(vllm:gpu_cache_usage_perc[5m]) $operator 3")
    assert [each["code"] for each in findings] == ["W813", "W802"]


AUTOSCALED = [
    ("prometheus.googleapis.com|vllm:num_requests_waiting|gauge", []),
    ("prometheus.googleapis.com|vllm:num_requests_waiting|counter", ["W812"]),
    ("vllm_num_requests_waiting", []),
    ("vllm_anything", []),
    ("num_requests_waiting", []),
    ("vllm_gpu_cache_usage_perc", ["W816"]),
    ("vllm_num_requests_swapped", []),
    ("ray_vllm_gpu_cache_usage_perc", ["W816"]),
    ("ray_vllm:gpu_cache_usage_perc", ["W802"]),
    ("vllm:num_requests_swapped", ["W801"]),
]


@pytest.mark.parametrize(("name", "codes"), AUTOSCALED)
def test_names_of_autoscalers(name: str, codes: list[str], check: Check, tmp_path: Path) -> None:
    source = {"type": "Pods", "pods": {"metric": {"name": name}}}
    document = {"kind": "HorizontalPodAutoscaler", "spec": {"metrics": [source]}}
    (tmp_path / "hpa.yaml").write_text(json.dumps(document))
    assert [each["code"] for each in check("hpa.yaml")] == codes


def test_name_that_the_adapter_makes_is_right(check: Check, tmp_path: Path) -> None:
    (tmp_path / "adapter.yaml").write_text(
        "rules:\n- seriesQuery: 'vllm:kv_cache_usage_perc'\n"
        "  name: {as: vllm_gpu_cache_usage_perc}\n"
    )
    (tmp_path / "hpa.yaml").write_text(
        "kind: HorizontalPodAutoscaler\n"
        "spec: {metrics: [{object: {metric: {name: vllm_gpu_cache_usage_perc}}}]}\n"
    )
    codes = {each["code"] for each in check("adapter.yaml hpa.yaml")}
    assert codes <= {"W814"}


RAY = [
    ("ray_vllm:gpu_cache_usage_perc", "W802", "use ray_vllm:kv_cache_usage_perc"),
    (
        "ray_vllm_time_per_output_token_seconds_sum",
        "W802",
        "use ray_vllm_inter_token_latency_seconds_sum",
    ),
    (
        "ray_vllm:gpu_prefix_cache_hit_rate",
        "W801",
        "use rate(ray_vllm:prefix_cache_hits_total[5m])"
        " / rate(ray_vllm:prefix_cache_queries_total[5m])",
    ),
    ("ray_vllm_num_request_waiting", "W803", "use ray_vllm_num_requests_waiting"),
    ("ray_vllm:kv_cache_usage_perc > 90", "W818", "use 0.9"),
    ("ray_vllm:tokens_per_euro", "W804", ""),
]


@pytest.mark.check
@pytest.mark.parametrize(("expression", "code", "fix"), RAY)
def test_names_of_ray_serve_are_those_of_vllm(
    expression: str, code: str, fix: str, ask: Ask
) -> None:
    (found,) = ask(expression)
    assert (found["code"], found.get("fix") or "") == (code, fix)


@pytest.mark.check
@pytest.mark.parametrize("beginning", ["ray_vllm:", "ray_vllm_"])
def test_right_names_of_ray_serve(beginning: str, ask: Ask) -> None:
    assert ask(
        f"rate({beginning}prompt_tokens[5m]) + rate({beginning}prompt_tokens_total[5m])",
        f'{beginning}num_requests_running{{ReplicaId="a"}}',
        f"histogram_quantile(0.9, rate({beginning}time_to_first_token_seconds_bucket[5m]))",
        f'count({{__name__=~"{beginning}.*"}})',
    ) == []  # fmt: skip


@pytest.mark.check
@pytest.mark.parametrize(
    ("version", "codes"), [("0.10", []), ("0.11", ["W819"]), ("0.12", ["W802"])]
)
def test_gauge_that_needs_an_option(version: str, codes: list[str], ask: Ask) -> None:
    findings = ask("avg(vllm:gpu_cache_usage_perc)", flags=f"--vllm-version {version}")
    assert [each["code"] for each in findings] == codes
    assert all(each["fix"] == "use vllm:kv_cache_usage_perc" for each in findings)


@pytest.mark.check
def test_router_exports_what_vllm_hides(ask: Ask) -> None:
    expression = 'sum(vllm:gpu_prefix_cache_hits_total{server="a"})'
    assert ask(expression, flags="--vllm-version 0.11") == []


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_all_metrics_of_the_server_are_known(version: str) -> None:
    catalog = Catalog(version)
    for spec in engine_table({}, block_times=True):
        found = catalog.find(spec.name)
        assert (found.status, found.family.kind) == ("here", spec.kind), spec.name


def test_kinds_of_the_history_are_those_of_the_server() -> None:
    history = read_history().metrics
    for spec in engine_table({}, block_times=True):
        assert history[spec.name].kind == spec.kind


def test_other_programs_have_names_that_vllm_never_had() -> None:
    assert OTHER_PROGRAMS.keys().isdisjoint(read_history().metrics)
