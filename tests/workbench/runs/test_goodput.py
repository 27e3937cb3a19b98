"""Goodput and money: requests that meet all their limits, and what the accelerators cost."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.profile import read_profile
from config.sections.engine import DEFAULT_PROFILE
from tests.workbench.runs.test_command import HEADER, figures, refusal
from workbench.load.loads import LoadTrace
from workbench.runs.goodput import METRICS, goodput, read_limits
from workbench.runs.simulation import SimulationOutcome, SimulationPlan

WITH_CLASSES = "arrival_s,class,input_tokens,output_tokens\n"


def trace_of(path: Path, classes: bool = True) -> str:
    """Sixty requests of two classes, the second with long prompts."""
    rows = []
    for number in range(60):
        kind = ("chat", "code")[number % 2]
        row = [
            f"{number / 5}",
            *([kind] if classes else []),
            str(3000 if kind == "code" else 100),
            "20",
        ]
        rows.append(",".join(row))
    path.write_text((WITH_CLASSES if classes else HEADER) + "\n".join(rows) + "\n")
    return str(path)


def test_goodput_counts_the_requests_within_the_limits_of_their_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of(tmp_path / "trace.csv")
    requests = tmp_path / "requests.csv"
    limits = ["ttft:150", "code=e2el:371", "chat=tpot:15"]
    summary = figures(capsys, f"--trace={trace}", f"--requests={requests}", "--goodput", *limits)
    with requests.open() as file:
        rows = [
            {name: float(text) for name, text in fields.items()} for fields in csv.DictReader(file)
        ]
    good = [0, 0]
    for number, row in enumerate(rows):
        ttft = row["first_s"] - row["send_s"]
        e2e = row["last_s"] - row["send_s"]
        tpot = (row["last_s"] - row["first_s"]) / 19
        good[number % 2] += ttft <= 0.15 and (e2e <= 0.371 if number % 2 else tpot <= 0.015)
    goodput = summary["goodput"]
    assert [goodput["by_class"][name]["good"] for name in ("chat", "code")] == good
    assert goodput["good"] == sum(good) and 0 < sum(good) < goodput["requests"] == 60
    assert goodput["good_per_s"] == pytest.approx(sum(good) / summary["duration_s"])


def test_price_is_proportional_to_the_gpu_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of(tmp_path / "trace.csv", classes=False)
    summary = figures(capsys, f"--trace={trace}", "--pods=3", "--gpu-hour-price=2.5")
    hours = 3 * summary["duration_s"] / 3600
    price = summary["price"]
    assert summary["gpu_hours"] == pytest.approx(hours)
    assert price["total"] == pytest.approx(2.5 * hours)
    assert price["per_million_output_tokens"] == pytest.approx(2.5 * hours / 1200 * 1e6)
    assert figures(capsys, "--trace", trace)["price"] is None


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (
            ["tft:100"],
            "ttft|tpot|e2el:MILLISECONDS with MILLISECONDS greater than 0, not 'tft:100'",
        ),
        (["ttft:0"], "greater than 0, not 'ttft:0'"),
        (["ttft:nan"], "greater than 0, not 'ttft:nan'"),
        (["ttft"], "greater than 0, not 'ttft'"),
        (["=ttft:5"], "greater than 0, not '=ttft:5'"),
        (["ttft:1", "ttft:2"], "must not have two limits for ttft"),
        (["a=ttft:1", "a=ttft:2"], "must not have two limits for ttft in class a"),
    ],
)
def test_invalid_goodput_limit_is_rejected_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: list[str], rule: str
) -> None:
    trace = trace_of(tmp_path / "trace.csv")
    assert rule in refusal(capsys, f"--trace={trace}", "--goodput", *limits, status=2)


def test_requests_that_miss_their_latency_limit_are_counted_per_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "--trace",
        trace_of(tmp_path / "trace.csv"),
        "--autoscale",
        "schedule:0s=1,6s=2",
        "--cold-start",
        "1s",
    ]
    summary = figures(capsys, *argv, "--goodput", "code=ttft:1")
    missed = [interval["missed"] for interval in summary["fleet"]["intervals"]]
    assert (
        sum(missed) == 30 == summary["requests"] - summary["goodput"]["good"] and max(missed) < 10
    )
    assert summary["goodput"]["by_class"]["chat"]["good"] == 30


def test_goodput_limit_of_a_class_without_requests_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of(tmp_path / "trace.csv")
    plain = trace_of(tmp_path / "plain.csv", classes=False)
    message = refusal(capsys, f"--trace={trace}", "--goodput", "hat=ttft:1")
    assert message.endswith("has no requests of class hat; the classes are chat, code")
    assert refusal(capsys, f"--trace={plain}", "--goodput", "hat=ttft:1").endswith(
        "class hat, and no column class"
    )


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0, 10), st.integers(1, 50)), min_size=1, max_size=30
    ),
    st.dictionaries(st.sampled_from(METRICS), st.floats(1, 20_000), min_size=1),
)
def test_looser_goodput_limit_is_met_by_at_least_as_many_requests(
    moments: list[tuple[float, float, int]], limits: dict[str, float]
) -> None:
    load = LoadTrace("drawn")
    for number, (_, _, output) in enumerate(moments):
        load.arrival_s.append(float(number))
        load.input_tokens.append(1)
        load.output_tokens.append(output)
    outcome = SimulationOutcome(load, SimulationPlan(profile=read_profile(DEFAULT_PROFILE)))
    for number, (prefill_s, decode_s, _) in enumerate(moments):
        outcome.send_s[number] = number
        outcome.first_s[number] = number + prefill_s
        outcome.last_s[number] = number + prefill_s + decode_s
    strict = read_limits([f"{name}:{limit}" for name, limit in limits.items()])
    loose = read_limits([f"{name}:{2 * limit}" for name, limit in limits.items()])
    strict_goodput, loose_goodput = (
        goodput(outcome, latency_limits) for latency_limits in (strict, loose)
    )
    assert 0 <= strict_goodput.good <= loose_goodput.good <= loose_goodput.requests == len(moments)
    outcome.first_s[0] = float("nan")  # never got a token
    assert goodput(outcome, loose).good <= len(moments) - 1
