"""The flags of `python -m app simulate`, which of them go together, and what is asked for by them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from app.fidelity.processes import cores
from app.fidelity.simulation import Plan, StepCosts, check_engine, usual_costs
from app.fidelity.summary import MOST, Objective, Sweep, read_objectives, read_sweep
from app.load.policies import POLICIES, RANDOM
from app.load.report import check_target
from app.load.synthetic import ARRIVALS, BURSTINESS, BURSTY, POISSON, RAMP, Recipe, lengths, read_lengths
from app.load.trace import MOST_TOKENS
from config import ConfigError, UsageError
from config.datasheet import profile_of
from config.devices import DEVICES
from config.flags import Parser, add_section, as_argument, duration_of, kind_of, number_of, whole_number
from config.installation import COMMAND
from config.profile import DEFAULT_PROFILE, EngineLimits, Profile
from config.settings import Settings, Table, table_of
from config.validation import check
from config.validation import read as read_setting

ABOUT = """\
Simulate a load on an engine, or on a fleet of them, on virtual time: the steps that timing steps plays live
(docs/fidelity.md). The load is a trace, or it is drawn. A DURATION is 60us, 250ms or 1.5s. LENGTHS are N,
N:lognormal, N:lognormal:SIGMA, N:uniform (half to three halves of N), LOW-HIGH or sharegpt.
"""
MOST_SECONDS = 10_000_000.0
ENGINE = ("max-num-seqs", "max-num-batched-tokens", "num-gpu-blocks-override", "block-size", "max-model-len")
THRESHOLD = "long-prefill-token-threshold"
SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching", "async-scheduling")
Group = argparse._ArgumentGroup
PLAIN = table_of(Settings)
STDOUT = Path("-")
Plugged = Callable[[Settings, Profile], tuple[str, StepCosts] | None]
"""Which plugin of the settings says what the steps of this engine cost, if any does, and how."""
INPUT_TOKENS, OUTPUT_TOKENS = "1000:lognormal", "128:lognormal"
"""Lengths of one size alone would flatter policies that count nothing."""
DRAWN = ("rate", "arrivals", "burstiness", "ramp_from", "input_tokens", "output_tokens", "seconds") + (
    *("num_requests", "prefix_groups", "prefix_tokens"),
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
        input_tokens=given.input_tokens or read_lengths(INPUT_TOKENS, "input"),
        output_tokens=given.output_tokens or read_lengths(OUTPUT_TOKENS, "output"),
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
        check_target(path)
        if targets.count(path) > 1 or path == options.trace:
            raise UsageError(f"{path} is named twice")


def parser(table: Table = PLAIN) -> argparse.ArgumentParser:
    """What is not given is None, where nothing else is said. `table` has the settings of plugins, too."""
    flags = Parser(prog=f"{COMMAND} simulate", description=ABOUT, allow_abbrev=False)
    told = f"what steps cost, and the engine's limits [{DEFAULT_PROFILE}]"
    flags.add_argument("--profile", default=DEFAULT_PROFILE, metavar="NAME|FILE|auto", help=told)
    _add_data_sheet(flags.add_argument_group("What profile auto is made of"))
    _add_load(flags.add_argument_group("A load from a file"))
    _add_drawn(flags.add_argument_group("A load that is drawn"))
    _add_client(flags.add_argument_group("Client and fleet"))
    _add_engine(flags.add_argument_group("Limits of the engine, vLLM's: the profile says what is not given"))
    _add_results(flags.add_argument_group("Results"))
    for name in plugin_groups(table):
        try:
            add_section(flags, table, name)
        except argparse.ArgumentError as error:
            raise ConfigError(f"plugin {name}: {error}; simulate has a flag of that name") from None
    return flags


def plugin_groups(table: Table) -> list[str]:
    """The sections of the settings that are about plugins."""
    return ["plugins", *(name for name in table.sections if name not in PLAIN.sections)]


def _add_data_sheet(group: Group) -> None:
    group.add_argument("--device", help=f"one of {', '.join(DEVICES)}")
    group.add_argument("--model-config", metavar="PATH", help="the model's config.json, or its folder")
    group.add_argument(
        "--tensor-parallel-size", type=whole_number(1, 1024), default=1, metavar="N", help="devices [1]"
    )


def _add_load(group: Group) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.csv[.gz]",
        help="columns arrival_s, input_tokens, output_tokens; where prompts share a beginning, also "
        "prefix_group and prefix_tokens; others are ignored",
    )


def _add_drawn(group: Group) -> None:
    add, whole = group.add_argument, whole_number(1, MOST_TOKENS)
    rate = partial(number_of, 0, MOST["rate"])
    add("--rate", type=rate(), help="requests a second; without it they are there from the start")
    add("--arrivals", choices=ARRIVALS, help="how they come [poisson]")
    shape = "of bursty gaps: 1 is as poisson, less is burstier [0.25]"
    add("--burstiness", type=number_of(0, 1000), metavar="SHAPE", help=shape)
    add("--ramp-from", type=rate(zero=True), metavar="RATE", help="with which a ramp to --rate begins [0]")
    add("--input-tokens", type=lengths("input"), metavar="LENGTHS", help="of prompts [1000:lognormal]")
    add("--output-tokens", type=lengths("output"), metavar="LENGTHS", help="of answers [128:lognormal]")
    add("--seconds", type=number_of(0, MOST_SECONDS), help="how long requests come")
    add("--num-requests", type=whole, metavar="N", help="how many come at the most")
    add("--prefix-groups", type=whole, metavar="N", help="groups whose prompts begin alike [none]")
    add("--prefix-tokens", type=whole, metavar="N", help="with which they do, before the input tokens")
    seed = "of load, routing and speculation [1]"
    add("--seed", type=whole_number(0, 1 << 31), default=1, metavar="N", help=seed)


def _add_client(group: Group) -> None:
    add = group.add_argument
    places = "requests under way at the most; the next ones wait for a place [no limit]"
    add("--in-flight", type=whole_number(1, MOST["in-flight"]), metavar="N", help=places)
    pause = "from the end of a request until another one takes its place [0]"
    add("--turnaround", type=duration_of(3600), metavar="DURATION", help=pause)
    add("--pods", type=whole_number(1, MOST["pods"]), default=1, metavar="N", help="engines [1]")
    add("--policy", choices=POLICIES, default=RANDOM, help=f"which of them gets a request [{RANDOM}]")


def _add_engine(group: Group) -> None:
    for name in ENGINE:
        least = 2 if "blocks" in name else 1
        group.add_argument(f"--{name}", type=whole_number(least, MOST_TOKENS), metavar="N")
    group.add_argument(f"--{THRESHOLD}", type=whole_number(0, MOST_TOKENS), metavar="N")
    for name in SWITCHES:
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)


def _add_results(group: Group) -> None:
    add = group.add_argument
    add("--json", type=Path, metavar="FILE", help="the figures; - is stdout, without the table then")
    add("--requests", type=Path, metavar="FILE.csv", help="moments of each request: send, first, last")
    picture = "latency, batch and cache over time; of a sweep its curve"
    add("--plot", type=Path, metavar="FILE.png", help=picture)
    add("--html", type=Path, metavar="FILE.html", help="the run as a page to look through, moment by moment")
    sweep = f"a run for each value of one of {', '.join(MOST)}"
    add("--sweep", type=as_argument(read_sweep), metavar="NAME=FROM:TO:STEP", help=sweep)
    goals = "such as ttft_p99=500ms,itl_p99=50ms"
    add("--slo", type=as_argument(read_objectives), metavar="LIMITS", help=goals)
    count = whole_number(1, 1024)
    add("--processes", type=count, default=cores(), metavar="N", help="of sweeps and fleets [one a core]")
