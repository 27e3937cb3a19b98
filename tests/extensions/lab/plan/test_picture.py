"""The picture of a plan: its price axis and its labels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from app.extensions.lab.fidelity.simulation import SimulationOutcome
from app.extensions.lab.fidelity.summary import summarize
from app.extensions.lab.plan import plan_report
from app.extensions.lab.plan.fleets import Candidate, PlannedFleet
from app.extensions.lab.plan.search import FleetSearch
from app.extensions.lab.plan.slo import Verdict
from tests.extensions.lab.fidelity.test_token_gaps import outcome_of

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
            engine.verdicts[pods] = Verdict(share, "", summarize(outcome, "made"), "ttft")
        self._fleets = [DrawnFleet(engine, pods) for pods in shares]

    def fleets(self) -> list[PlannedFleet]:
        """Returns all fleets."""
        return list(self._fleets)

    def cheapest(self) -> PlannedFleet | None:
        """Returns the first one."""
        return self._fleets[0]


@pytest.fixture
def axes() -> Iterator[Axes]:
    from matplotlib.figure import Figure

    yield Figure(figsize=(6.4, 3.8)).add_subplot()


def test_labels_of_a_plan_chart_do_not_overlap(
    axes: Axes,
) -> None:
    shares = {100 + number: 0.9 - 0.003 * number for number in range(30)}
    search = DrawnSearch(shares, outcome_of([(0.0, 10, 5)]))
    plan_report._draw_search(axes, "load", search, has_labels=True)
    lowest, highest = axes.get_xlim()
    assert 80 < lowest < 100
    assert 129 < highest < 135
    boxes = [text.get_window_extent() for text in axes.texts]
    assert axes.texts[0].get_text() == "h100 tp 1 x 100"
    assert len(boxes) > 1
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
