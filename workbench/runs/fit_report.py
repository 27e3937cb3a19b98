"""Reports of a fit: the profile's YAML, tables, warnings and a picture of the errors."""

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path

import msgspec
import yaml

from app.shared.statistics import FIGURE_NAMES, LATENCY_NAMES, mean_and_quantiles
from workbench.engine.steps import Profile
from workbench.load.plotting import picture_file
from workbench.runs.fitting import Certainty, Problem, SimulatedRun

MIN_IDLE_STEPS = 20
"""Least number of idle steps in a run that counts as idle."""
MIN_SATURATED_SHARE = 0.9
"""Least share of `max-num-seqs` in the fullest step of a saturated run."""
MAX_USEFUL_ERROR = 0.15
"""Error of a mean or p50, as a share, above which a profile is called useless."""
MAX_DEVIATION_AS_PERCENT = 0.3
"""Greatest standard deviation that is written in percent, and not as a factor."""
COLOR_LIMIT = 5.0
"""Error in percent from which on colors are equal."""

Errors = Mapping[str, Sequence[float]]
"""Errors of each run by name, in the order of the figures."""


def describe_fit(
    profile: Profile,
    model: str | None,
    *,
    errors: Errors,
    unseen: Errors,
    only_constants: Sequence[str] = (),
) -> Profile:
    """Returns the profile with texts about its fit.

    `unseen` are errors of runs that were not fitted; `only_constants` names the fitted constants,
    if most constants were not fitted.
    """
    checked = f"The {len(errors)} runs it was fitted on: {_error_summary(errors)}."
    if unseen:
        checked += f" {len(unseen)} runs that the fit never saw: {_error_summary(unseen)}."
    else:
        checked += " No run was kept back to judge with."
    lines = {}
    for name, run_errors in {**errors, **unseen}.items():
        cells = [f"{100 * error:+.1f}" for error in run_errors]
        groups = [" ".join(cells[start : start + 4]) for start in range(0, len(cells), 4)]
        lines[name] = " | ".join(groups)
    source = f"Fitted by calibrate on {', '.join(errors)}"
    if only_constants:
        source += f" ({' and '.join(only_constants)} only)"
    return msgspec.structs.replace(
        profile,
        source=f"{source}; it started from: {profile.source}",
        model=model or profile.model,
        checked=checked,
        errors=lines,
    )


def profile_yaml(
    profile: Profile, certainties: Sequence[Certainty], problems: Sequence[str] = ()
) -> str:
    """Returns the YAML file of a fitted profile; `problems` become comments."""
    lines = ["# Constants in seconds. errors: in %, TTFT mean p50 p90 p99 | TPOT | E2E."]
    guessed = [
        certainty.name.replace("_", "-") for certainty in certainties if not certainty.is_identified
    ]
    if guessed:
        lines.append(f"# Not identified by the recordings: {', '.join(guessed)}.")
    lines += [f"# {problem}." for problem in problems]
    lines.append(yaml.safe_dump(msgspec.to_builtins(profile), sort_keys=False, width=110))
    return "\n".join(lines)


def errors_table(errors: Errors, unseen: Errors) -> str:
    """Returns the errors of all runs in percent, a line each."""
    width = max(len(name) for name in [*errors, *unseen, "run"])
    columns = "".join(
        f"{latency + ' mean':>10}{'p50':>7}{'p90':>7}{'p99':>7}" for latency in LATENCY_NAMES
    )
    lines = [f"{'run':<{width}}{columns}"]
    for title, group in (("fitted", errors), ("not seen", unseen)):
        if group:
            lines.append(f"{title}: {_error_summary(group)}")
        for name, run_errors in group.items():
            cells = (
                f"{100 * error:>+{10 if index % 4 == 0 else 7}.1f}"
                for index, error in enumerate(run_errors)
            )
            lines.append(f"{name:<{width}}{''.join(cells)}")
    return "\n".join(lines)


def constants_table(certainties: Sequence[Certainty]) -> str:
    """Returns the fitted constants with their standard deviations, a line each."""
    lines = [f"{'constant':<16}{'start':>12}{'fitted':>12}{'off by':>9}"]
    for certainty in certainties:
        name = certainty.name.replace("_", "-")
        deviation = f"x/{exp(certainty.deviation):.1f}"
        if certainty.deviation < MAX_DEVIATION_AS_PERCENT:
            deviation = f"+-{certainty.deviation:.1%}"
        verdict = "identified" if certainty.is_identified else "not identified"
        lines.append(
            f"{name:<16}{certainty.start:>12.5g}{certainty.value:>12.5g}{deviation:>9}  {verdict}"
        )
    return "\n".join(lines)


def misfits(errors: Errors, evaluations: int) -> list[str]:
    """Returns a sentence for each run with a badly predicted mean or p50."""
    lines = []
    for run, run_errors in errors.items():
        by_figure = {
            figure: error
            for figure, error in zip(FIGURE_NAMES, run_errors, strict=True)
            if figure.endswith(("mean", "p50"))
        }
        worst = max(by_figure, key=lambda figure: abs(by_figure[figure]))
        if abs(by_figure[worst]) > MAX_USEFUL_ERROR:
            lines.append(
                f"{run}: this profile errs by {by_figure[worst]:+.0%} in {worst}, do not rely on"
                f" it: more --evaluations than {evaluations}, a --start like this server, or its"
                " limits may help"
            )
    return lines


def fit_warnings(
    problem: Problem, replays: Sequence[SimulatedRun], certainties: Sequence[Certainty]
) -> list[str]:
    """Returns a sentence for each weakness of the recorded runs."""
    if problem.only_constants:
        names = " and ".join(problem.only_constants)
        return [f"an idle server: {names} are fitted, all other constants stay as in the start"]
    lines = []
    limit = problem.start.engine.max_num_seqs
    max_running = max(run.max_running for run in replays)
    preempts = any(run.preemptions for run in replays)
    if max_running < MIN_SATURATED_SHARE * limit and not preempts:
        lines.append(
            f"no run saturates the engine (at most {max_running} of {limit} sequences): record one"
            " that does, or what is predicted there is extrapolated"
        )
    if all(run.idle_steps < MIN_IDLE_STEPS for run in replays):
        lines.append("no run idles: record one at a low rate, or wake and base stay guesses")
    identified = {certainty.name for certainty in certainties if certainty.is_identified}
    if not identified:
        lines.append(
            "no constant is identified, so the profile says little more than its start: record"
            " more runs, of different rates and lengths"
        )
    if "base + weights" in identified and identified.isdisjoint(("base", "weights")):
        lines.append("base and weights are identified as a sum only")
    return lines


def draw_errors(errors: Errors, unseen: Errors, path: Path) -> None:
    """Writes a picture: the error of each figure of each run, as colors and numbers.

    Raises:
        OSError: The file cannot be written.
    """
    rows = {**errors}
    for name, run_errors in unseen.items():
        rows[f"{name} (not seen)"] = run_errors
    percent = [[100 * error for error in run_errors] for run_errors in rows.values()]
    title = "simulated against recorded, error in %"
    with picture_file(path, title, (8, 1.6 + 0.3 * len(rows)), grid=(1, 1)) as [axes]:
        axes.grid(visible=False)
        image = axes.imshow(
            percent, cmap="RdBu_r", vmin=-COLOR_LIMIT, vmax=COLOR_LIMIT, aspect="auto"
        )
        for row, row_percent in enumerate(percent):
            for column, error in enumerate(row_percent):
                color = "white" if abs(error) > 0.7 * COLOR_LIMIT else "black"
                text = f"{error:+.1f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
        axes.set_xticks(range(len(FIGURE_NAMES)), FIGURE_NAMES, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
        axes.figure.colorbar(image, ax=axes, label="error (%)")


def _error_summary(errors: Errors) -> str:
    percent = [100 * abs(error) for run_errors in errors.values() for error in run_errors]
    mean, median, p90, _ = mean_and_quantiles(percent)
    return f"median error {median:.1f} %, mean {mean:.1f} %, p90 {p90:.1f} %"
