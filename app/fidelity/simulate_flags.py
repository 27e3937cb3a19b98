"""The flags of `python -m app simulate`, each for itself."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.fidelity.processes import cores
from app.fidelity.routing import POLICIES, RANDOM
from app.fidelity.sweep import MOST, read_objectives, read_sweep
from app.load.synthetic import ARRIVALS, Lengths, read_lengths
from app.load.trace import MOST_TOKENS
from config import ConfigError
from config.devices import DEVICES
from config.durations import parse_duration
from config.flags import Parser, add_section, whole_number
from config.installation import COMMAND
from config.profile import DEFAULT_PROFILE
from config.settings import Settings, Table, table_of

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
T = TypeVar("T")
PLAIN = table_of(Settings)


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
    add("--turnaround", type=_duration, metavar="DURATION", help=pause)
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
    add("--sweep", type=_of(read_sweep), metavar="NAME=FROM:TO:STEP", help=sweep)
    add("--slo", type=_of(read_objectives), metavar="LIMITS", help="such as ttft_p99=500ms,itl_p99=50ms")
    count = whole_number(1, 1024)
    add("--processes", type=count, default=cores(), metavar="N", help="of sweeps and fleets [one a core]")


def _of(read: Callable[[str], T]) -> Callable[[str], T]:
    """A type of argparse that is made of what raises ValueError with a rule."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return convert


def lengths(which: str) -> Callable[[str], Lengths]:
    """Reads LENGTHS of `input` or `output`."""
    return _of(lambda text: read_lengths(text, which))


def number_of(low: float, high: float, zero: bool = False) -> Callable[[str], float]:
    """Numbers above `low`, or with `zero` from it on, up to `high`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high or (number == low and not zero):
            wanted = f"from {low:g} to" if zero else f"above {low:g}, at most"
            raise ValueError(f"must be a number {wanted} {high:,.0f}")
        return number

    return _of(read)


def _duration(text: str) -> float:
    seconds = _of(parse_duration)(text)
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be from 0 to 1h")
    return seconds
