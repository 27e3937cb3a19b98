"""`python -m app calibrate`: fits a profile to recorded benchmarks of a real server."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path

import msgspec
import yaml

from app.lab.fidelity.benchmark_files import read_recordings
from app.lab.fidelity.fitting import (
    Certainty,
    Costs,
    Problem,
    Run,
    SimulatedRun,
    make_problem,
    scaled,
)
from app.lab.fidelity.simulation import worker_pool
from app.lab.load import report
from config import ConfigError, UsageError
from config.datasheet import AUTO, profile_of
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, as_command, duration_of, whole_number
from config.profile import Profile, read_profile

ABOUT = f"""\
Fit a profile to recorded runs of a real server: files of vllm bench serve (--save-result --save-detailed),
guidellm (JSON), aiperf (profile_export.jsonl), or CSV as {COMMAND} record writes it. The fit starts from
the model's config.json and the device's data sheet, or from a profile (docs/fidelity.md, "Calibration").
"""


@as_command()
def run(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    check_installed("calibrate", "calibrate")
    if given.png is not None:
        check_installed("fleet", "--png")
    read = *given.recordings, *given.check, given.model_config, given.start
    report.check_targets((given.out, given.png), read)
    report.check_picture(given.png)
    start = _start(given)
    runs, kept = _runs(given.recordings, given, start), _runs(given.check, given, start)
    for run in kept:
        if any(run.name == fitted.name or run.figures == fitted.figures for fitted in runs):
            raise UsageError(
                f"calibrate: {run.name} is fitted: --check takes runs that the fit never saw"
            )
    _fit(given, make_problem(scaled(start, runs), runs), kept, time.monotonic)
    return 0


def _parser() -> argparse.ArgumentParser:
    flags = FlagParser(prog=f"{COMMAND} calibrate", description=ABOUT, allow_abbrev=False)
    add, positive = flags.add_argument, whole_number(1)
    add("recordings", nargs="+", metavar="FILE", help="recorded runs; several make a better fit")
    add("--out", required=True, type=Path, metavar="PROFILE.yaml", help="the profile to write")
    add("--model-config", metavar="config.json", help="the model's, for the start")
    add("--device", help="with it: h100, h200, a100, l40s, mi300x or b200")
    add(
        "--tensor-parallel-size",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="with it [1]",
    )
    add(
        "--vllm-version",
        default="",
        metavar="VERSION",
        help="with it: of the recorded server [the newest]",
    )
    add(
        "--start",
        metavar="PROFILE",
        help="instead of them: a profile to start from, by name or file",
    )
    add("--model", metavar="NAME", help="the model's name, for people")
    blocks = "blocks of the KV cache, as vLLM's log tells"
    add("--num-gpu-blocks", type=whole_number(2), metavar="N", help=blocks)
    add("--max-num-seqs", type=positive, metavar="N", help="what the server was started with")
    add("--max-num-batched-tokens", type=positive, metavar="N", help="the same")
    add(
        "--in-flight",
        type=positive,
        metavar="N",
        help="most requests that the client had under way",
    )
    pause = "from an answer to the next request [0s]"
    add("--turnaround", type=duration_of(3600), default="0s", metavar="DURATION", help=pause)
    judged = "a run to judge with, not to fit; repeatable"
    add("--check", action="append", default=[], metavar="FILE", help=judged)
    most = "about so many simulations at most [1500]"
    add("--evaluations", type=whole_number(20), default=1500, metavar="N", help=most)
    add("--jobs", type=whole_number(1, 256), default=2, metavar="N", help="processes [2]")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="of the search [1]")
    add("--png", type=Path, metavar="FILE.png|FILE.svg", help="draw the errors")
    return flags


def _fit(
    given: argparse.Namespace, problem: Problem, kept: Sequence[Run], now: Callable[[], float]
) -> None:
    from app.lab.fidelity.search import Search, certainties  # and numpy, which is optional

    begun_s = now()
    with (
        worker_pool(given.jobs) as pool,
        report.progress_of(sys.stderr, "fitted", given.evaluations, "evaluations") as progress,
    ):
        found = Search(problem, pool, given.evaluations, progress).run(given.seed)
        known = certainties(problem, found.x, pool)
    played = problem.play(found.x)
    errors = {run.name: run.errors(it) for run, it in zip(problem.runs, played, strict=True)}
    profile = problem.profile(found.x)
    cost, front, engine = _rounded(profile.cost), _rounded(profile.front), _rounded(profile.engine)
    profile = msgspec.structs.replace(profile, cost=cost, front=front, engine=engine)
    unseen = {run.name: run.errors(run.replay(profile)) for run in kept}
    fitted = told(profile, given.model, errors, unseen, problem.alone)
    wrong = misfits({**errors, **unseen}, given.evaluations)
    with report.whole_file(given.out) as part:
        part.write_text(as_yaml(fitted, known, wrong), "utf-8")
    if given.png is not None:
        with report.whole_file(given.png) as part:
            draw(errors, unseen, part)
    print(errors_table(errors, unseen))
    print(constants_table(known))
    for warning in warnings(problem, played, known):
        print(f"warning: {warning}")
    for misfit in wrong:
        print(f"warning: {misfit}", file=sys.stderr)
    print(f"{given.out}: {found.evaluations} evaluations in {now() - begun_s:.0f} s, {found.why}")


def _rounded(costs: Costs) -> Costs:
    """Rounds constants to five digits, more than the precision of a fit."""
    values = msgspec.structs.asdict(costs).items()
    rounded = {name: float(f"{value:.5g}") for name, value in values if isinstance(value, float)}
    return msgspec.structs.replace(costs, **rounded)


def _start(given: argparse.Namespace) -> Profile:
    names = ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
    limits = {name: value for name in names if (value := getattr(given, name)) is not None}
    if given.start is not None:
        if given.device is not None or given.model_config is not None:
            raise UsageError("calibrate: start is given, so device and model-config must not be")
        start = read_profile(given.start)
    else:
        made_of = given.device, given.tensor_parallel_size, given.model_config, given.vllm_version
        start = profile_of(AUTO, *made_of, limits)
    return msgspec.structs.replace(start, engine=msgspec.structs.replace(start.engine, **limits))


def _runs(paths: Sequence[str], given: argparse.Namespace, start: Profile) -> list[Run]:
    """Reads runs.

    ConfigError for a request larger than the cache, with which a load would never end.
    """
    room, runs = (start.engine.num_gpu_blocks - 1) * start.engine.block_size, []
    for path in paths:
        for it in read_recordings(path):
            for note in it.notes:
                print(f"warning: {path}: {note}", file=sys.stderr)
            for number, tokens in enumerate(zip(it.input_tokens, it.output_tokens, strict=True), 1):
                if sum(tokens) > room:
                    raise ConfigError(
                        f"{it.name}: request {number}: {sum(tokens)} tokens do not fit into the KV cache"
                        f" of {room}; num-gpu-blocks sets it"
                    )
            places = it.in_flight if given.in_flight is None else given.in_flight
            runs.append(Run(it, places, given.turnaround, it.figures()))
    names = [run.name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"calibrate: two runs are called {twice[0]}: give the files different names"
        )
    return runs


IDLE_STEPS = 20
"""Least number of idle steps in a run that counts as idle."""
FULL = 0.9
"""Least share of `max-num-seqs` in the fullest step of a saturated run."""
USELESS = 0.15
"""Error of a mean or p50, as a share, from which on a profile is called useless."""
COLOR_LIMIT = 5.0

Errors = Mapping[str, Sequence[float]]
"""Errors of each run by name, in the order of the figures."""


def told(
    profile: Profile, model: str | None, errors: Errors, unseen: Errors, alone: Sequence[str] = ()
) -> Profile:
    checked = f"The {len(errors)} runs it was fitted on: {_summary(errors)}."
    if unseen:
        checked += f" {len(unseen)} runs that the fit never saw: {_summary(unseen)}."
    else:
        checked += " No run was kept back to judge with."
    lines = {}
    for name, of in {**errors, **unseen}.items():
        cells = [f"{100 * error:+.1f}" for error in of]
        lines[name] = " | ".join(
            " ".join(cells[place : place + 4]) for place in range(0, len(cells), 4)
        )
    only = f" ({' and '.join(alone)} only)" if alone else ""
    return msgspec.structs.replace(
        profile,
        source=f"Fitted by calibrate on {', '.join(errors)}{only}; it started from: {profile.source}",
        model=model or profile.model,
        checked=checked,
        errors=lines,
    )


def as_yaml(profile: Profile, known: Sequence[Certainty], wrong: Sequence[str] = ()) -> str:
    guessed = [it.name.replace("_", "-") for it in known if not it.identified]
    head = ["# Constants in seconds. errors: in %, TTFT mean p50 p90 p99 | ITL | E2E."]
    if guessed:
        head.append(f"# Not identified by the recordings: {', '.join(guessed)}.")
    head += [f"# {misfit}." for misfit in wrong]
    return (
        "\n".join(head)
        + "\n"
        + yaml.safe_dump(msgspec.to_builtins(profile), sort_keys=False, width=110)
    )


def errors_table(errors: Errors, unseen: Errors) -> str:
    width = max(len(name) for name in [*errors, *unseen, "run"])
    heads = "".join(f"{time + ' mean':>10}{'p50':>7}{'p90':>7}{'p99':>7}" for time in report.TIMES)
    lines = [f"{'run':<{width}}{heads}"]
    for title, of_runs in (("fitted", errors), ("not seen", unseen)):
        if of_runs:
            lines.append(f"{title}: {_summary(of_runs)}")
        for name, of in of_runs.items():
            cells = (
                f"{100 * error:>+{10 if place % 4 == 0 else 7}.1f}"
                for place, error in enumerate(of)
            )
            lines.append(f"{name:<{width}}{''.join(cells)}")
    return "\n".join(lines)


def constants_table(known: Sequence[Certainty]) -> str:
    lines = [f"{'constant':<16}{'start':>12}{'fitted':>12}{'off by':>9}"]
    for it in known:
        name = it.name.replace("_", "-")
        off = (
            f"+-{it.off:.1%}" if it.off < 0.3 else f"x/{exp(it.off):.1f}"
        )  # a factor once it is large
        sure = "identified" if it.identified else "not identified"
        lines.append(f"{name:<16}{it.start:>12.5g}{it.value:>12.5g}{off:>9}  {sure}")
    return "\n".join(lines)


def misfits(errors: Errors, evaluations: int) -> list[str]:
    """Returns a sentence for each run with a badly predicted mean or p50."""
    lines = []
    for run, of in errors.items():
        by_name = {
            name: of[place]
            for place, name in enumerate(report.NAMES)
            if name.endswith(("mean", "p50"))
        }
        worst = max(by_name, key=lambda name: abs(by_name[name]))
        if abs(by_name[worst]) > USELESS:
            lines.append(
                f"{run}: this profile errs by {by_name[worst]:+.0%} in {worst}, do not rely on it: more"
                f" --evaluations than {evaluations}, a --start like this server, or its limits may mend that"
            )
    return lines


def warnings(
    problem: Problem, played: Sequence[SimulatedRun], known: Sequence[Certainty]
) -> list[str]:
    if problem.alone:
        fitted = " and ".join(problem.alone)
        return [f"an idle server: {fitted} are fitted, all other constants stay as in the start"]
    limit, most = problem.start.engine.max_num_seqs, max(it.most_running for it in played)
    sure = {it.name for it in known if it.identified}
    saturated = most >= FULL * limit or any(it.preemptions for it in played)
    lines = {
        f"no run saturates the engine (at most {most} of {limit} sequences): record one that does, or what is"
        " predicted there is extrapolated": saturated,
        "no run idles: record one at a low rate, or wake and base stay guesses": (
            any(it.idle_steps >= IDLE_STEPS for it in played)
        ),
        "no constant is identified, so the profile says little more than its start: record more runs, of"
        " different rates and lengths": bool(sure),
        "base and weights are identified as a sum only": (
            "base + weights" not in sure or not sure.isdisjoint(("base", "weights"))
        ),
    }
    return [line for line, is_well in lines.items() if not is_well]


def draw(errors: Errors, unseen: Errors, path: Path) -> None:
    """Writes a picture:

    the error of each figure of each run, as colors and numbers. Raises OSError.
    """
    rows = {**errors, **{f"{name} (not seen)": of for name, of in unseen.items()}}
    percent = [[100 * error for error in of] for of in rows.values()]
    title, size = "simulated against recorded, error in %", (8, 1.6 + 0.3 * len(rows))
    with report.picture_file(path, title, size, grid=(1, 1)) as [axes]:
        axes.grid(visible=False)
        image = axes.imshow(
            percent, cmap="RdBu_r", vmin=-COLOR_LIMIT, vmax=COLOR_LIMIT, aspect="auto"
        )
        for row, of in enumerate(percent):
            for column, error in enumerate(of):
                color = "white" if abs(error) > 0.7 * COLOR_LIMIT else "black"
                axes.text(
                    column, row, f"{error:+.1f}", ha="center", va="center", fontsize=8, color=color
                )
        axes.set_xticks(range(len(report.NAMES)), report.NAMES, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
        axes.figure.colorbar(image, ax=axes, label="error (%)")


def _summary(errors: Errors) -> str:
    mean, median, p90, _ = report.four(100 * abs(error) for of in errors.values() for error in of)
    return f"median error {median:.1f} %, mean {mean:.1f} %, p90 {p90:.1f} %"
