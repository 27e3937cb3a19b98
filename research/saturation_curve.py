"""Draws docs/saturation.png: the saturation curve of Qwen3-14B on one H100, simulated and recorded.

    python -m research.saturation_curve [PICTURE.png]

Takes a minute, and needs matplotlib. docs/accuracy.md describes the recorded runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from app.core.engine.profile import read_profile
from config.cores import usable_cores
from config.sections.engine import DEFAULT_PROFILE
from workbench.load.plotting import BLUE, RED, picture_file
from workbench.load.synthetic import Between, Lognormal, Recipe, draw_load
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.pictures import draw_curves
from workbench.runs.simulation import SimulationPlan, simulate
from workbench.runs.summary import LATENCIES, RunSummary, summarize
from workbench.runs.sweeps import Point
from workbench.runs.workers import map_jobs, worker_pool

PICTURE = Path(__file__).parents[1] / "docs" / "saturation.png"
TITLE = "Qwen3-14B, one H100: lines are simulated, crosses recorded from vLLM 0.23"
CROSSES = {"marker": "x", "linestyle": "", "markersize": 9, "markeredgewidth": 2}
RATES = range(1, 31)
"""Simulated requests per second."""
RECORDED_RATES = (2, 6, 12, 18)
RECORDED = {
    "ttft": ((64.90, 69.59, 115.34, 474.72), (106.87, 175.65, 332.10, 730.49)),
    "itl": ((12.27, 15.07, 26.03, 113.13), (14.04, 19.17, 39.47, 115.90)),
    "e2e": ((1.62451, 1.9929, 3.43795, 14.85765), (1.85302, 2.52955, 5.14763, 14.9247)),
}
"""p50 and p99 at these rates: TTFT and ITL in milliseconds, E2E in seconds."""
RECORDED_TOKENS_PER_S = (258.2, 768.7, 1533.6, 2197.0)


def simulate_rate(rate: float) -> RunSummary:
    """Simulates the recorded client and lengths at `rate` requests per second."""
    profile = read_profile(DEFAULT_PROFILE)
    recipe = Recipe(
        input_tokens=Lognormal(986.0, 0.0156),
        output_tokens=Between(128, 128),
        rate=rate,
        seconds=600.0,
    )
    load = draw_load(recipe, max_request_tokens(profile.engine))
    plan = SimulationPlan(profile=profile, in_flight=256, turnaround_s=60e-6)
    return summarize(simulate(load, plan), DEFAULT_PROFILE)


def main(path: Path) -> None:
    """Simulates all rates, and writes the picture."""
    with worker_pool(usable_cores()) as pool:
        summaries = list(map_jobs(pool, simulate_rate, RATES))
    points = [
        Point(value=float(rate), meets_slo=None, summary=summary)
        for rate, summary in zip(RATES, summaries, strict=True)
    ]
    with picture_file(path, TITLE) as panels:
        draw_curves(panels, "rate", points)
        for panel, latency in zip(panels, LATENCIES, strict=False):
            for values, color in zip(RECORDED[latency], (BLUE, RED), strict=True):
                panel.plot(RECORDED_RATES, values, color=color, **CROSSES)
        panels[3].plot(RECORDED_RATES, RECORDED_TOKENS_PER_S, color=BLUE, **CROSSES)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
