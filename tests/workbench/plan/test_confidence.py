"""plan --confidence: fleets that meet the SLO with a probability, and their neighbors."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.workbench.plan.test_plan import figures
from workbench.plan.command import run
from workbench.plan.fleets import Candidate, PlannedFleet
from workbench.plan.uncertainty import Uncertainty

ARGV = ["--model", "qwen3-14b", "--device", "h100=2", "--tensor-parallel-size", "1"]
ARGV += ["--prefill-share", "0", "--processes", "1", "--max-num-seqs", "256"]
ARGV += ["--max-num-batched-tokens", "8192", "--policy", "least-requests"]
LOAD = ["--rate", "24", "--seconds", "10", "--goodput", "ttft:1000", "tpot:30"]

NEAR = ["--rate", "28"]
"""A load that a pod less misses by 15 %."""


def answer(capsys: pytest.CaptureFixture[str], flags: Sequence[str] = ()) -> Any:
    return figures(capsys, *ARGV, *LOAD, *flags)["loads"][0]


def test_plan_with_a_higher_confidence_costs_more(capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer(capsys)["cheapest"]
    likely = answer(capsys, ["--confidence", "90%"])["cheapest"]
    sure = answer(capsys, ["--confidence", "99%"])["cheapest"]
    prices = [fleet["price_per_hour"] for fleet in (plain, likely, sure)]
    assert prices == sorted(prices)
    assert prices[2] > prices[0]
    assert likely["pods"] in range(plain["pods"], sure["pods"] + 1)


def test_fleet_uses_more_of_its_latency_limit_at_a_higher_confidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = answer(capsys)["simulated"]
    likely = answer(capsys, ["--confidence", "90%"])["simulated"]
    shares = {fleet["pods"]: fleet["slo_share"] for fleet in plain}
    common = [fleet for fleet in likely if fleet["pods"] in shares]
    assert common
    assert all(fleet["slo_share"] > shares[fleet["pods"]] for fleet in common)


def test_plan_names_the_binding_limit_and_the_next_cheaper_fleet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = answer(capsys, NEAR)
    best = document["cheapest"]
    assert best["binds"] in ("ttft", "tpot")
    assert best["slo_share"] <= 1
    cheaper = document["next_cheaper"]
    assert cheaper["price_per_hour"] < best["price_per_hour"] and cheaper["misses"]
    assert run([*ARGV, *LOAD, *NEAR, "--why"]) == 0
    out = capsys.readouterr().out
    assert f"\nbinds: {best['binds']} at {best['slo_share']:.0%} of its limit\n" in out
    assert f"next cheaper: h100 tp 1 x {cheaper['pods']} " in out
    assert f"cheaper, misses {cheaper['misses']}" in out


def test_plan_states_the_probability_of_meeting_the_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ARGV, *LOAD, "--confidence", "80%"]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.endswith("; 80% sure within the limits")
    heading = next(line for line in lines if line.startswith("24/s: "))
    assert heading.endswith("for 99 % of requests, met with a probability of 80%; least-requests")


@pytest.mark.parametrize(
    ("value", "rule"),
    [("0.9", "must be a percentage"), ("40%", "must be between 50% and 99%"), ("x%", "must be")],
)
def test_invalid_confidence_is_rejected_with_a_one_line_error(
    capsys: pytest.CaptureFixture[str], value: str, rule: str
) -> None:
    assert run([*ARGV, *LOAD, "--confidence", value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert rule in err and err.count("\n") == 1


def test_result_names_the_uncertainty_that_asks_for_more_pods(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = answer(capsys)
    assert plain["uncertainty"] is None
    likely = answer(capsys, ["--confidence", "99%"])
    uncertainty = likely["uncertainty"]
    assert uncertainty["plain_pods"] == plain["cheapest"]["pods"]
    assert uncertainty["pods"] == likely["cheapest"]["pods"] > uncertainty["plain_pods"]
    assert uncertainty["plain_price_per_hour"] == plain["cheapest"]["price_per_hour"]
    assert uncertainty["cause"] == "model"
    assert uncertainty["token_factor"] > 1
    assert run([*ARGV, *LOAD, "--confidence", "99%"]) == 0
    out = capsys.readouterr().out
    assert "\nconfidence 99%: " in out and "more than without it, for the model's error" in out
    assert "largest uncertainty: model" in out


def test_result_names_the_cheaper_engine_that_would_be_chosen_without_a_confidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    devices = ["--device", "h100=2", "h200=2.2"]
    plain = answer(capsys, devices)["cheapest"]
    assert plain["device"] == "h100"
    flags = [*devices, "--confidence", "80%"]
    likely = answer(capsys, flags)
    assert likely["cheapest"]["device"] == "h200"
    uncertainty = likely["uncertainty"]
    assert uncertainty["plain_pods"] == uncertainty["pods"]
    assert uncertainty["plain_fleet"] == f"h100 tp 1 x {plain['pods']}"
    assert uncertainty["plain_price_per_hour"] == plain["price_per_hour"]
    assert uncertainty["cause"] == "model"
    assert run([*ARGV, *LOAD, *flags]) == 0
    out = capsys.readouterr().out
    assert f", 10% more expensive than h100 tp 1 x {plain['pods']} without it, for the" in out


def test_plan_prints_the_measured_errors_of_servers_like_the_chosen_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ARGV, *LOAD, "--why"]) == 0
    assert "\nmeasured errors: dense, BF16, Hopper: TPOT " in capsys.readouterr().out
    assert answer(capsys)["cheapest"]["measured_errors"]["situation"] == "dense, BF16, Hopper"


@pytest.mark.parametrize(
    ("load_pods", "routing_pods", "cause"),
    [(4, 4, "model"), (6, 4, "load"), (4, None, "routing"), (None, 5, "load")],
)
def test_largest_uncertainty_is_the_one_that_needs_the_most_pods(
    capsys: pytest.CaptureFixture[str],
    load_pods: int | None,
    routing_pods: int | None,
    cause: str,
) -> None:
    engine = Candidate("h100 tp 1", job=None)  # type: ignore[arg-type]
    uncertainty = Uncertainty(
        best=PlannedFleet(engine, 5),
        confidence=0.9,
        plain=PlannedFleet(engine, 4),
        plain_pods=4,
        load_pods=load_pods,
        routing_pods=routing_pods,
        ttft_factor=1.2,
        token_factor=1.1,
        has_draws=True,
    )
    assert uncertainty.cause == cause
    assert str(uncertainty).endswith(f"largest uncertainty: {cause}")
