"""What a fit came to: the profile with what is known of it, tables, warnings, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import exp
from pathlib import Path

import msgspec
import yaml

from app.fidelity.fitting import Certainty, Problem
from app.fidelity.replay import Replayed
from app.load.report import NAMES, TIMES
from config.profile import Profile

IDLE_STEPS = 20
"""Steps that found the device idle, in some run, from which on it counts as one that idles."""
FULL = 0.9
"""The share of `max-num-seqs` that a step of a saturated run has at least."""
COLOR_LIMIT = 5.0
"""Percent; errors beyond it have the same color."""

Errors = Mapping[str, Sequence[float]]
"""Of each run, by name; in the order of the figures."""


def told(profile: Profile, model: str | None, errors: Errors, unseen: Errors) -> Profile:
    """The profile with its origin, its errors, and how far it was compared."""
    checked = f"The {len(errors)} runs it was fitted on: {_summary(errors)}."
    if unseen:
        checked += f" {len(unseen)} runs that the fit never saw: {_summary(unseen)}."
    else:
        checked += " No run was kept back to judge with."
    return msgspec.structs.replace(
        profile,
        source=f"Fitted by calibrate on {', '.join(errors)}; it started from: {profile.source}",
        model=model or profile.model,
        checked=checked,
        errors={name: _line(of) for name, of in {**errors, **unseen}.items()},
    )


def as_yaml(profile: Profile, known: Sequence[Certainty]) -> str:
    """The profile's file."""
    guessed = [it.name.replace("_", "-") for it in known if not it.identified]
    head = ["# Constants in seconds. errors: in %, TTFT mean p50 p90 p99 | ITL | E2E."]
    if guessed:
        head.append(f"# Not identified by the recordings: {', '.join(guessed)}.")
    return "\n".join(head) + "\n" + yaml.safe_dump(msgspec.to_builtins(profile), sort_keys=False, width=110)


def errors_table(errors: Errors, unseen: Errors) -> str:
    """Errors in %, a row for each run."""
    width = max(len(name) for name in [*errors, *unseen, "run"])
    heads = "".join(f"{time + ' mean':>10}{'p50':>7}{'p90':>7}{'p99':>7}" for time in TIMES)
    lines = [f"{'run':<{width}}{heads}"]
    for title, of_runs in (("fitted", errors), ("not seen", unseen)):
        if of_runs:
            lines.append(f"{title}: {_summary(of_runs)}")
        for name, of in of_runs.items():
            cells = (f"{100 * error:>+{10 if place % 4 == 0 else 7}.1f}" for place, error in enumerate(of))
            lines.append(f"{name:<{width}}{''.join(cells)}")
    return "\n".join(lines)


def constants_table(known: Sequence[Certainty]) -> str:
    """Start, what was found, how sure that is."""
    lines = [f"{'constant':<16}{'start':>12}{'fitted':>12}{'off by':>9}"]
    for it in known:
        name = it.name.replace("_", "-")
        off = f"+-{it.off:.1%}" if it.off < 0.3 else f"x/{exp(it.off):.1f}"  # a factor once it is large
        sure = "identified" if it.identified else "not identified"
        lines.append(f"{name:<16}{it.start:>12.5g}{it.value:>12.5g}{off:>9}  {sure}")
    return "\n".join(lines)


def warnings(problem: Problem, played: Sequence[Replayed], known: Sequence[Certainty]) -> list[str]:
    """What the recordings do not tell."""
    told = []
    limit = problem.start.engine.max_num_seqs
    if not any(it.most_running >= FULL * limit or it.preemptions for it in played):
        most = max(it.most_running for it in played)
        told.append(
            f"no run saturates the engine (at most {most} of {limit} sequences): record one that does, or"
            " what is predicted there is extrapolated"
        )
    if not any(it.idle_steps >= IDLE_STEPS for it in played):
        told.append("no run idles: record one at a low rate, or wake and base stay guesses")
    if not any(it.identified for it in known):
        told.append(
            "no constant is identified, so the profile says little more than its start: record more runs, of"
            " different rates and lengths"
        )
    by_name = {it.name: it for it in known}
    whole = by_name.get("base + weights")
    parts = [by_name[name] for name in ("base", "weights") if name in by_name]
    if whole is not None and whole.identified and not any(it.identified for it in parts):
        told.append("base and weights are identified as a sum only")
    return told


def draw(errors: Errors, unseen: Errors, path: Path) -> None:
    """Write a PNG: the error of each figure of each run, as colors and numbers. OSError if it cannot."""
    rows = {**errors, **{f"{name} (not seen)": of for name, of in unseen.items()}}
    figure = import_module("matplotlib.figure").Figure(
        figsize=(11, 1.6 + 0.4 * len(rows)), layout="constrained"
    )
    canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    axes = figure.subplots()
    percent = [[100 * error for error in of] for of in rows.values()]
    image = axes.imshow(percent, cmap="RdBu_r", vmin=-COLOR_LIMIT, vmax=COLOR_LIMIT, aspect="auto")
    for row, of in enumerate(percent):
        for column, error in enumerate(of):
            color = "white" if abs(error) > 0.7 * COLOR_LIMIT else "black"
            axes.text(column, row, f"{error:+.1f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(NAMES)), NAMES, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_title("simulated against recorded, error in %", fontsize=10)
    figure.colorbar(image, ax=axes, label="%")
    canvas.print_png(path)


def _summary(errors: Errors) -> str:
    sizes = sorted(100 * abs(error) for of in errors.values() for error in of)
    p90 = sizes[int(0.9 * len(sizes))]
    return (
        f"median error {sizes[len(sizes) // 2]:.1f} %, mean {sum(sizes) / len(sizes):.1f} %, p90 {p90:.1f} %"
    )


def _line(errors: Sequence[float]) -> str:
    cells = [f"{100 * error:+.1f}" for error in errors]
    return " | ".join(" ".join(cells[place : place + 4]) for place in range(0, len(cells), 4))
