"""Metrics in texts that are no queries, and values that a metric never has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workbench.check.conftest import Check
from workbench.check.watch.names import MAX_ALTERNATIVES, alternatives_of, names_of
from workbench.check.watch.ranges import quantity

MISSPELLED = "vllm:num_request_waiting"
REMOVED = "vllm:gpu_cache_usage_perc"
USAGE = "vllm:kv_cache_usage_perc"


def codes(check: Check, tmp_path: Path, document: Any) -> list[str]:
    """Returns the codes for a document, in order."""
    (tmp_path / "a.json").write_text(json.dumps(document))
    return [each["code"] for each in check("--vllm-version 0.32 a.json")]


def pod(*arguments: str, image: str = "ghcr.io/llm-d/epp:v0.5.1") -> dict[str, Any]:
    """Returns a pod of another program than vLLM."""
    containers = [{"image": image, "args": list(arguments)}]
    return {"kind": "Pod", "spec": {"containers": containers}}


@pytest.mark.parametrize(
    "document",
    [
        pod("-total-queued-requests-metric", MISSPELLED),
        pod(f"--total-queued-requests-metric={MISSPELLED}"),
        pod(f"--metrics=vllm:num_requests_running,{MISSPELLED}"),
        {"kind": "AutoscalingPolicy", "spec": {"metrics": [{"metricName": MISSPELLED}]}},
        {"triggers": [{"type": "external", "metadata": {"metricName": MISSPELLED}}]},
        {"queueMetric": f'{MISSPELLED}{{model_name="m"}}'},
        {"x": {"promql": f"sum({MISSPELLED})"}},
        {"data": {"epp.yaml": f"plugins:\n- parameters: {{queue: {MISSPELLED}}}\n"}},
        {"sourceLabels": ["__name__"], "regex": f"vllm:a_b.*|{MISSPELLED}", "action": "keep"},
    ],
    ids=repr,
)
def test_value_that_is_a_name_asks_for_this_metric(
    check: Check, tmp_path: Path, document: dict[str, Any]
) -> None:
    assert "W803" in codes(check, tmp_path, document)


def test_names_in_arguments_have_their_places(check: Check, tmp_path: Path) -> None:
    text = f"kind: Pod\nspec:\n  containers:\n  - image: a/epp:1\n    args: [-queue, '{REMOVED}']\n"
    (tmp_path / "pod.yaml").write_text(text)
    (found,) = check("--vllm-version 0.32 pod.yaml")
    assert (found["code"], found["line"], found["column"]) == ("W802", 5, 21)


@pytest.mark.parametrize(
    "document",
    [
        pod(image="me/vllm:latest_cuda"),
        {"image": {"repository": "vllm", "tag": "vllm:v0_9"}},
        {"annotations": {"description": "vllm:no_such_metric is high"}},
        {"x": "see vllm:no_such_metric"},
        pod("-queue", "vllm:num_requests_waiting"),
        {"sourceLabels": ["__name__"], "regex": f"{REMOVED}|go_.*", "action": "drop"},
    ],
    ids=repr,
)
def test_other_texts_ask_for_no_metric(
    check: Check, tmp_path: Path, document: dict[str, Any]
) -> None:
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-8B\n")
    (tmp_path / "a.json").write_text(json.dumps(document))
    found = check("--vllm-version 0.32 a.json run.sh --select W")
    assert found == []


def test_beginning_that_no_metric_has_is_a_warning(check: Check, tmp_path: Path) -> None:
    rule = {"sourceLabels": ["__name__"], "regex": "vllm:gpu_cache.*|vllm:e2e_.*", "action": "keep"}
    assert codes(check, tmp_path, rule) == ["W804"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("vllm:(a|b)_c", ["vllm:a_c", "vllm:b_c"]),
        ("^(?:vllm:a|vllm:b(c|d))$", ["vllm:a", "vllm:bc", "vllm:bd"]),
        ("vllm:a\\.b", ["vllm:a.b"]),
        ("vllm:a.*", ["vllm:a..."]),
        ("vllm:[ab]c|x+y", ["vllm:...", "..."]),
        ("(a|b)" * 20, []),
    ],
)
def test_pattern_stands_for_names(pattern: str, found: list[str]) -> None:
    read = alternatives_of(pattern)
    assert [each.text + ("" if each.is_whole else "...") for each in read] == found


@pytest.mark.parametrize(("length", "count"), [(90, 200), (110, 0)])
def test_pattern_with_many_long_names_is_not_read(length: int, count: int) -> None:
    names = "|".join(f"a{number}" for number in range(200))
    assert len(alternatives_of(f"vllm:({names}){'b' * length}")) == count


@given(st.text(alphabet="abv:_()|.*+?[]\\{}^$ ", max_size=60))
def test_any_pattern_is_read(pattern: str) -> None:
    assert len(alternatives_of(pattern)) <= MAX_ALTERNATIVES


@given(st.text(max_size=20), st.text(alphabet='vllm:ab_,{}="- ', max_size=60))
def test_names_are_parts_of_their_text(key: str, text: str) -> None:
    for part in names_of(key, text):
        assert text[part.start :].startswith(part.text)


# Values that a metric never has


@pytest.mark.check
@pytest.mark.parametrize(
    ("expression", "is_wrong"),
    [
        (f"{USAGE} > 90", True),
        (f"avg by (pod) ({USAGE}) >= 80", True),
        (f"90 < max_over_time({USAGE}[5m])", True),
        (f"{USAGE} < 90", True),
        (f"{USAGE} * 100 > 101", True),
        ("vllm:num_requests_waiting < 0", True),
        (f"100 * avg({USAGE}) > 90", False),
        (f"{USAGE} > 0.9 and vllm:num_requests_waiting > 5", False),
        (f"sum({USAGE}) > 3", False),
        (f"{USAGE} >= 1", False),
        ("vllm:num_requests_waiting > 90", False),
        (f"{USAGE} > vllm:num_requests_waiting", False),
        (f"delta({USAGE}[5m]) > 90", False),
    ],
)
def test_comparison_that_decides_nothing_is_an_error(
    check: Check, tmp_path: Path, expression: str, is_wrong: bool
) -> None:
    rules = {"groups": [{"rules": [{"alert": "A", "expr": expression}]}]}
    assert ("W818" in codes(check, tmp_path, rules)) is is_wrong


@pytest.mark.check
@pytest.mark.parametrize(
    ("target", "is_wrong"), [("80", True), ("0.8", False), ("800m", False), ("1", False)]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda value: {"type": "prometheus", "metadata": {"query": USAGE, "threshold": value}},
        lambda value: {
            "type": "metrics-api",
            "metadata": {"valueLocation": USAGE, "targetValue": value},
        },
        lambda value: {"pods": {"metric": {"name": USAGE}, "target": {"averageValue": value}}},
        lambda value: {"metricName": USAGE, "targetValue": value},
    ],
    ids=["prometheus", "metrics-api", "hpa", "policy"],
)
def test_target_that_a_share_cannot_reach_is_an_error(
    check: Check, tmp_path: Path, make: Any, target: str, is_wrong: bool
) -> None:
    assert codes(check, tmp_path, {"a": [make(target)]}) == (["W818"] if is_wrong else [])


def test_fix_of_a_percentage_is_a_share(check: Check, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"metricName": USAGE, "targetValue": "80"}))
    (found,) = check("--vllm-version 0.32 a.json")
    assert found["fix"] == "use 0.8"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("900m", 0.9),
        ("90%", 0.9),
        ("2k", 2000.0),
        ("1.5", 1.5),
        ("x", None),
        ("$N", None),
        ("", None),
    ],
)
def test_quantity(text: str, number: float | None) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    ("old", "new", "is_lost"), [("0.10", "0.11", True), ("0.9", "0.10", False)]
)
def test_metric_that_an_upgrade_hides_is_lost(
    check: Check, tmp_path: Path, old: str, new: str, is_lost: bool
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"expr": "vllm:gpu_cache_usage_perc > 0.9"}))
    messages = [
        finding["message"]
        for finding in check(f"--vllm-version {old} --upgrade-to {new} a.json")
        if finding["code"] == "W819"
    ]
    hidden = "vLLM 0.11 shows vllm:gpu_cache_usage_perc only with --show-hidden-metrics-for-version"
    assert messages == ([hidden] if is_lost else [])
