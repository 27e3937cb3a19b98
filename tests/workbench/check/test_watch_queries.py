"""Where queries are found in documents, and at which lines and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workbench.check.conftest import Check
from workbench.check.documents import read_documents
from workbench.check.json_nodes import read_json
from workbench.check.text import Text
from workbench.check.watch.queries import Query, find_queries, is_watcher

OLD = "vllm:gpu_cache_usage_perc"
DASHBOARD = {"title": "vLLM", "panels": [{"targets": [{"expr": OLD}]}]}
DOCUMENTS = {
    "panel.json": json.dumps(DASHBOARD),
    "row.json": json.dumps({"panels": [{"type": "row", "panels": DASHBOARD["panels"]}]}),
    "exported.json": json.dumps({"meta": {}, "dashboard": DASHBOARD}),
    "annotation.json": json.dumps({"panels": [], "annotations": {"list": [{"expr": OLD}]}}),
    "variable.json": json.dumps(
        {
            "panels": [],
            "templating": {
                "list": [
                    {
                        "type": "query",
                        "definition": f"label_values({OLD}, model_name)",
                        "query": {"query": f"label_values({OLD}, model_name)"},
                    },
                    {"type": "custom", "query": f"{OLD},other"},
                ]
            },
        }
    ),
    "grafana-v2.json": json.dumps(
        {
            "kind": "Dashboard",
            "spec": {"elements": {"a": {"spec": {"query": {"spec": {"expr": OLD}}}}}},
        }
    ),
    "google.json": json.dumps(
        {"mosaicLayout": {"tiles": [{"timeSeriesQuery": {"prometheusQuery": OLD}}]}}
    ),
    "perses.yaml": f"kind: PersesDashboard\nspec: {{panels: {{a: {{spec: {{query: '{OLD}'}}}}}}}}\n",
    "perses-variable.yaml": (
        f"kind: PersesDashboard\nspec: {{labelName: model_name, matchers: ['{OLD}{{}}']}}\n"
    ),
    "rule.yaml": f"groups:\n- rules:\n  - alert: Full\n    expr: {OLD} > 0.9\n",
    "prometheus-rule.yaml": (
        f"kind: PrometheusRule\nspec:\n  groups:\n  - rules: [{{record: a, expr: '{OLD}'}}]\n"
    ),
    "keda.yaml": (
        "kind: ScaledObject\nspec:\n  triggers:\n  - type: prometheus\n"
        f"    metadata: {{query: 'avg({OLD})'}}\n"
    ),
    "rollout.yaml": f"spec: {{metrics: [{{provider: {{prometheus: {{query: '{OLD}'}}}}}}]}}\n",
    "hpa.yaml": (
        "kind: HorizontalPodAutoscaler\n"
        f"spec: {{metrics: [{{pods: {{metric: {{name: '{OLD}'}}}}}}]}}\n"
    ),
    "google-hpa.yaml": (
        "kind: HorizontalPodAutoscaler\nspec:\n  metrics:\n"
        f"  - pods: {{metric: {{name: 'prometheus.googleapis.com|{OLD}|gauge'}}}}\n"
    ),
    "pod-autoscaler.yaml": (
        f"kind: PodAutoscaler\nspec: {{metricsSources: [{{targetMetric: '{OLD}'}}]}}\n"
    ),
    "adapter.yaml": (
        f"rules:\n- seriesQuery: '{OLD}{{pod!=\"\"}}'\n"
        "  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)\n"
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_query_is_found_once(name: str, check: Check, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DOCUMENTS[name])
    renamed = [each for each in check(name) if each["code"] == "W802"]
    assert len(renamed) == 1
    line = DOCUMENTS[name].splitlines()[renamed[0]["line"] - 1]
    assert line[renamed[0]["column"] - 1 :].startswith(OLD)


@pytest.mark.parametrize(
    "document",
    [
        {"panels": [{"targets": [{"expr": OLD, "datasource": {"type": "loki"}}]}]},
        {"panels": [{"description": f"uses {OLD}"}]},
        {"panels": [{"targets": [{"expr": "node_load1"}]}]},
        {"panels": [], "templating": {"list": [{"query": "label_values(model_name)"}]}},
    ],
)
def test_other_texts_are_no_queries(document: Any, check: Check, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert check("a.json") == []


def test_definition_that_is_no_copy_of_the_query_is_read(check: Check, tmp_path: Path) -> None:
    variable = {"query": "label_values(vllm:num_requests_running, pod)", "definition": OLD}
    document = {"panels": [], "templating": {"list": [variable]}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert [each["code"] for each in check("a.json")] == ["W802"]


def test_query_of_a_dashboard_in_a_config_map_has_its_place(check: Check, tmp_path: Path) -> None:
    dashboard = json.dumps(
        {"panels": [{"targets": [{"expr": f'sum(x{{a="b"}}) / {OLD}'}]}]}, indent=2
    )
    indented = "\n".join(f"    {line}" for line in dashboard.splitlines())
    text = f"kind: ConfigMap\ndata:\n  vllm.json: |\n{indented}\n"
    (tmp_path / "map.yaml").write_text(text)
    [finding] = check("map.yaml")
    line = text.splitlines()[finding["line"] - 1]
    assert line[finding["column"] - 1 :].startswith(OLD)


def test_query_of_rules_in_a_config_map_has_its_place(check: Check, tmp_path: Path) -> None:
    text = (
        "kind: ConfigMap\ndata:\n  rules.yml: |\n    groups:\n    - rules:\n"
        f"      - alert: Full\n        expr: |\n          sum(\n            {OLD})\n"
    )
    (tmp_path / "map.yaml").write_text(text)
    [finding] = check("map.yaml")
    assert (finding["line"], finding["column"]) == (9, 13)


def test_standard_input_may_be_a_dashboard(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(DASHBOARD)))
    [finding] = check("")
    assert (finding["file"], finding["code"]) == ("<stdin>", "W802")


def test_json_reader_gives_what_json_gives() -> None:
    text = '{"a": [1, 2.5, true, null, "\\ud83d\\ude00\\n"], "b": {}, "c": NaN}'
    value = read_json(Text("a.json", text))
    assert [each.text for each in value["a"]] == ["1", "2.5", "true", "", "😀\n"]
    assert value["b"].is_mapping and not list(value["b"].items())
    assert [each.place.column for each in value["a"]][-1] == text.index('"\\ud83d') + 1


def test_only_documents_that_ask_for_metrics_are_watchers() -> None:
    texts = ["kind: ScaledObject", "model: Qwen/Qwen3-8B", "kind: Deployment", "- a", "a"]
    documents = [document for text in texts for document in read_documents(Text("a", text))]
    assert [is_watcher(document) for document in documents] == [True, *[False] * 4]


def test_aliases_give_a_query_once() -> None:
    text = "a: &rule {alert: A, expr: vllm:x}\nb: [*rule, *rule]\nc: {<<: *rule, for: 5m}\n"
    [document] = read_documents(Text("a.yaml", text))
    assert len([each for each in find_queries(document) if isinstance(each, Query)]) == 1
