"""The columns of a plan and of a sweep, and the near miss of a plan."""

import pytest

from tests.workbench.runs.test_token_gaps import outcome_of
from workbench.plan.command import run
from workbench.plan.fleets import Candidate, PlannedFleet
from workbench.plan.search import FleetSearch
from workbench.plan.slo import Slo, Verdict
from workbench.runs import simulate
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.summary import Objective, objective_columns, summarize

ENGINE = ["--model", "qwen3-14b", "--device", "h100=2", "--tensor-parallel-size", "1"]
ENGINE += ["--prefill-share", "0", "--processes", "1", "--max-num-seqs", "256"]
ENGINE += ["--max-num-batched-tokens", "8192", "--rate", "4", "--seconds", "5"]


class PricedFleet(PlannedFleet):
    """A fleet whose price is its number of pods."""

    @property
    def price(self) -> float:
        """Number of pods."""
        return float(self.pods)


class EndedSearch(FleetSearch):
    """A search that has ended."""

    def __init__(self, shares: dict[int, float], outcome: SimulationOutcome) -> None:
        """`shares` are the worst latencies by number of pods."""
        engine = Candidate("h100 tp 1", None)  # type: ignore[arg-type]
        for pods, share in shares.items():
            engine.verdicts[pods] = Verdict(share, "", summarize(outcome, "made"), "ttft")
        self._fleets = [PricedFleet(engine, pods) for pods in shares]

    def fleets(self) -> list[PlannedFleet]:
        """Returns all fleets."""
        return list(self._fleets)


def heads(text: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith("|"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("flags", "columns"),
    [
        (["--slo", "ttft_p95=1s,tpot_p95=90ms"], ["TTFT p95", "TPOT p95", "E2E p95"]),
        (
            ["--slo", "ttft_p90=1s,ttft_mean=1s,itl_p99.9=9s"],
            ["TTFT p90", "TTFT mean", "TPOT p90", "ITL p99.9", "E2E p90"],
        ),
        (["--goodput", "ttft:1000", "tpot:90"], ["TTFT p99", "TPOT p99", "E2E p99"]),
        (
            ["--goodput", "ttft:1000", "--attainment", "0.93"],
            ["TTFT p95", "TPOT p95", "E2E p95"],
        ),
    ],
)
def test_plan_table_has_a_column_for_each_statistic_of_the_slo(
    flags: list[str], columns: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ENGINE, *flags]) == 0
    names = heads(capsys.readouterr().out)
    assert [name for name in names if name[:4] in ("TTFT", "TPOT", "ITL ", "E2E ")] == columns


def test_sweep_has_a_column_for_each_statistic_of_the_slo(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--sweep", "rate=1:2:1", "--seconds", "5", "--slo", "ttft_p95=1s", "--processes", "1"]
    assert simulate.run(argv) == 0
    names = heads(capsys.readouterr().out)
    latencies = ["TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "ITL p95", "E2E p95"]
    assert [name for name in names if name in latencies] == latencies
    assert not any("p99" in name for name in names)


def test_columns_without_objectives_are_p99() -> None:
    assert objective_columns(()) == [
        ("ttft", "p99"),
        ("tpot", "p99"),
        ("itl", "p99"),
        ("e2e", "p99"),
    ]


def test_next_cheaper_fleet_misses_no_limit_by_more_than_a_factor_of_two() -> None:
    search = EndedSearch({4: 0.9, 3: 24.6, 2: 1.9, 1: 80.0}, outcome_of([(0.0, 10, 5)]))
    [best, *_] = [fleet for fleet in search.fleets() if fleet.pods == 4]
    cheaper = search.next_cheaper(best)
    assert cheaper is not None and cheaper.pods == 2
    far = EndedSearch({4: 0.9, 3: 2.1}, outcome_of([(0.0, 10, 5)]))
    assert far.next_cheaper(best) is None


def test_limits_of_classes_share_the_column_of_their_latency() -> None:
    limits = {"chat": {"ttft": 0.5}, "": {"e2el": 9.0, "ttft": 1.0}}
    slo = Slo(limits, 0.95, (Objective("itl", "p50", 0.1),))
    assert slo.columns() == [("ttft", "p95"), ("tpot", "p50"), ("itl", "p50"), ("e2e", "p95")]
