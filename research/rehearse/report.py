"""What a rehearsal came to: tables, a verdict, JSON, a picture, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from research.rehearse.playing import RecordedStep
from research.rehearse.rehearsal import MOST_MEDIAN, MOST_SINGLE, Comparison, Figure, Rehearsal
from research.rehearse.step_fitting import predicted
from workbench.load.output_files import write_rows
from workbench.load.plotting import BLUE, GREY, RED, Axes, picture_file
from workbench.load.tables import markdown, milliseconds
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.record import COLUMNS

HEAD = ("", "real", "real again", "noise", "simulated", "error", "at most")
BOUND = f"noise + {MOST_MEDIAN:.0%} in the median, noise + {MOST_SINGLE:.0%} each"


def table(rehearsal: Rehearsal) -> str:
    """All of it, for people."""
    parts = [_comparison(it) for it in rehearsal.comparisons]
    return "\n\n".join([*parts, f"{_costs(rehearsal)}\n{verdict(rehearsal)}"])


def verdict(rehearsal: Rehearsal) -> str:
    outside = [str(it.in_flight) for it in rehearsal.comparisons if not it.within]
    if not outside:
        return f"within the bound: {BOUND}"
    return f"NOT within the bound with {', '.join(outside)} in flight: {BOUND}"


def _comparison(it: Comparison) -> str:
    requests, steps, simulated = (
        len(it.first.recording.send_s),
        len(it.first.steps),
        len(it.simulated.steps),
    )
    same = "the same in the simulation" if it.same_steps else f"{simulated:,} in the simulation"
    rows = [_row(figure) for figure in it.figures]
    median = ("median", "", "", f"{it.noise:.1%}", "", f"{it.error:.1%}", f"{it.most:.1%}")
    title = f"{it.in_flight} in flight: {requests:,} requests, {steps:,} steps, {same}"
    return f"{title}\n{markdown([HEAD, *rows, median])}"


def _row(it: Figure) -> tuple[str, ...]:
    first, again, simulated = map(milliseconds, (it.first_s, it.again_s, it.simulated_s))
    return it.name, first, again, f"{it.noise:.1%}", simulated, f"{it.error:+.1%}", f"{it.most:.1%}"


def _costs(rehearsal: Rehearsal) -> str:
    fit = rehearsal.fit
    told = ", ".join(
        f"{name} {value * 1e6:.4g} us" for name, value in _seconds(rehearsal).items() if value
    )
    return (
        f"a step costs: {told}\n"
        f"fitted to {fit.steps:,} steps of other requests; the median one is off by {fit.median_error:.1%}"
    )


def _seconds(rehearsal: Rehearsal) -> dict[str, float]:
    cost = msgspec.to_builtins(rehearsal.profile.cost)
    return {name: value for name, value in cost.items() if name in SECONDS}


SECONDS = (
    "base",
    "weights",
    "per-token",
    "spill",
    "per-sequence",
    "per-context",
    "per-attention",
    "mixed-context",
)


def as_json(rehearsal: Rehearsal) -> bytes:
    """The figures; seconds and shares."""
    document = {
        "within": rehearsal.within,
        "fitted_steps": rehearsal.fit.steps,
        "step_median_error": rehearsal.fit.median_error,
        "cost": msgspec.to_builtins(rehearsal.profile.cost),
        "loads": [_as_document(it) for it in rehearsal.comparisons],
    }
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _as_document(it: Comparison) -> dict[str, object]:
    return {
        "in_flight": it.in_flight,
        "requests": len(it.first.recording.send_s),
        "steps": len(it.first.steps),
        "simulated_steps": len(it.simulated.steps),
        "same_steps": it.same_steps,
        "within": it.within,
        "median": {"noise": it.noise, "error": it.error, "most": it.most},
        "figures": {
            figure.name: msgspec.structs.asdict(figure)
            | {"noise": figure.noise, "error": figure.error, "most": figure.most}
            for figure in it.figures
        },
    }


def as_yaml(rehearsal: Rehearsal) -> str:
    """The profile, with its errors."""
    errors = {
        f"{it.in_flight} in flight": " ".join(f"{100 * figure.error:+.1f}" for figure in it.figures)
        for it in rehearsal.comparisons
    }
    noise = ", ".join(f"{it.noise:.1%}" for it in rehearsal.comparisons)
    error = ", ".join(f"{it.error:.1%}" for it in rehearsal.comparisons)
    checked = (
        f"Loads that the fit never saw, median error {error}; "
        f"two plays of the engine differ by {noise}."
    )
    profile = msgspec.structs.replace(rehearsal.profile, checked=checked, errors=errors)
    head = "# Constants in seconds. errors: in %, mean p50 p90 of TTFT, ITL, E2E.\n"
    return head + yaml.safe_dump(msgspec.to_builtins(profile), sort_keys=False, width=110)


def write_requests(recording: MeasuredRun, path: Path) -> None:
    """As `record` writes them."""
    its = recording
    moments = zip(its.arrival_s, its.send_s, its.first_s, its.last_s, strict=True)
    texts = ([f"{moment:.6f}" for moment in of] for of in moments)
    rows = zip(texts, its.input_tokens, its.output_tokens, strict=True)
    write_rows(path, COLUMNS, ((of[0], tokens_in, out, *of[1:]) for of, tokens_in, out in rows))


def write_steps(steps: Sequence[RecordedStep], path: Path) -> None:
    """A row for each."""
    write_rows(
        path, RecordedStep.__struct_fields__, (msgspec.structs.astuple(step) for step in steps)
    )


def draw(rehearsal: Rehearsal, title: str, path: Path) -> None:
    """Write a picture: the figures of both, and each step's cost beside what the profile says."""
    with picture_file(path, title) as axes:
        for its, latency in zip(axes, ("TTFT", "ITL", "E2E"), strict=False):
            _draw_latency(its, latency, rehearsal.comparisons)
        _draw_steps(axes[3], rehearsal)


def _draw_latency(axes: Axes, latency: str, comparisons: Sequence[Comparison]) -> None:
    figures = [
        (it.in_flight, figure)
        for it in comparisons
        for figure in it.figures
        if latency in figure.name
    ]
    places = range(len(figures))
    axes.bar(
        places,
        [1000 * it.real_s for _, it in figures],
        color=BLUE,
        alpha=0.5,
        label="mean of plays",
    )
    both = [
        (place, at_s) for place, (_, it) in enumerate(figures) for at_s in (it.first_s, it.again_s)
    ]
    axes.plot(
        [place for place, _ in both],
        [1000 * at for _, at in both],
        "_",
        color=GREY,
        markersize=14,
        label="each play",
    )
    axes.plot(
        places, [1000 * it.simulated_s for _, it in figures], "x", color=RED, label="simulated"
    )
    names = [f"{it.name.split()[1]}\n{in_flight} in flight" for in_flight, it in figures]
    axes.set_xticks(places, names, fontsize=6)
    axes.set(ylabel=f"{latency} (ms)", ylim=(0, None))


def _draw_steps(axes: Axes, rehearsal: Rehearsal) -> None:
    steps = rehearsal.calibrated
    told = predicted(rehearsal.profile.cost, steps)
    least, most = 1000 * min(told), 1000 * max(told)
    axes.plot([least, most], [least, most], color=GREY, linewidth=1)
    for name, color, mixed in (("decode alone", BLUE, False), ("with prefill", RED, True)):
        of = [
            (t, step.seconds)
            for t, step in zip(told, steps, strict=True)
            if bool(step.prefills) == mixed
        ]
        axes.plot(
            [1000 * t for t, _ in of],
            [1000 * s for _, s in of],
            ".",
            color=color,
            markersize=3,
            label=name,
        )
    axes.set(
        xlabel="step by the profile (ms)", ylabel="step measured (ms)", xscale="log", yscale="log"
    )
