"""ITL per gap beside TPOT per request, and objectives on their quantiles."""

import pytest

from app.core.engine.profile import CostConstants, EngineLimits, FrontCosts, Profile
from workbench.load.loads import LoadTrace
from workbench.runs.simulation import SimulationOutcome, SimulationPlan, simulate
from workbench.runs.summary import read_objectives, summarize
from workbench.runs.token_gaps import TokenGaps

STEP_S = 0.01
PER_TOKEN_S = 1e-4


def outcome_of(rows: list[tuple[float, int, int]], blocks: int = 10_000) -> SimulationOutcome:
    """Simulates requests with arrival, input and output tokens."""
    profile = Profile(
        source="made",
        model="",
        device="",
        engine=EngineLimits(num_gpu_blocks=blocks, max_num_batched_tokens=4096),
        cost=CostConstants(base=STEP_S, per_token=PER_TOKEN_S),
        front=FrontCosts(),
    )
    load = LoadTrace("rows")
    for arrival_s, input_tokens, output_tokens in rows:
        load.arrival_s.append(arrival_s)
        load.input_tokens.append(input_tokens)
        load.output_tokens.append(output_tokens)
    return simulate(load, SimulationPlan(profile=profile))


def test_prompt_that_stalls_a_decode_affects_the_itl_more_than_the_tpot() -> None:
    stalled = outcome_of([(0.0, 10, 201), (0.5, 3000, 1)])
    summary = summarize(stalled, "made")
    stall_s = STEP_S + 3001 * PER_TOKEN_S
    assert summary.itl_s.p50 == pytest.approx(STEP_S + PER_TOKEN_S, abs=1e-5)
    assert summary.itl_s.p999 == pytest.approx(stall_s, abs=1e-5)
    assert summary.tpot_s.p999 is not None and summary.tpot_s.p999 < 0.02
    objectives = read_objectives("itl_p99.9=300ms,tpot_p99.9=50ms,ttft_p95=1s")
    assert [objective.is_met(summary) for objective in objectives] == [False, True, True]


def test_mean_gap_of_a_request_is_its_tpot() -> None:
    summary = summarize(outcome_of([(0.0, 10, 101)]), "made")
    assert summary.itl_s.mean == pytest.approx(summary.tpot_s.mean, abs=1e-5)


def test_every_simulated_token_after_the_first_of_its_request_has_a_gap() -> None:
    outcome = outcome_of([(0.001 * number, 50, 10 + number) for number in range(20)])
    assert outcome.gaps.count == sum(9 + number for number in range(20))


def test_preemption_appears_as_one_long_token_gap() -> None:
    rows = [(0.0, 60, 100), (0.0, 60, 100)]
    squeezed = outcome_of(rows, blocks=16)
    assert squeezed.preemptions > 0
    assert squeezed.gaps.count == outcome_of(rows).gaps.count
    total_s = sum(
        last - first for first, last in zip(squeezed.first_s, squeezed.last_s, strict=True)
    )
    # The pause is counted from the last token that was sent before the preemption was decided.
    assert squeezed.gaps.mean_s * squeezed.gaps.count == pytest.approx(total_s, rel=0.05)
    [longest_s] = squeezed.gaps.quantiles_s([0.999])
    assert longest_s > 10 * STEP_S


def test_quantiles_of_token_gaps_are_not_interpolated() -> None:
    gaps = TokenGaps()
    gaps.add(0.001, 98, 1.0)
    gaps.add(0.5, 1, 1.0)
    gaps.add(0.2, 1, 1.0)
    assert list(gaps.quantiles_s([0.5, 0.98, 0.99, 0.999])) == pytest.approx([0.001, 0.2, 0.5, 0.5])
    assert gaps.mean_s == pytest.approx((0.098 + 0.7) / 100)


def test_simulated_run_without_token_gaps_meets_any_itl_objective() -> None:
    summary = summarize(outcome_of([(0.0, 10, 1)]), "made")
    assert summary.itl_s.p99 is None
    assert all(objective.is_met(summary) for objective in read_objectives("itl_p99=1ms"))
