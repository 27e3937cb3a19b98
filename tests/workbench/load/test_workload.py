"""Loads that are drawn from a measured workload, and the flag --study."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from config.declaration import ConfigError
from workbench.load.workload import TokenLengths, draw_lengths, read_workload, upper_bound
from workbench.plan.command import run as plan
from workbench.runs.simulate import run as simulate
from workbench.runs.traces import TraceOptions, read_trace

WORKLOAD = """\
understudy_workload: 1
model: m
windows:
- start: 2026-11-28T10:00:00Z
  end: 2026-11-28T10:02:00Z
  requests: 290
  rate_per_s: 2.5
  arrivals: [100, 200]
  input_tokens: {mean: 800, count: 290, buckets: [[200, 500, 145], [1000, 2000, 145]]}
  output_tokens: {mean: 90, count: 290, buckets: [[50, 100, 145], [100, 200, 145]]}
  cached_share: 0.4
- start: 2026-11-28T10:02:00Z
  end: 2026-11-28T10:03:00Z
  requests: 10
  rate_per_s: 0.1
  arrivals: [6]
  input_tokens: {mean: 100, count: 10}
  output_tokens: {mean: 20, count: 10, buckets: [[10, null, 10]]}
  cached_share: 0.0
"""


def write(folder: Path, text: str = WORKLOAD) -> Path:
    """Writes the workload of a study."""
    path = folder / "workload.yaml"
    path.write_text(text)
    return path


def test_draw_has_the_measured_counts_means_and_shares(tmp_path: Path) -> None:
    load = read_trace(write(tmp_path))
    arrivals = list(load.arrival_s)
    assert arrivals == sorted(arrivals)
    assert sum(time_s < 60 for time_s in arrivals) == 100
    assert sum(60 <= time_s < 120 for time_s in arrivals) == 200
    assert len(load) == 306
    inputs = load.input_tokens[:300]
    assert sum(200 < tokens <= 500 for tokens in inputs) == 150
    assert sum(1000 < tokens <= 2000 for tokens in inputs) == 150
    assert sum(inputs) / 300 == pytest.approx(800, rel=0.01)
    assert sum(load.output_tokens[:300]) / 300 == pytest.approx(90, rel=0.02)
    assert sum(load.prefix_tokens[:300]) / sum(inputs) == pytest.approx(0.4, abs=0.01)
    assert set(load.group[:300]) == {200, 1000}
    for group in (200, 1000):
        members = [number for number in range(300) if load.group[number] == group]
        prefixes = sum(load.prefix_tokens[number] for number in members)
        assert prefixes / sum(inputs[number] for number in members) == pytest.approx(0.4, abs=0.03)
    assert set(load.input_tokens[300:]) == {100}
    assert set(load.prefix_tokens[300:]) == {0}


def test_equal_seeds_make_equal_loads(tmp_path: Path) -> None:
    path = write(tmp_path)
    first = read_trace(path, options=TraceOptions(seed=3))
    assert read_trace(path, options=TraceOptions(seed=3)).arrival_s == first.arrival_s
    assert read_trace(path, options=TraceOptions(seed=4)).arrival_s != first.arrival_s


def test_requests_are_cut_to_the_limit_of_the_engine(tmp_path: Path) -> None:
    load = read_trace(write(tmp_path), options=TraceOptions(max_tokens=400))
    totals = map(sum, zip(load.input_tokens, load.output_tokens, strict=True))
    assert max(totals) <= 400


def test_lengths_of_extreme_means_stay_in_their_buckets() -> None:
    for mean in (0.0, 100.0, 1e9):
        lengths = TokenLengths(mean=mean, count=10, buckets=((100.0, 200.0, 10.0),))
        drawn = draw_lengths(lengths, 50, Random(1))
        assert all(100 < tokens <= 200 for tokens in drawn)


@pytest.mark.parametrize(
    ("low", "bound"), [(0, 1), (1, 2), (2, 5), (5, 10), (10, 20), (50, 100), (5000, 10_000)]
)
def test_last_bucket_ends_at_the_next_bound(low: float, bound: float) -> None:
    assert upper_bound(low, None) == bound


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("understudy_workload: 1", "understudy_workload: 2", "must be 1, got 2"),
        ("requests: 290", "requests: .nan", "requests"),
        ("requests: 290", "requests: -1", "requests"),
        ("rate_per_s: 2.5", "rate_per_s: .inf", "rate_per_s"),
        ("arrivals: [100, 200]", "arrivals: [1.0e+14]", "more than 100,000,000 requests"),
        ("arrivals: [100, 200]", "arrivals: []", "arrivals"),
        ("cached_share: 0.4", "cached_share: 1.5", "cached_share"),
        ("end: 2026-11-28T10:02:00Z", "end: 2026-11-28T10:00:00Z", "end must be later"),
        ("end: 2026-11-28T10:02:00Z", "end: 2026-11-28T10:09:00Z", "before the end of"),
        ("end: 2026-11-28T10:02:00Z", "end: 2026-11-28T10:02:00", "time zone"),
        ("[200, 500, 145]", "[500, 200, 145]", "bounds of buckets must ascend"),
        ("[200, 500, 145]", "[1500, 1700, 145]", "bounds of buckets must ascend"),
        ("mean: 800", "mean: 1.0e+12", "mean"),
        ("model: m", "model: [" + "[" * 200 + "]" * 201, "nested|expected|parsed"),
        ("model: m", "other: m", "other|model"),
    ],
)
def test_wrong_workloads_are_one_line(old: str, new: str, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path, WORKLOAD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=reason) as error:
        read_workload(path)
    assert "\n" not in str(error.value)


def test_workload_without_requests_is_an_error(tmp_path: Path) -> None:
    text = WORKLOAD.replace("[100, 200]", "[0, 0]").replace("[6]", "[0]")
    with pytest.raises(ConfigError, match="has no requests"):
        read_trace(write(tmp_path, text))


def test_simulate_takes_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert simulate(["--study", str(tmp_path)]) == 0
    assert "requests: 306" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--rate", "2"], "--rate describes a generated load and cannot be combined with --study"),
        (["--trace", "x.csv"], "--study and --trace cannot be used together"),
    ],
)
def test_simulate_takes_no_other_load_beside_a_study(
    flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert simulate(["--study", str(tmp_path), *flags]) != 0
    assert reason in capsys.readouterr().err


def test_folder_without_a_workload_is_no_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(["--study", str(tmp_path)]) == 1
    assert "no workload.yaml in this folder" in capsys.readouterr().err


PLAN = ["--model", "Qwen/Qwen3-8B", "--device", "h100", "-tp", "1", "--slo", "ttft_p99=1s"]
FAST = ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--prefill-share", "0"]


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (None, "not compared with a simulation"),
        ({"verdict": "TTFT within 60%", "within_limit": False}, "TTFT within 60%"),
    ],
)
def test_plan_refuses_a_study_that_is_not_proven(
    comparison: dict[str, object] | None,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path)
    if comparison is not None:
        (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    assert plan(["--study", str(tmp_path), *PLAN]) == 2
    message = capsys.readouterr().err
    assert f"{verdict}; run " in message
    assert "--accept-study" in message
    assert plan(["--study", str(tmp_path), "--accept-study", *PLAN, *FAST]) == 0
    output = capsys.readouterr().out
    assert "Cheapest: h100 tp 1" in output
    assert f"the measured fleet, simulated: {verdict}\n" in output


def test_plan_takes_a_study_within_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    comparison = {"verdict": "TTFT within 6%", "within_limit": True, "other": 1}
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    result = tmp_path / "plan.json"
    assert plan(["--study", str(tmp_path), *PLAN, *FAST, "--json", str(result)]) == 0
    output = capsys.readouterr().out
    assert f"--trace {tmp_path}/workload.yaml" in output
    assert f"{tmp_path}, the measured fleet, simulated: TTFT within 6%\n" in output
    study = json.loads(result.read_text())["study"]
    assert study == {"folder": str(tmp_path), "verdict": "TTFT within 6%"}


@pytest.mark.parametrize("content", ["", "[" * 100_000, '{"verdict": 1}', "\xff"])
def test_wrong_comparisons_are_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / "comparison.json").write_bytes(content.encode("latin-1"))
    assert plan(["--study", str(tmp_path), *PLAN]) == 1
    message = capsys.readouterr().err
    assert "comparison.json" in message
    assert message.count("\n") == 1
