"""80 % intervals of simulated latencies, and engines that are slower by their error."""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from workbench.engine.costs import (
    COVERAGE,
    NEAR,
    ErrorSpread,
    Evidence,
    Situation,
    known_errors,
    published_errors,
)
from workbench.engine.steps import Batch, CostModel, Profile, S, StepCost, least_seconds
from workbench.runs.pod_maker import StepCosts


class FactorRange(Struct, frozen=True):
    """Ends of an interval, as factors of the simulated latency."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low - 1:+.0%} to {self.high - 1:+.0%}"


class Intervals(Struct, frozen=True, kw_only=True):
    """Intervals that hold for mean and quantiles of each latency."""

    coverage: float
    """Share of measured servers inside of such intervals."""
    ttft: FactorRange
    tpot: FactorRange
    itl: FactorRange
    e2e: FactorRange
    nearest: str
    """The measured servers that are most like the simulated one; empty where none is near."""
    distance: float
    """Unlikeness of the nearest run; 0 for the same situation."""
    evidence: str
    """Level of evidence: `pair`, `card`, `kernels` or `none`."""
    source: str
    """Address where the nearest measurement was published; empty for that of InferenceMAX."""

    def __str__(self) -> str:
        text = f"{self.coverage:.0%} intervals; {Evidence[self.evidence.upper()].text}"
        if self.nearest:
            text += f"; nearest: {self.nearest}"
            if self.source:
                text += f" ({self.source})"
            if self.distance > NEAR:
                text += f", which is not near (distance {self.distance:.1f})"
        return text


class Errors(Struct, frozen=True):
    """Distributions of the errors of a simulated run."""

    ttft: ErrorSpread
    tpot: ErrorSpread

    def intervals(self, *, ttft_s: float, e2e_s: float) -> Intervals:
        """Returns the intervals of a run with these means."""
        ttft = FactorRange(self.ttft.low, self.ttft.high)
        tpot = FactorRange(self.tpot.low, self.tpot.high)
        first_share = ttft_s / e2e_s if e2e_s else 1.0
        e2e = FactorRange(
            first_share * ttft.low + (1 - first_share) * tpot.low,
            first_share * ttft.high + (1 - first_share) * tpot.high,
        )
        return Intervals(
            coverage=COVERAGE,
            ttft=ttft,
            tpot=tpot,
            itl=tpot,
            e2e=e2e,
            nearest=self.tpot.nearest,
            distance=self.tpot.distance,
            evidence=self.tpot.evidence.name.lower(),
            source=self.tpot.source,
        )


def errors_of(
    situation: Situation, *, concurrency: float, input_tokens: float, output_tokens: float
) -> Errors:
    """Returns the errors of a run by its situation, its running requests, and mean lengths."""
    situation = msgspec.structs.replace(
        situation,
        concurrency=concurrency,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )
    return Errors(_spread(situation, "ttft"), _spread(situation, "tpot"))


def _spread(situation: Situation, figure: str) -> ErrorSpread:
    """Returns the errors of a figure, from the runs with the best evidence.

    Cells are many runs of few servers, published runs are few of many.
    """
    cells = known_errors()
    published = published_errors()
    spread = cells.spread(situation, figure)
    has_cells = cells.has_device(situation.device)
    if has_cells and spread.evidence >= published.evidence(situation, figure):
        return spread
    return published.spread(situation, figure)


def confidence_factors(errors: Errors, confidence: float) -> tuple[float, float]:
    """Returns the factors of TTFT and TPOT that are not exceeded with this probability.

    They are at least 1, as the bounds of a search for a fleet hold for the simulated costs.
    """
    tpot = max(1.0, errors.tpot.factor(confidence))
    return max(tpot, errors.ttft.factor(confidence)), tpot


class SlowedCost:
    """Costs of steps times a factor."""

    def __init__(self, cost: CostModel, factor: float) -> None:
        self._cost = cost
        self._factor = factor

    def seconds(self, batch: Batch[S], start_s: float, idle: bool) -> float:
        """Returns the seconds of a step."""
        return self._factor * self._cost.seconds(batch, start_s, idle)

    @property
    def least_s(self) -> float:
        """See `least_seconds`."""
        return self._factor * least_seconds(self._cost)


@dataclass(frozen=True, slots=True)
class SlowedCosts:
    """Makes the cost models of pods that are slower by a factor."""

    step_costs: StepCosts | None
    factor: float

    def __call__(self, profile: Profile) -> CostModel:
        """Returns the cost model of a pod."""
        cost: CostModel = StepCost(profile.cost)
        if self.step_costs is not None:
            cost = self.step_costs(profile)
        return SlowedCost(cost, self.factor)
