"""`understudy plan --over-time`: the fewest accelerators in each window of a load."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workbench.runs.test_command import SHAPE
from workbench.load.loads import LoadTrace
from workbench.plan.command import run
from workbench.plan.over_time import window_rates
from workbench.runs.sweeps import MAX_VALUES, PODS

SLO = ["--goodput", "ttft:1000", "tpot:30"]
ENGINE = ["--device", "h100=2.5", "--tensor-parallel-size", "1", "--prefill-share", "0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_bytes(msgspec.json.encode(SHAPE))
    return ["--model-config", str(path)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes: 2 requests a second, and then 40."""
    path = tmp_path_factory.mktemp("trace") / "load.csv"
    rows = ["arrival_s,input_tokens,output_tokens"]
    rows += [f"{number / 2},3000,100" for number in range(120)]
    rows += [f"{60 + number / 40},3000,100" for number in range(2400)]
    path.write_text("\n".join(rows) + "\n")
    return path


def plan_of(model: list[str], trace: Path, *window: str) -> Any:
    """The plan for windows of a minute, if no other `window` is given, on the only engine."""
    file = trace.with_suffix(".json")
    load = ["--trace", str(trace), "--over-time", *window]
    assert run([*model, *ENGINE, *SLO, *load, "--json", str(file)]) == 0
    [plan] = msgspec.json.decode(file.read_bytes())["loads"][0]["engines"]
    return plan


@pytest.fixture(scope="module")
def plan(model: list[str], trace: Path) -> Any:
    """The plan of `trace`, which takes a second."""
    return plan_of(model, trace)


def test_each_window_has_enough_pods_for_its_rate(plan: Any) -> None:
    quiet, busy = plan["gpus"]
    capacity = plan["requests_per_s_of_a_pod"]
    assert busy - 1 < 40 / capacity <= busy
    assert quiet - 1 < 2 / capacity <= quiet
    assert plan["peak_gpus"] == busy > quiet
    assert plan["gpu_hours"] == pytest.approx((60 * quiet + 60 * busy) / 3600, rel=0.01)
    assert plan["price"] == pytest.approx(2.5 * plan["gpu_hours"])


def test_pod_sustains_its_computed_capacity(
    model: list[str], plan: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [str(round(share * plan["requests_per_s_of_a_pod"], 3)) for share in (0.9, 1.25)]

    drawn = ["--rate", *rates, "--input-tokens", "3000", "--output-tokens", "100"]
    one_pod = [*model, *ENGINE, *SLO, *drawn, "--seconds", "60", "--max-pods", "1"]
    few = ["--max-num-seqs", "1024", "--max-num-batched-tokens", "8192", "--processes", "1"]
    assert run([*one_pod, *few, "--json", "-"]) == 1
    below, above = msgspec.json.decode(capsys.readouterr().out)["loads"]
    assert below["cheapest"] is not None
    assert above["cheapest"] is None


def test_window_of_60_seconds_gives_the_same_plan_as_the_default_window(
    model: list[str], trace: Path, plan: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "another.csv"
    copy.write_bytes(trace.read_bytes())
    assert plan_of(model, copy, "60s") == plan


def test_images_of_a_load_belong_to_the_repeated_requests(tmp_path: Path) -> None:
    path = tmp_path / "images.csv"
    rows = ["arrival_s,input_tokens,output_tokens,image_tokens", "0,4000,50,3000", "1,4000,50,"]
    path.write_text("\n".join(rows) + "\n")
    model = ["--model", "Qwen/Qwen2.5-VL-7B-Instruct"]
    with_images = plan_of(model, path)["requests_per_s_of_a_pod"]
    path.write_text("\n".join(row.replace("50,3000", "50,") for row in rows) + "\n")
    assert 0 < with_images < plan_of(model, path)["requests_per_s_of_a_pod"]


def test_rate_of_a_shorter_last_window_is_computed_from_its_duration() -> None:
    load = LoadTrace("test")
    for arrival_s in (0.0, 5.0, 9.0, 10.0, 11.0, 12.0):
        load.arrival_s.append(arrival_s)
    assert window_rates(load, 10.0) == ([0.3, 1.5], 12.0)


def test_single_request_in_a_short_window_counts_as_one_per_second() -> None:
    load = LoadTrace("test")
    for arrival_s in (0.0, 5.0, 9.0, 10.001):
        load.arrival_s.append(arrival_s)
    assert window_rates(load, 10.0) == ([0.3, 1.0], 10.001)


def test_single_request_in_a_load_counts_as_one_request_per_second() -> None:
    load = LoadTrace("test")
    load.arrival_s.append(3.0)
    assert window_rates(load, 60.0)[0] == [1.0]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (["0,3000,100", "9999999,3000,100"], "has 9,999,999 windows of 1 s"),
        (
            [f"{number / 1e7:.7f},3000,100" for number in range(200)],
            "pods, but at most 10",
        ),
    ],
)
def test_load_with_too_many_windows_or_pods_is_rejected(
    model: list[str],
    tmp_path: Path,
    rows: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MAX_VALUES, PODS, 10)
    path = tmp_path / "load.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    assert run([*model, *ENGINE, *SLO, "--trace", str(path), "--over-time", "1s"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--goodput", "tpot:0.1"], "no request rate meets"),
        ([*SLO, "--plot", "over.png"], "--plot cannot be combined with --over-time"),
        ([*SLO, "--in-flight", "4"], "arrivals that do not depend on replies"),
    ],
)
def test_flags_that_do_not_fit_a_plan_over_time_are_rejected(
    model: list[str],
    trace: Path,
    flags: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--trace", str(trace), "--over-time"]
    assert run([*model, *ENGINE, *load, *flags]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err
