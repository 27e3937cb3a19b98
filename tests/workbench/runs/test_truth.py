"""The simulation beside what a real vLLM was recorded to do: ../shared/truth."""

import csv
import gzip
from pathlib import Path

import msgspec
import pytest

from app.shared.statistics import mean_and_quantiles
from tests.needs import RECORDING
from workbench.runs.simulate import run

STATISTICS = ("mean", "p50", "p90", "p99")
RUNS = RECORDING.parent / "truth" / "qwen3-14b-h100-vllm-0.23"
STEPS = {"rate-02": 45_755, "rate-06": 39_861, "w5-12": 24_587, "w5-18": 5_780, "w7-06": 20_786}
EXPECTED_ERRORS = {
    "rate-02": "+0.9 +1.1 +0.2 -0.2 | +1.3 +1.1 +0.6 +0.7 | +1.3 +1.2 +0.7 +0.3",
    "rate-06": "+1.3 +1.4 +1.0 +0.8 | +0.5 +0.5 +0.3 +1.1 | +0.5 +0.5 +0.4 +1.0",
    "w5-12": "-3.8 -3.0 -4.5 -6.3 | -2.7 -2.4 -4.1 -4.1 | -2.8 -2.6 -4.1 -4.1",
    "w5-18": "-0.2 +0.7 +1.9 +0.8 | +0.7 +0.9 +0.7 +0.7 | +0.6 +0.8 +0.6 +0.5",
    "w7-06": "-0.6 -1.3 -0.6 -2.7 | -0.1 -0.4 -0.8 -1.2 | -0.2 +0.1 -1.0 -0.5",
}
"""Errors in %: TTFT, TPOT, E2E; of each mean, p50, p90, p99. docs/accuracy.md has means and p99."""


@pytest.mark.shared
@pytest.mark.skipif(not RUNS.is_dir(), reason="the recorded runs are not beside the recording")
@pytest.mark.parametrize("name", EXPECTED_ERRORS)
def test_simulation_of_a_recorded_run_has_the_documented_errors(name: str, tmp_path: Path) -> None:
    trace = RUNS / f"{name}.csv.gz"
    figures = tmp_path / "found.json"
    client = ["--in-flight", "256", "--turnaround", "60us"]
    assert run(["--trace", str(trace), *client, "--json", str(figures)]) == 0
    summary = msgspec.json.decode(figures.read_bytes())
    errors = [
        (summary[latency][statistic] / recorded[statistic] - 1) * 100
        for latency, recorded in recorded_spreads(trace).items()
        for statistic in STATISTICS
    ]
    assert errors == pytest.approx(
        [float(percent) for percent in EXPECTED_ERRORS[name].replace("|", "").split()], abs=0.5
    )
    assert (summary["steps"], summary["preemptions"]) == (STEPS[name], 0)


def recorded_spreads(path: Path) -> dict[str, dict[str, float]]:
    with gzip.open(path, "rt") as file:
        rows = [
            {name: float(text) for name, text in fields.items()} for fields in csv.DictReader(file)
        ]
    latencies = {
        "ttft_s": [row["first_s"] - row["send_s"] for row in rows],
        "tpot_s": [(row["last_s"] - row["first_s"]) / (row["output_tokens"] - 1) for row in rows],
        "e2e_s": [row["last_s"] - row["send_s"] for row in rows],
    }
    return {
        name: dict(zip(STATISTICS, mean_and_quantiles(values), strict=True))
        for name, values in latencies.items()
    }
