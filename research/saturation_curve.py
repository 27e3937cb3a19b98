"""Draw docs/saturation.png: the saturation curve of Qwen3-14B on one H100, simulated beside
recorded.

    python research/saturation_curve.py [PICTURE.png]

Takes a minute; needs matplotlib. The recorded points are figures of the runs of which
docs/fidelity.md tells.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.core.base.cores import usable_cores  # noqa: E402
from app.extensions.lab.fidelity.engine_limits import max_request_tokens  # noqa: E402
from app.extensions.lab.fidelity.pictures import draw_curves  # noqa: E402
from app.extensions.lab.fidelity.simulation import SimulationPlan, simulate  # noqa: E402
from app.extensions.lab.fidelity.summary import LATENCIES, RunSummary, summarize  # noqa: E402
from app.extensions.lab.fidelity.sweeps import Point  # noqa: E402
from app.extensions.lab.fidelity.workers import map_jobs, worker_pool  # noqa: E402
from app.extensions.lab.load.plotting import BLUE, RED, picture_file  # noqa: E402
from app.extensions.lab.load.progress import progress_bar  # noqa: E402
from app.extensions.lab.load.synthetic import Between, Lognormal, Recipe, draw_load  # noqa: E402
from config.profile import DEFAULT_PROFILE, read_profile  # noqa: E402

RATES = [float(rate) for rate in range(1, 31)]
RECORDED_RATES = (2, 6, 12, 18)
RECORDED = {
    "ttft": ((64.90, 69.59, 115.34, 474.72), (106.87, 175.65, 332.10, 730.49)),
    "itl": ((12.27, 15.07, 26.03, 113.13), (14.04, 19.17, 39.47, 115.90)),
    "e2e": ((1.62451, 1.9929, 3.43795, 14.85765), (1.85302, 2.52955, 5.14763, 14.9247)),
}
"""p50 and p99 at those rates: TTFT and ITL in milliseconds, E2E in seconds."""
RECORDED_TOKENS_PER_S = (258.2, 768.7, 1533.6, 2197.0)


def simulated(rate: float) -> RunSummary:
    """The recorded client and lengths at another rate."""
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


def main(argv: Sequence[str]) -> None:
    path = Path(argv[0]) if argv else ROOT / "docs" / "saturation.png"
    points = list[Point]()
    with (
        worker_pool(usable_cores()) as pool,
        progress_bar(sys.stderr, "simulated", len(RATES), "rates") as progress,
    ):
        for rate, summary in zip(RATES, map_jobs(pool, simulated, RATES), strict=True):
            points.append(Point(value=rate, meets_slo=None, summary=summary))
            progress(len(points))
    title = "Qwen3-14B, one H100: lines are simulated, crosses recorded from vLLM 0.23"
    crosses = {"marker": "x", "linestyle": "", "markersize": 9, "markeredgewidth": 2}
    with picture_file(path, title) as axes:
        draw_curves(axes, "rate", points)
        for its, latency in zip(axes, LATENCIES, strict=False):
            for values, color in zip(RECORDED[latency], (BLUE, RED), strict=True):
                its.plot(RECORDED_RATES, values, color=color, **crosses)
        axes[3].plot(RECORDED_RATES, RECORDED_TOKENS_PER_S, color=BLUE, **crosses)


if __name__ == "__main__":
    main(sys.argv[1:])
