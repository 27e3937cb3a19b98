"""The picture of a plan: its price axis and its labels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from tests.workbench.runs.test_token_gaps import outcome_of
from workbench.plan import plan_report
from workbench.plan.fleets import Candidate, PlannedFleet
from workbench.plan.search import FleetSearch
from workbench.plan.slo import Verdict
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.summary import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class DrawnFleet(PlannedFleet):
    """A fleet with a price of its own."""

    @property
    def price(self) -> float:
        """Price that is the number of pods."""
        return float(self.pods)

    @property
    def prefill_pods(self) -> int:
        """None."""
        return 0


class DrawnSearch(FleetSearch):
    """A search that has ended."""

    def __init__(self, shares: dict[int, float], outcome: SimulationOutcome) -> None:
        """`shares` are the worst latencies by price."""
        engine = Candidate("h100 tp 1", None)  # type: ignore[arg-type]
        for pods, share in shares.items():
            engine.verdicts[pods] = Verdict(
                share, "ttft" if share > 1 else "", summarize(outcome, "made"), "ttft"
            )
        self._fleets = [DrawnFleet(engine, pods) for pods in shares]

    def fleets(self) -> list[PlannedFleet]:
        """Returns all fleets."""
        return list(self._fleets)

    def best_of_groups(self) -> list[PlannedFleet]:
        """Returns the first fleet within the limits."""
        return [fleet for fleet in self._fleets if fleet.verdict.slo_share <= 1][:1]


@pytest.fixture
def axes() -> Iterator[Axes]:
    from matplotlib.figure import Figure

    yield Figure(figsize=(6.4, 3.8)).add_subplot()


def test_picture_has_a_bar_for_each_fleet_and_the_limit_as_a_line(axes: Axes) -> None:
    search = DrawnSearch({1: 1.4, 2: 0.8, 3: 0.6, 4: 9.0}, outcome_of([(0.0, 10, 5)]))
    plan_report.draw_bars(axes, "load", search)
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        *("h100 tp 1 x 1, 1.00/h", "h100 tp 1 x 2, 2.00/h", "h100 tp 1 x 3, 3.00/h")
    ]
    assert [round(bar.get_width()) for bar in axes.patches] == [140, 80, 60]
    [limit] = axes.lines
    assert list(limit.get_xdata()) == [100, 100]
    assert axes.get_xlim()[1] > 140


def test_labels_of_many_bars_do_not_overlap(axes: Axes) -> None:
    shares = {100 + number: 0.9 - 0.003 * number for number in range(60)}
    search = DrawnSearch(shares, outcome_of([(0.0, 10, 5)]))
    plan_report.draw_bars(axes, "load", search)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == plan_report.MAX_BARS
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
