"""Scores of drills: counts by phase, their hash, what differs, and how near a run was to that."""

from pathlib import Path

import msgspec
import pytest

from config import ConfigError
from workbench.drills.drill_file import Drill
from workbench.drills.load import Outcome
from workbench.drills.report import read_figures
from workbench.drills.reusable import reusable_tokens
from workbench.drills.schedule import PlayedStep, Step, phases_of
from workbench.drills.score import Figures, differences, measure, score

DRILL = msgspec.convert(
    {"duration": "10s", "pods": 2, "failures": [{"action": "kill", "at": "4s", "pod": 1}]}, Drill
)


def outcome(
    number: int, latency_s: float = 1.0, error: str = "", pods: tuple[int, ...] = (0,)
) -> Outcome:
    return Outcome(
        number=number,
        due_s=float(number),
        sent_s=number + 0.01,
        end_s=number + 0.01 + latency_s,
        error=error,
        prompt_tokens=100,
        cached_tokens=40,
        reusable_tokens=80,
        pods=pods,
    )


def outcomes() -> list[Outcome]:
    run = [outcome(number, pods=(number % 2,)) for number in range(5)]
    run += [outcome(5, pods=(1, 0)), outcome(6, 2.5), outcome(7, error="timeout", pods=(1,))]
    run += [outcome(8, error="status 502", pods=()), outcome(9)]
    return run


def figures(retry_counts: tuple[int, ...] = ()) -> Figures:
    return score(DRILL, phases_of(DRILL), outcomes(), retry_counts)


def test_requests_belong_to_the_phase_in_which_they_are_due() -> None:
    first_phase, kill_phase = figures().phases
    assert (first_phase.name, first_phase.sent, first_phase.answered, first_phase.lost) == (
        "before",
        5,
        5,
        0,
    )
    assert (kill_phase.name, kill_phase.sent, kill_phase.answered, kill_phase.lost) == (
        "kill 1",
        5,
        3,
        2,
    )
    assert (kill_phase.retried, kill_phase.slow) == (1, 1)
    assert kill_phase.errors == {"status 502": 1, "timeout": 1}
    total = figures().total
    assert (total.sent, total.answered, total.lost) == (10, 8, 2)
    assert figures().answered_by_pod == (6, 2)


def test_cached_tokens_of_lost_requests_are_not_counted() -> None:
    killed = figures().phases[1]
    assert (killed.prompt_tokens, killed.cached_tokens, killed.reusable_tokens) == (300, 120, 240)
    assert killed.cached_share == pytest.approx(0.4)
    assert killed.kept_share == pytest.approx(0.5)


def test_router_retries_of_a_phase_are_the_increase_in_the_retry_counter() -> None:
    counted = figures((7, 7, 12))
    assert [phase.router_retries for phase in counted.phases] == [0, 5]
    assert counted.total.router_retries == 5
    assert figures().total.router_retries is None


def test_drill_reports_with_equal_counts_have_equal_hashes() -> None:
    later = [msgspec.structs.replace(outcome, end_s=outcome.end_s + 0.2) for outcome in outcomes()]
    repeated = score(DRILL, phases_of(DRILL), later)
    assert repeated.digest == figures().digest
    assert differences(repeated, figures()) == []


def test_different_request_count_changes_the_hash_of_a_drill_report() -> None:
    run = outcomes()
    run[6] = outcome(6)
    changed = score(DRILL, phases_of(DRILL), run)
    assert changed.digest != figures().digest
    assert differences(changed, figures()) == [
        "kill 1, at 4.5 s: slow 1 -> 0",
        "total, at 0 s: slow 1 -> 0",
    ]


def test_phases_of_different_drills_are_not_compared() -> None:
    quiet = msgspec.structs.replace(DRILL, failures=())
    other = score(quiet, phases_of(quiet), outcomes())
    [line] = differences(other, figures())
    assert "different drills" in line


def test_failure_margin_is_the_time_to_the_nearest_request() -> None:
    run = [outcome(3, 1.3, pods=(1,)), outcome(4, 0.2, pods=(0,)), outcome(4, 0.9, pods=(1,))]
    played = [PlayedStep(Step(4.5, 1, "kill", 1), 0.0, 0.02)]
    margins = measure(DRILL, run, played).margins
    assert margins.failure_s == pytest.approx(4.5 - 4.31)
    assert margins.slow_s == pytest.approx(0.7)
    assert margins.timeout_s == pytest.approx(8.7)


def test_order_margin_is_the_gap_between_consecutive_requests() -> None:
    run = [outcome(0, 0.6), outcome(1, 0.75), outcome(2, 1.7)]
    margins = measure(DRILL, run, []).margins
    assert margins.order_s == pytest.approx(0.25)  # 1.76 is the end, and 2.01 the next start
    assert measure(DRILL, run[:1], []).margins.order_s is None


def test_run_without_responses_has_no_latencies() -> None:
    times = measure(DRILL, [outcome(1, error="timeout")], [])
    assert times.p50_s is None
    assert times.margins.slow_s is None


def test_figures_of_a_drill_report_are_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode({"figures": figures(), "digest": "x"}))
    assert read_figures(path) == figures()
    path.write_text('{"figures": 3}')
    with pytest.raises(ConfigError, match="is not a drill report"):
        read_figures(path)


def test_reusable_tokens_are_counted_in_full_blocks_of_earlier_prompts() -> None:
    first = list(range(10))
    prompts = [first, first, [*range(8), 99, 98, 97], [7, *range(1, 10)], list(range(8))]
    # The last token of a prompt is always computed, so eight tokens have one block of four.
    assert reusable_tokens(prompts, 4) == [0, 8, 8, 0, 4]
