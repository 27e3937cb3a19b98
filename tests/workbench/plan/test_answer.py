"""The first lines of a plan: its verdict, and what it depends on."""

from __future__ import annotations

import pytest

from tests.workbench.plan.test_plan import figures
from workbench.load.tables import MAX_WIDTH
from workbench.plan.command import run

ENGINE = ["--model", "qwen3-14b", "-tp", "1", "--processes", "1", "--max-num-seqs", "256"]
ENGINE += ["--max-num-batched-tokens", "8192", "--rate", "4", "--seconds", "5"]
SLO = ["--slo", "ttft_p95=1s,tpot_p95=40ms"]
WHOLE = ["--prefill-share", "0"]


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert run(argv) == 0
    return capsys.readouterr().out.splitlines()


def test_first_line_is_the_cheapest_fleet_with_price_and_certainty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*ENGINE, *SLO, *WHOLE, "--device", "h100=2"]
    verdict, *lines = printed(capsys, *argv)
    assert verdict.startswith("Cheapest: h100 tp 1 x 1, 2.00 per hour; tpot_p95 is at ")
    assert "% of its limit, 80% sure between " in verdict
    assert not any(line.startswith("warning: ") for line in lines)
    assert lines[-1].startswith("repeat: understudy simulate ")
    assert all(len(line) <= MAX_WIDTH for line in lines if line.startswith("|"))
    assert figures(capsys, *argv)["loads"][0]["verdict"] == verdict


def test_unmeasured_fleet_comes_with_the_cheapest_measured_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*ENGINE, *SLO, *WHOLE, "--device", "b300=2", "h100=2.5"]
    verdict, warning, *_ = printed(capsys, *argv)
    assert verdict.startswith("Cheapest, if its figures hold, which were never measured: b300 tp 1")
    assert warning.startswith("warning: no server like this was measured (dense, BF16, ")
    assert warning.endswith(
        "; the cheapest fleet with measured figures is h100 tp 1 x 1, 2.50 per hour (+25%)"
    )


def test_unmeasured_fleet_without_a_measured_one_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, warning, *_ = printed(capsys, *ENGINE, *SLO, *WHOLE, "--device", "b300=2")
    assert warning.endswith("; no fleet with measured figures meets the limits")


def test_measured_fleet_that_is_too_dear_to_be_simulated_is_named_with_its_least_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*ENGINE, *SLO, *WHOLE, "--device", "b300=1", "h100=9"]
    _, warning, *_ = printed(capsys, *argv)
    assert warning.endswith(
        "; the cheapest with measured figures, h100 tp 1, costs at least 9.00 per hour"
    )


def test_each_of_several_loads_has_a_verdict_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, *ENGINE, *SLO, *WHOLE, "--device", "h100=2", "--rate", "2", "4")
    assert [line.partition(":")[0] for line in lines if line.startswith("Cheapest")] == [
        "Cheapest for 2/s",
        "Cheapest for 4/s",
    ]
    assert lines[0].startswith("Cheapest for 2/s")


def test_models_that_share_a_fleet_have_one_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--model", "qwen3-14b", "qwen3-8b", "--rate", "2", "2", "--together"]
    verdict, *_ = printed(capsys, *ENGINE, *models, *SLO, *WHOLE, "--device", "h100=2")
    assert verdict.startswith("Cheapest together: h100 tp 1 ")
    assert verdict.endswith(", 4.00 per hour for 2 devices")


def test_plan_without_limits_shows_how_to_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ENGINE, "--device", "h100=2"]) == 2
    assert capsys.readouterr().err == (
        "error: limits are required, such as --slo ttft_p95=1s,tpot_p95=50ms or"
        " --goodput ttft:1000\n"
    )
