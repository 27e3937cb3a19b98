"""`python -m app simulate`: what an engine would do with a load, on virtual time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from app.fidelity.processes import each
from app.fidelity.simulate_options import STDOUT, Options, Plugged, read
from app.fidelity.simulation import Outcome, Told, check_load, longest_tokens, simulate
from app.fidelity.summary import (
    Point,
    Summary,
    Sweep,
    best,
    curve,
    draw_run,
    draw_sweep,
    summarize,
    table,
    write_requests,
)
from app.load.report import progress_of, whole_file
from app.load.synthetic import draw_load
from app.load.trace import Load, read_trace
from config.flags import as_command
from config.installation import check_installed

if TYPE_CHECKING:
    from app.fidelity.film import Film

Write = Callable[[Path], object]


@as_command()
def run(argv: Sequence[str], plugged: Plugged = lambda settings, profile: None) -> int:
    """Exit status. `plugged` tells what plugins say of the costs; by itself nothing."""
    try:
        options = read(argv, plugged)
        if options.plot is not None:
            check_installed("fleet", "--plot")
        # Nothing here refers to itself in a circle, so looking for circles among millions is in vain.
        gc.disable()
        if options.sweep is None:
            _run_once(options)
        else:
            _run_sweep(options, options.sweep)
    except BrokenPipeError:  # for who called us: nobody reads what would be printed
        raise
    except OSError as error:
        print(f"error: {error.filename or 'simulate'}: {error.strerror or error}", file=sys.stderr)
        return 1
    finally:
        gc.enable()
    return 0


def _run_once(options: Options) -> None:
    name, unit = ("drawn", "requests") if options.trace is None else ("read", "bytes")
    with progress_of(sys.stderr, name, _size(options), unit) as progress:
        load = _load(options, progress)
    film = None if options.html is None else _film(options, load)
    with progress_of(sys.stderr, "simulated", len(load), "requests") as progress:
        watch = None if film is None else film.watch
        outcome = simulate(load, options.plan, options.processes, progress, watch)
        summary = summarize(load, options.plan, outcome, options.profile_name)
    files: dict[Path, Write] = {}
    if options.requests is not None:
        files[options.requests] = lambda path: write_requests(path, load, outcome)
    if options.html is not None and film is not None:
        files[options.html] = lambda path: _write_film(path, film, outcome)
    if options.plot is not None:
        title = f"{options.profile_name}: {_told(options, load)}"
        files[options.plot] = lambda path: draw_run(load, options.plan, outcome, title, path)
    verdicts = [f"{it}: {'met' if it.met(summary) else 'not met'}" for it in options.objectives]
    _give(
        options,
        msgspec.json.encode(summary),
        "\n".join([_head(options), table(summary), *verdicts]),
        files,
    )


def _film(options: Options, load: Load) -> Film:
    from app.fidelity.film import Film  # and the console

    return Film(load, options.plan, f"{options.profile_name}: {_told(options, load)}")


def _write_film(path: Path, film: Film, outcome: Outcome) -> None:
    from app.console.report import report_of

    path.write_text(report_of(film.picture(), film.frames(outcome)), "utf-8")


def _run_sweep(options: Options, sweep: Sweep) -> None:
    jobs = [_at(options, sweep.name, value) for value in sweep.values]
    summaries: dict[int, Summary] = {}
    with progress_of(sys.stderr, f"swept {sweep.name}", len(jobs), "points") as progress:
        for number, summary in each(_point, jobs, options.processes, lambda: progress(len(summaries))):
            summaries[number] = summary
    points = [
        Point(value=value, meets_slo=_meets(options, summaries[number]), summary=summaries[number])
        for number, value in enumerate(sweep.values)
    ]
    word, value = best(sweep.name, points)
    document = {"sweep": sweep.name, word: value, "points": points}
    files: dict[Path, Write] = {}
    if options.plot is not None:
        files[options.plot] = lambda path: draw_sweep(sweep.name, points, options.profile_name, path)
    text = curve(sweep.name, points, options.objectives)
    _give(options, msgspec.json.encode(document), f"{_head(options)}\n{text}", files)


def _at(options: Options, name: str, value: float) -> Options:
    """What is asked for at one point of a sweep."""
    if name == "rate":
        assert options.recipe is not None
        return replace(options, recipe=replace(options.recipe, rate=value))
    count = int(value)
    plan = options.plan
    plan = replace(plan, pods=count) if name == "pods" else replace(plan, in_flight=count)
    return replace(options, plan=plan)


def _point(options: Options) -> Summary:
    gc.disable()
    load = _load(options, lambda done: None)
    outcome = simulate(load, options.plan, 1, lambda done: None)
    return summarize(load, options.plan, outcome, options.profile_name)


def _meets(options: Options, summary: Summary) -> bool | None:
    if not options.objectives:
        return None
    return all(objective.met(summary) for objective in options.objectives)


def _size(options: Options) -> int:
    """How much a load is: requests to be drawn, about, or bytes of a trace."""
    if options.recipe is not None:
        return round(options.recipe.expected)
    assert options.trace is not None
    return options.trace.stat().st_size if options.trace.is_file() else 0


def _load(options: Options, told: Told) -> Load:
    engine = options.plan.profile.engine
    if options.recipe is not None:
        load = draw_load(options.recipe, longest_tokens(engine), told)
    else:
        assert options.trace is not None
        load = read_trace(options.trace, told)
    check_load(load, engine)
    return load


def _head(options: Options) -> str:
    """Which load and profile a table is for."""
    swept = "" if options.sweep is None else options.sweep.name
    plan, recipe = options.plan, options.recipe
    load = f"trace {options.trace}" if recipe is None else f"drawn load, {recipe}, seed {recipe.seed}"
    if recipe is not None and swept == "rate":
        load = load.replace(f" at {recipe.rate:g}/s", "", 1)
    if plan.in_flight is not None and swept != "in-flight":
        load += f", {plan.in_flight} in flight at most"
    one = plan.pods == 1 and swept != "pods"
    fleet = "" if one else f"; {'' if swept == 'pods' else f'{plan.pods} '}pods, {plan.policy}"
    return f"{options.profile_name}: {load}{fleet}"


def _told(options: Options, load: Load) -> str:
    """The load in a few words."""
    origin = options.trace.name if options.trace is not None else "drawn"
    fleet = f", {options.plan.pods} pods, {options.plan.policy}" if options.plan.pods > 1 else ""
    return f"{len(load):,} requests, {origin}{fleet}"


def _give(options: Options, document: bytes, text: str, files: dict[Path, Write]) -> None:
    """Writes all files, or none; then prints the table, or the document where stdout is asked for."""
    document = msgspec.json.format(document) + b"\n"
    if options.json is not None and options.json != STDOUT:
        files[options.json] = lambda path: path.write_bytes(document)
    with ExitStack() as parts:
        for path, write in files.items():
            write(parts.enter_context(whole_file(path)))
    print(document.decode() if options.json == STDOUT else text, end="" if options.json == STDOUT else "\n")
