"""What it costs that sequences share steps:

the same streams with latencies of their own, and in steps. If `fidelity.judge_steps` has installed
vLLM, also how long vLLM's own scheduler takes for random loads, and Understudy's; `--vllm VERSION`
shows only this.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cores
from benchmarks.options import parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, ratio, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server, ours
from benchmarks.streams import StreamPlan, play
from fidelity.judge_steps.__main__ import VERSION
from fidelity.judge_steps.__main__ import main as judge_steps
from fidelity.oracle.install import environment_of

LOADS = 100
"""Random loads for vLLM's scheduler."""
REQUESTS = "latencies of their own"
STEPS = "steps"
COLUMNS = ("timing", "KV cache", "chunks/s", "CPU µs/chunk", "CPU", "beyond", "ratio")
PROFILE = """\
source: made up
model: any
device: none
engine: {{num-gpu-blocks: 40000, max-num-seqs: {streams}, enable-prefix-caching: {caching}}}
cost: {{base: {step_s}}}
front: {{out-per-stream: 40.75e-6}}
"""
"""A step takes the same time whatever it holds; tokens leave one after another, as by the recorded
vLLM.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one round: chunks a second, CPU microseconds a chunk, share of a core."""

    per_s: float
    cpu_us: float
    cpu: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    if options.vllm:
        return judge_steps(["--version", options.vllm, "--loads", str(LOADS)])
    cores.pin_client()
    show_machine()
    load = Load(0.0, options.itl / 1e3, options.tokens, options.streams)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            (timing, caching): stack.enter_context(ours(load, name=timing, extra_settings=settings))
            for caching in (False, True)
            for timing, settings in _settings(options, caching, folder).items()
        }
        rounds = interleaved(
            list(servers), options.rounds, lambda key: _measure(servers[key], load)
        )
    middle = {key: medians(seen) for key, seen in rounds.items()}
    _show(middle, options)
    if (environment_of(VERSION) / "ready").exists():
        return judge_steps(["--version", VERSION, "--loads", str(LOADS)])
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("steps", __doc__)
    flags.add_argument(
        "--streams", type=int, default=256, help="sequences that run at the same time"
    )
    flags.add_argument("--tokens", type=int, default=200, help="length of a stream")
    flags.add_argument("--itl", type=float, default=25, help="milliseconds of a step")
    flags.add_argument("--vllm", metavar="VERSION", help="time the scheduler of this version")
    return flags.parse_args(argv)


def _settings(
    options: argparse.Namespace, caching: bool, folder: Path
) -> Mapping[str, Mapping[str, str]]:
    profile = folder / f"profile-{caching}.yaml"
    word = str(caching).lower()
    profile.write_text(
        PROFILE.format(streams=options.streams, caching=word, step_s=options.itl / 1e3),
        encoding="utf-8",
    )
    cache = {"SIM_ENABLE_KVCACHE": word, "SIM_KV_CACHE_SIZE": "40000", "SIM_ZMQ_ENDPOINT": '""'}
    return {REQUESTS: cache, STEPS: {**cache, "SIM_PROFILE": str(profile)}}


def _measure(server: Server, load: Load) -> Cost:
    plan = StreamPlan(
        server.port, load.streams, tokens=load.tokens, spread_s=load.itl_s, length_s=load.length_s
    )
    with used_by(server.worker) as use:
        run = play(plan)
    if run.unfinished:
        raise RuntimeError(f"{run.unfinished} streams of {server.name} did not finish")
    chunks = sum(len(stream.chunks_ns) for stream in run.arrivals)
    begun_ns = min(stream.requested_ns for stream in run.arrivals)
    wall_s = (max(stream.chunks_ns[-1] for stream in run.arrivals) - begun_ns) / 1e9
    return Cost(chunks / wall_s, use.cpu_s / chunks * 1e6, use.cpu_s / wall_s)


def _show(middle: Mapping[tuple[str, bool], Cost], options: argparse.Namespace) -> None:
    rows = []
    for (timing, caching), cost in middle.items():
        plain = middle[REQUESTS, caching]
        beyond = cost.per_s * (cost.cpu_us - plain.cpu_us) / 1e6
        rows.append(
            (
                timing,
                "on" if caching else "off",
                number(cost.per_s, 0),
                number(cost.cpu_us, 1),
                share(cost.cpu),
                share(beyond),
                ratio(cost.cpu_us, plain.cpu_us),
            )
        )
    show(f"{options.streams} sequences, a step every {options.itl:g} ms", COLUMNS, rows, [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
