"""What `python -m app simulate` is asked for: flags that go together, and files that can be written."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.fidelity.limits import check_engine
from app.fidelity.simulate_flags import ENGINE, SWITCHES, THRESHOLD, parser, plugin_groups
from app.fidelity.simulation import Plan, StepCosts, usual_costs
from app.fidelity.sweep import Objective, Sweep
from app.load.synthetic import BURSTINESS, BURSTY, LOGNORMAL_SIGMA, POISSON, RAMP, Lognormal, Recipe
from config import ConfigError, UsageError
from config.datasheet import profile_of
from config.flags import kind_of
from config.profile import EngineLimits, Profile
from config.settings import Settings, table_of
from config.validation import check
from config.validation import read as read_setting

STDOUT = Path("-")
Plugged = Callable[[Settings, Profile], tuple[str, StepCosts] | None]
"""Which plugin of the settings says what the steps of this engine cost, if any does, and how."""
INPUT_TOKENS, OUTPUT_TOKENS = Lognormal(1000.0, LOGNORMAL_SIGMA), Lognormal(128.0, LOGNORMAL_SIGMA)
"""Lengths of one size alone would flatter policies that count nothing."""
DRAWN = (
    "rate",
    "arrivals",
    "burstiness",
    "ramp_from",
    "input_tokens",
    "output_tokens",
    "seconds",
    "num_requests",
    "prefix_groups",
    "prefix_tokens",
)
"""The flags of a drawn load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for. One of `trace` and `recipe` is None."""

    profile_name: str
    plan: Plan
    trace: Path | None
    recipe: Recipe | None
    sweep: Sweep | None
    objectives: tuple[Objective, ...]
    processes: int
    json: Path | None
    requests: Path | None
    plot: Path | None
    html: Path | None = None


def read(argv: Sequence[str], plugged: Plugged) -> Options:
    """The options. ConfigError, in one line, for wrong values and for those that do not go together."""
    kind = kind_of(argv, {})
    given = parser(table_of(kind)).parse_args(list(argv))
    profile = profile_of(given.profile, given.device, given.tensor_parallel_size, given.model_config)
    limits = _engine(profile.engine, given)
    check_engine(limits, f"profile {given.profile} with the flags")
    swept = "" if given.sweep is None else given.sweep.name
    if given.turnaround is not None and given.in_flight is None and swept != "in-flight":
        raise UsageError("--turnaround goes with --in-flight")
    name, costs = _costs(given, kind, profile, plugged)
    options = Options(
        profile_name=name,
        plan=Plan(
            profile=msgspec.structs.replace(profile, engine=limits),
            step_costs=costs,
            pods=given.pods,
            policy=given.policy,
            in_flight=given.in_flight,
            turnaround_s=given.turnaround or 0.0,
            seed=given.seed,
        ),
        trace=given.trace,
        recipe=_recipe(given, swept == "rate"),
        sweep=given.sweep,
        objectives=given.slo or (),
        processes=given.processes,
        json=given.json,
        requests=given.requests,
        plot=given.plot,
        html=given.html,
    )
    _check_files(options)
    return options


def _costs(
    given: argparse.Namespace, kind: type[Settings], profile: Profile, plugged: Plugged
) -> tuple[str, StepCosts]:
    """What is simulated, in a few words, and what its steps cost by the profile or by a plugin."""
    if not kind.PLUGINS:
        return given.profile, usual_costs
    table = table_of(kind)
    groups = plugin_groups(table)
    texts = {row: getattr(given, row.name) for row in table.rows if row.group in groups}
    sources = {row.name: f"flag --{row.name}" for row in texts}
    values = {row.name: read_setting(row, text, sources[row.name]) for row, text in texts.items() if text}
    settings = kind().changed(values)
    check(settings, sources)
    found = plugged(settings, profile)
    return (
        (given.profile, usual_costs) if found is None else (f"{given.profile}, steps by {found[0]}", found[1])
    )


def _engine(at: EngineLimits, given: argparse.Namespace) -> EngineLimits:
    """The limits of the profile, but for those that flags say."""
    changes: dict[str, int] = {}
    for name in (*ENGINE, *SWITCHES, THRESHOLD):
        field = name.replace("-", "_")
        if (value := getattr(given, field)) is not None:
            changes[field.removesuffix("_override")] = value
    return msgspec.structs.replace(at, **changes)


def _recipe(given: argparse.Namespace, rate_is_swept: bool) -> Recipe | None:
    """The load that is to be drawn, if any."""
    named = [name for name in DRAWN if getattr(given, name) is not None]
    if given.trace is not None:
        if named or rate_is_swept:
            other = "--sweep rate" if rate_is_swept else "--" + named[0].replace("_", "-")
            raise UsageError(f"{other} is of a load that is drawn, and --trace is a whole load")
        return None
    _check_drawn(given, rate_is_swept)
    return Recipe(
        input_tokens=given.input_tokens or INPUT_TOKENS,
        output_tokens=given.output_tokens or OUTPUT_TOKENS,
        rate=given.sweep.values[0] if rate_is_swept else given.rate,
        arrivals=given.arrivals or POISSON,
        burstiness=given.burstiness or BURSTINESS,
        ramp_from=given.ramp_from or 0.0,
        seconds=given.seconds,
        requests=given.num_requests,
        prefix_groups=given.prefix_groups or 0,
        prefix_tokens=given.prefix_tokens or 0,
        seed=given.seed,
    )


def _check_drawn(given: argparse.Namespace, rate_is_swept: bool) -> None:
    has_rate = given.rate is not None or rate_is_swept
    for wrong, rule in (
        (
            not has_rate and given.num_requests is None,
            "a load is missing: give --trace FILE, or --rate with --seconds, or --num-requests",
        ),
        (rate_is_swept and given.rate is not None, "--rate must not be given with --sweep rate"),
        (
            not has_rate and (given.seconds is not None or given.arrivals is not None),
            "--seconds and --arrivals go with --rate",
        ),
        (
            has_rate and given.seconds is None and given.num_requests is None,
            "a load that has a rate alone never ends: give --seconds or --num-requests",
        ),
        (
            given.arrivals == RAMP and given.seconds is None,
            "--arrivals ramp needs --seconds: by then it has come to its rate",
        ),
        (
            given.burstiness is not None and given.arrivals != BURSTY,
            "--burstiness goes with --arrivals bursty",
        ),
        (given.ramp_from is not None and given.arrivals != RAMP, "--ramp-from goes with --arrivals ramp"),
        (
            (given.prefix_groups is None) != (given.prefix_tokens is None),
            "--prefix-groups and --prefix-tokens go together",
        ),
    ):
        if wrong:
            raise UsageError(rule)


def _check_files(options: Options) -> None:
    """ConfigError for files that could not be written, before anything is calculated."""
    for name, path in (("requests", options.requests), ("html", options.html)):
        if options.sweep is not None and path is not None:
            raise UsageError(f"--{name} is of one run, not of --sweep")
    named = [options.requests, options.plot, options.html, None if options.json == STDOUT else options.json]
    targets = [path for path in named if path is not None]
    for path in targets:
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}")
        if path.is_dir():
            raise ConfigError(f"{path} is a folder")
        if targets.count(path) > 1 or path == options.trace:
            raise UsageError(f"{path} is named twice")
