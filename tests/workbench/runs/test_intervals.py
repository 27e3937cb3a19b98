"""Intervals in the output of simulate, and engines slowed by their errors."""

import msgspec
import pytest

from tests.workbench.runs.test_command import figures
from workbench.runs import simulate

AUTO = ["--profile", "auto", "--device", "h100", "--tensor-parallel-size", "2"]
LOAD = ["--rate", "4", "--seconds", "10"]


def test_every_latency_of_a_computed_profile_has_an_error_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*AUTO, "--model", "qwen3-32b", *LOAD]
    summary = figures(capsys, *argv)
    intervals = summary["intervals"]
    assert intervals["coverage"] == 0.8
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert 0.3 < intervals[name]["low"] < intervals[name]["high"] < 3
    low = min(intervals["ttft"]["low"], intervals["tpot"]["low"])
    assert low <= intervals["e2e"]["low"]
    assert "qwen3-32b, h100" in intervals["nearest"]
    assert simulate.run(argv) == 0
    out = capsys.readouterr().out
    assert "80% interval |" in out.splitlines()[2]
    behind = "this model, or one like it, was measured on this device; nearest: qwen3-32b, h100"
    assert f"80% intervals; {behind}" in out
    percent = f"{intervals['tpot']['low'] - 1:+.0%} to {intervals['tpot']['high'] - 1:+.0%}"
    [row] = [line for line in out.splitlines() if line.startswith("| TPOT")]
    assert row.rstrip(" |").endswith(percent)


def test_configuration_far_from_all_measurements_has_a_wide_error_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    near = figures(capsys, *AUTO, "--model=qwen3-32b", *LOAD)["intervals"]
    argv = ["--profile", "auto", "--device", "a100", "--model", "google/gemma-2-9b-it", *LOAD]
    far = figures(capsys, *argv)["intervals"]
    assert far["distance"] > 1 > near["distance"]
    widths = [intervals["tpot"]["high"] - intervals["tpot"]["low"] for intervals in (near, far)]
    assert widths[1] > 2 * widths[0]
    assert (near["evidence"], far["evidence"]) == ("pair", "card")
    assert far["source"].startswith("https://")
    assert simulate.run(argv) == 0
    assert ", which is not near (distance " in capsys.readouterr().out


def test_fitted_profile_has_no_error_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert "intervals" not in figures(capsys, *LOAD)


def test_sweep_json_has_the_error_interval_of_the_latencies_at_each_point(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*AUTO, "--model", "qwen3-32b", "--seconds", "5", "--sweep", "rate=1:2:1", "--json", "-"]
    assert simulate.run([*argv, "--processes", "1"]) == 0
    points = msgspec.json.decode(capsys.readouterr().out)["points"]
    assert all(point["summary"]["intervals"]["tpot"]["high"] > 1 for point in points)
