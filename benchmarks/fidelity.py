"""How near a live server on a profile comes to a recorded run of the real one, and to its own
simulation.

The recorded load is sent over HTTP, by a client that has at most so many requests in flight.
Compared are the requests that arrive in the first seconds; the load goes on a while after them, as
the recorded one did.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array
from collections.abc import Sequence

from app.core.engine.profile import Profile, read_profile
from app.shared.statistics import FIGURE_NAMES, latency_figures, quantile
from benchmarks import cores, servers
from benchmarks.connections import HOST
from benchmarks.processes import used_by
from benchmarks.report import number, share, show, show_machine
from config.sections.engine import DEFAULT_PROFILE
from workbench.load.loads import LoadTrace
from workbench.load.progress import ignore_progress
from workbench.runs.benchmark_files import read_recordings
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.record import plan_requests, read_target
from workbench.runs.recording_client import RecordedRequest, RecordingClient
from workbench.runs.simulation import (
    SimulationOutcome,
    SimulationPlan,
    simulate,
)

AFTER_S = 30.0
"""The load goes on for so long after the requests that are compared."""
MODEL = "m"
TOKEN_IDS = range(100, 900)


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    profile = read_profile(options.profile)
    load = servers.Load(streams=options.in_flight)
    settings = {"SIM_PROFILE": options.profile, "SIM_ZMQ_ENDPOINT": '""', "SIM_MODEL": MODEL}
    for path in options.recorded:
        [recording] = read_recordings(path)
        with servers.ours(load, extra_settings=settings) as server, used_by(server.worker) as use:
            lived = _live(server.port, recording, options)
        _show(recording, lived, profile, options.seconds)
        print(f"CPU of the server: {share(use.cpu_s / lived[-1].last_s)} of a core\n")
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    flags.add_argument("recorded", nargs="+", help="files as `python -m app record` writes them")
    flags.add_argument("--profile", default=DEFAULT_PROFILE)
    flags.add_argument(
        "--seconds", type=float, default=120.0, help="how soon those arrive that are compared"
    )
    flags.add_argument("--in-flight", type=int, default=256, help="requests under way at the most")
    return flags.parse_args(argv)


def _live(port: int, recording: MeasuredRun, options: argparse.Namespace) -> list[RecordedRequest]:
    """What the server did with the beginning of the load."""
    count = sum(arrival_s < options.seconds + AFTER_S for arrival_s in recording.arrival_s)
    load = LoadTrace(
        recording.name,
        array("d", recording.arrival_s[:count]),
        array("i", recording.input_tokens[:count]),
        array("i", recording.output_tokens[:count]),
    )
    target = read_target(f"http://{HOST}:{port}")
    client = RecordingClient(
        target, {}, in_flight=options.in_flight, now=time.perf_counter, on_send=ignore_progress
    )
    gc.collect()
    gc.disable()  # a collection would make moments late
    try:
        return client.run(plan_requests(load, MODEL, TOKEN_IDS, seed=1))
    finally:
        gc.enable()


def _simulated(lived: Sequence[RecordedRequest], profile: Profile) -> SimulationOutcome:
    """Returns what the simulation makes of requests (at least one) that arrive when those were
    sent.
    """
    load = LoadTrace(
        "lived",
        array("d", [request.send_s for request in lived]),
        array("i", [request.input_tokens for request in lived]),
        array("i", [request.output_tokens for request in lived]),
    )
    return simulate(load, SimulationPlan(profile=profile))


def _show(
    recording: MeasuredRun, lived: Sequence[RecordedRequest], profile: Profile, seconds: float
) -> None:
    count = sum(arrival_s < seconds for arrival_s in recording.arrival_s)
    recorded = latency_figures(
        recording.send_s[:count],
        recording.first_s[:count],
        recording.last_s[:count],
        recording.output_tokens[:count],
    )
    ours = lived[:count]
    live = latency_figures(
        [request.send_s for request in ours],
        [request.first_s for request in ours],
        [request.last_s for request in ours],
        [request.output_tokens for request in ours],
    )
    errors = [
        100 * (live_s / recorded_s - 1) for live_s, recorded_s in zip(live, recorded, strict=True)
    ]
    rows = [
        (name, number(1e3 * recorded_s, 1), number(1e3 * live_s, 1), f"{error:+.1f} %")
        for name, recorded_s, live_s, error in zip(
            FIGURE_NAMES, recorded, live, errors, strict=True
        )
    ]
    show(
        f"{recording.name}, the first {seconds:g} s",
        ("", "recorded, ms", "live, ms", "error"),
        rows,
    )
    sizes = sorted(map(abs, errors))
    print(f"Errors: median {quantile(sizes, 0.5):.2f} %, p90 {quantile(sizes, 0.9):.2f} %.")
    _show_simulated(lived, profile, seconds)


def _show_simulated(lived: Sequence[RecordedRequest], profile: Profile, seconds: float) -> None:
    ours = sorted(lived, key=lambda request: request.send_s)
    outcome = _simulated(ours, profile)
    apart = sorted(
        1e3 * (mine.first_s - first_s)
        for mine, first_s in zip(ours, outcome.first_s, strict=True)
        if mine.arrival_s < seconds
    )
    middle, low, high = (quantile(apart, share) for share in (0.5, 0.05, 0.95))
    print(f"TTFT live less simulated: median {middle:.2f} ms, p5 {low:.2f}, p95 {high:.2f}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
