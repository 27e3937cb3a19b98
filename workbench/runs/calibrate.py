"""`understudy calibrate`: fits a profile to recorded benchmarks of a real server."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from config import ConfigError, UsageError
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, as_argument, as_command, duration_of, whole_number
from vllm_facts.devices import DEVICES
from workbench.engine.costs import EngineOptions, profile_of, read_version
from workbench.engine.steps import AUTO, Profile, read_profile
from workbench.load.output_files import atomic_file, check_output_paths, check_picture_path
from workbench.load.progress import progress_bar
from workbench.runs.benchmark_files import read_recordings
from workbench.runs.fit_report import (
    constants_table,
    describe_fit,
    draw_errors,
    errors_table,
    fit_warnings,
    misfits,
    profile_yaml,
)
from workbench.runs.fitting import Costs, Problem, Run, make_problem, scale_start
from workbench.runs.job_flags import present_options
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.workers import worker_pool

ABOUT = f"""\
Fit a profile to recorded runs of a real server: files of vllm bench serve (--save-result
--save-detailed), GuideLLM (JSON), AIPerf (profile_export.jsonl), or CSV as {COMMAND} record writes
it. The fit starts from the model's config.json and the device's data sheet, or from a profile
(docs/profiles.md).
"""
LIMITS = ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
"""Limits of the engine that flags can set."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    options = make_parser().parse_args(argv)
    check_installed("calibrate", "calibrate")
    if options.png is not None:
        check_installed("fleet", "--png")
    check_output_paths(
        [options.out, options.png],
        [*options.recordings, *options.check, options.model_config, options.start],
    )
    check_picture_path(options.png)
    start = _read_start(options)
    runs = _read_runs(options.recordings, options, start)
    unseen_runs = _read_runs(options.check, options, start)
    for run in unseen_runs:
        if any(run.name == fitted.name or run.figures == fitted.figures for fitted in runs):
            raise UsageError(
                f"calibrate: {run.name} is already used for fitting; --check requires other runs"
            )
    _fit(options, make_problem(scale_start(start, runs), runs), unseen_runs)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser."""
    flags = FlagParser(prog=f"{COMMAND} calibrate", description=ABOUT, allow_abbrev=False)
    flags.examples = (f"{COMMAND} calibrate run.csv --start qwen3-14b-h100 --out mine.yaml",)
    add = flags.add_argument
    add("recordings", nargs="+", metavar="FILE", help="recorded runs; more runs make a better fit")
    add("--out", required=True, type=Path, metavar="PROFILE.yaml", help="profile to write")
    _add_start_flags(flags)
    add(
        "--in-flight",
        type=whole_number(1),
        metavar="N",
        help="maximum number of requests that the client had in flight",
    )
    add(
        "--turnaround",
        type=duration_of(3600),
        default="0s",
        metavar="DURATION",
        help="time from an answer to the next request [0s]",
    )
    add(
        "--check",
        action="append",
        default=[],
        metavar="FILE",
        help="run for judging the result, which is not fitted; repeatable",
    )
    add(
        "--evaluations",
        type=whole_number(20),
        default=1500,
        metavar="N",
        help="approximate maximum number of simulations [1500]",
    )
    add("--jobs", type=whole_number(1, 256), default=2, metavar="N", help="processes to use [2]")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="seed of the search [1]")
    add("--png", type=Path, metavar="FILE.png|FILE.svg", help="draw the errors of all runs")
    return flags


def _add_start_flags(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    add("--model-config", metavar="config.json", help="the model's config.json, for the start")
    add(
        "--device",
        help=f"device, for the start: one of {', '.join(DEVICES)}",
    )
    add(
        "--tensor-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="number of devices, for the start [1]",
    )
    add(
        "--vllm-version",
        type=as_argument(read_version),
        default="",
        metavar="VERSION",
        help="version of the recorded server, for the start [the newest]",
    )
    add(
        "--start",
        metavar="PROFILE",
        help="profile to start from, by name or file, instead of a device",
    )
    add("--model", metavar="NAME", help="name of the model in the profile")
    add(
        "--num-gpu-blocks",
        type=whole_number(2),
        metavar="N",
        help="blocks of the KV cache, as in vLLM's log",
    )
    for name in ("max-num-seqs", "max-num-batched-tokens"):
        add(
            f"--{name}",
            type=whole_number(1),
            metavar="N",
            help=f"{name} of the recorded server",
        )


def _fit(options: argparse.Namespace, problem: Problem, unseen_runs: Sequence[Run]) -> None:
    from workbench.runs.search import (  # imports numpy, which is optional
        Search,
        certainties,
    )

    start_s = time.monotonic()
    with (
        worker_pool(options.jobs) as pool,
        progress_bar(sys.stderr, "fitted", options.evaluations, "evaluations") as progress,
    ):
        result = Search(problem, pool, options.evaluations, progress).run(options.seed)
        fitted = certainties(problem, result.x, pool)
    replays = problem.replay(result.x)
    profile = problem.profile(result.x)
    profile = msgspec.structs.replace(
        profile,
        cost=_round_constants(profile.cost),
        front=_round_constants(profile.front),
        engine=_round_constants(profile.engine),
    )
    errors = {
        run.name: run.errors(replay) for run, replay in zip(problem.runs, replays, strict=True)
    }
    unseen = {run.name: run.errors(run.replay(profile)) for run in unseen_runs}
    described = describe_fit(
        profile,
        options.model,
        errors=errors,
        unseen=unseen,
        only_constants=problem.only_constants,
    )
    problems = misfits({**errors, **unseen}, options.evaluations)
    with atomic_file(options.out) as partial:
        partial.write_text(profile_yaml(described, fitted, problems), "utf-8")
    if options.png is not None:
        with atomic_file(options.png) as partial:
            draw_errors(errors, unseen, partial)
    print(errors_table(errors, unseen))
    print(constants_table(fitted))
    for warning in fit_warnings(problem, replays, fitted):
        print(f"warning: {warning}")
    for text in problems:
        print(f"warning: {text}", file=sys.stderr)
    duration_s = time.monotonic() - start_s
    print(f"{options.out}: {result.evaluations} evaluations in {duration_s:.0f} s, {result.reason}")


def _round_constants(costs: Costs) -> Costs:
    """Rounds constants to five digits, more than the precision of a fit."""
    values = msgspec.structs.asdict(costs).items()
    rounded = {name: float(f"{value:.5g}") for name, value in values if isinstance(value, float)}
    return msgspec.structs.replace(costs, **rounded)


def _read_start(options: argparse.Namespace) -> Profile:
    limits = present_options(options, LIMITS)
    if options.start is None:
        start = profile_of(
            AUTO,
            options.device,
            options.model_config,
            EngineOptions(
                tensor_parallel_size=options.tensor_parallel_size,
                vllm_version=options.vllm_version,
            ),
            limits=limits,
        )
    elif options.device is not None or options.model_config is not None:
        raise UsageError("calibrate: --start cannot be combined with --device or --model-config")
    else:
        start = read_profile(options.start)
    return msgspec.structs.replace(start, engine=msgspec.structs.replace(start.engine, **limits))


def _read_runs(paths: Sequence[str], options: argparse.Namespace, start: Profile) -> list[Run]:
    """Reads the runs of all files.

    Raises:
        ConfigError: A file has a mistake, or two runs have one name, or a request is larger than
            the cache, so that the load would never end.
    """
    cache_tokens = (start.engine.num_gpu_blocks - 1) * start.engine.block_size
    runs = []
    for path in paths:
        for recording in read_recordings(path):
            for note in recording.notes:
                print(f"warning: {path}: {note}", file=sys.stderr)
            _check_requests(recording, cache_tokens)
            in_flight = options.in_flight
            if in_flight is None:
                in_flight = recording.in_flight
            runs.append(Run(recording, in_flight, options.turnaround, recording.figures()))
    names = set()
    for run in runs:
        if run.name in names:
            raise ConfigError(f"calibrate: two runs are named {run.name}; rename one of the files")
        names.add(run.name)
    return runs


def _check_requests(recording: MeasuredRun, cache_tokens: int) -> None:
    sizes = zip(recording.input_tokens, recording.output_tokens, strict=True)
    for number, (input_tokens, output_tokens) in enumerate(sizes, 1):
        tokens = input_tokens + output_tokens
        if tokens > cache_tokens:
            raise ConfigError(
                f"{recording.name}: request {number}: {tokens} tokens do not fit in the KV cache"
                f" of {cache_tokens} tokens; increase num-gpu-blocks"
            )
