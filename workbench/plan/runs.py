"""The simulation of one fleet of a plan, in this process or in a worker."""

from collections.abc import Callable, Generator, Iterable

import msgspec

from workbench.load.loads import LoadTrace
from workbench.plan.slo import Slo, Verdict
from workbench.runs.intervals import confidence_factors
from workbench.runs.job import Job

RunFleets = Callable[[Iterable[tuple[LoadTrace, Job, Slo]]], Generator[Verdict, None, None]]
"""Simulates fleets in parallel; yields their verdicts in order."""


def run_fleet(load: LoadTrace, job: Job, slo: Slo) -> Verdict:
    """Simulates a fleet, in this process or in a worker."""
    outcome, summary = job.run(load)
    errors = job.errors(summary)
    if slo.confidence is None or errors is None:
        return slo.judge(outcome, summary)
    # A slower engine also queues more, which a factor on its latencies would miss.
    ttft_factor, step_factor = confidence_factors(errors, slo.confidence)
    slowed_outcome, slowed_summary = job.slowed(step_factor).run(load)
    verdict = slo.tightened(ttft_factor / step_factor).judge(slowed_outcome, slowed_summary)
    return msgspec.structs.replace(verdict, summary=summary)
