"""`python -m app plan`: the cheapest fleet that meets an SLO under a load, by simulation."""

import argparse
import logging
import os
import socket
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from app.lab.fidelity import simulate, simulation, summary
from app.lab.fidelity.simulate import Job
from app.lab.load import report
from app.lab.load.loads import MOST_TOKENS, LoadTrace
from app.lab.plan.search import FleetSearch, PlannedFleet, Slo, Verdict, make_group, run_fleet
from config import ConfigError, UsageError
from config.datasheet import AUTO
from config.declaration import check_installed, suggestion
from config.flags import FlagParser, as_argument, as_command, number_of, whole_number
from config.loader import load as load_settings
from config.settings import Settings
from config.shapes import DEVICES

ABOUT = """\
Find the cheapest fleet that meets an SLO (docs/planning.md): device, tensor-parallel size, pods and limits of
the engine, for each load. Bounds exclude what cannot meet the SLO or is too dear; the rest is simulated.
Loads are described as for simulate.
"""
CONSIDERED = {
    "tensor-parallel-size": (1, 2, 4, 8),
    "max-num-seqs": (256, 64, 1024),
    "max-num-batched-tokens": (8192, 2048, 16384),
}
"""Values of the engine's flags; the first ones are tried first, the others where they may save a
pod.
"""
NOT_OF_PLAN = ("profile", "pods", "prefill-pods", "decode-pods", "autoscale", "cold-start") + (
    *(
        "autoscale-every",
        "scrape-interval",
        "sweep",
        "compare",
        "requests",
        "html",
        "gpu-hour-price",
    ),
)
"""Flags of simulate that plan sets or leaves out."""
MOST_DRAWN = 1000
"""Greatest latency in a picture, in % of its limit."""
DASK = "dask="
DASK_LOGGERS = ("distributed", "distributed.client", "tornado.application")
"""Loggers that print tracebacks when a scheduler dies; tornado's do so while an answer is on its
way.
"""
CONNECT_S = 10.0
Simulate = Callable[[Iterable[tuple[LoadTrace, Job, Slo]]], Generator[Verdict, None, None]]


def parser() -> FlagParser:
    """Makes the parser: flags of simulate, with several values for some, without others."""
    flags = simulate.parser("plan", ABOUT)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for name in NOT_OF_PLAN:
        flags.add_argument(f"--{name}", type=as_argument(_refuse), **hidden)
    add = flags.add_argument_group("Plan").add_argument
    prices = f"price of an hour of each device to consider: {', '.join(DEVICES)}"
    add(
        "--device",
        required=True,
        nargs="+",
        type=as_argument(_price),
        metavar="DEVICE=PRICE",
        help=prices,
    )
    add(
        "--model-config",
        required=True,
        metavar="PATH",
        help="the model's config.json, or its folder",
    )
    for name, values in CONSIDERED.items():
        text, kind = f"to consider [{' '.join(map(str, values))}]", whole_number(1, MOST_TOKENS)
        add(f"--{name}", nargs="+", type=kind, default=values, metavar="N", help=text)
    split = "shares of the pods that only prefill, to consider; 0 is none [0.25 0.4 0.6]"
    shares = number_of(0, 1, zero=True)
    add(
        "--prefill-share",
        nargs="+",
        type=shares,
        default=(0.25, 0.4, 0.6),
        metavar="SHARE",
        help=split,
    )
    rates = number_of(0, summary.MOST["rate"])
    add("--rate", nargs="+", type=rates, help="requests a second; each value is a load")
    add("--trace", nargs="+", type=Path, metavar="FILE", help="traces; each is a load")
    share = "share of requests that meet the limits of --goodput [0.99]"
    add("--attainment", type=number_of(0, 1), default=0.99, metavar="SHARE", help=share)
    pods = whole_number(1, summary.MOST["pods"])
    add("--max-pods", type=pods, default=64, metavar="N", help="most pods to consider [64]")
    picture = "price and latency of the fleets, with their Pareto front"
    add("--plot", type=Path, metavar="FILE.png|FILE.svg", help=picture)
    where = "simulate on a Dask cluster instead of this machine"
    add("--backend", type=as_argument(_backend), metavar=f"{DASK}HOST:PORT", help=where)
    return flags


def _refuse(text: str) -> None:
    raise ValueError("is not of plan, which finds or sets it itself")


def _price(text: str) -> tuple[str, float]:
    name, equals, price = text.lower().partition("=")
    if name not in DEVICES:
        raise ValueError(
            f"must be DEVICE=PRICE with one of {', '.join(DEVICES)}{suggestion(name, DEVICES)}"
        )
    if not equals:
        raise ValueError(f"has no price: give {name}=PRICE, for an hour of one device")
    return name, number_of(0, 1_000_000)(price)


def _backend(text: str) -> str:
    if not text.startswith(DASK) or not text.rpartition(":")[2].isdecimal():
        raise ValueError(f"must be {DASK}HOST:PORT")
    return text.removeprefix(DASK)


@as_command()
def run(argv: Sequence[str], plugged: simulate.Plugged = lambda settings, profile: None) -> int:
    """Returns the exit status: 1 also if no fleet meets the SLO under one of the loads."""
    own, words = parser().parse_beside_settings(argv, plugins_only=True)
    given = Namespace(**{**vars(simulate.parser().parse_args([])), "profile": AUTO, **vars(own)})
    if not given.goodput and not given.slo:
        raise UsageError("an SLO is missing: give --goodput or --slo")
    check_installed("plan", "plan")
    if given.backend is not None:
        check_installed("dask", "--backend")
    if given.plot is not None:
        check_installed("fleet", "--plot")
    searches, slo = _searches(given, load_settings(words, {}), plugged)
    with (
        _workers(given) as work,
        report.progress_of(sys.stderr, "planned", 0, "fleets") as progress,
    ):
        done = 0
        while fleets := [
            (search, fleet) for search in searches.values() for fleet in search.wanted()
        ]:
            with closing(work((search.load, fleet.job, slo) for search, fleet in fleets)) as runs:
                for (search, fleet), verdict in zip(fleets, runs, strict=True):
                    search.learn(fleet, verdict)
                    progress(done := done + 1)
    return _report(given, slo, searches)


def _searches(
    given: Namespace, settings: Settings, plugged: simulate.Plugged
) -> tuple[dict[str, FleetSearch], Slo]:
    """Returns the searches by the names of their loads.

    Raises ConfigError if no engine can be made.
    """
    loads = [{"trace": path, "rate": given.rate and given.rate[0]} for path in given.trace or ()]
    loads = loads or [{"trace": None, "rate": rate} for rate in given.rate or (None,)]
    offers: dict[str, list[tuple[Job, float]]] = {}
    reasons: dict[str, str] = {}
    for its in _engines(given):
        name = f"{its['device']} tp {its['tensor_parallel_size']}"
        own = offers.setdefault(name, [])
        try:
            job = simulate.make_job(
                Namespace(**{**vars(given), **loads[0], **its}), settings, plugged
            )
            own.append((job, its["prefill_share"]))
        except UsageError:
            raise
        except ConfigError as error:
            reasons.setdefault(name, str(error))
    if not any(offers.values()):
        raise ConfigError(next(iter(reasons.values())))
    jobs = [job for own in offers.values() for job, _ in own]
    widest = max(jobs, key=lambda job: simulation.longest_tokens(job.plan.profile.engine))
    slo = Slo(widest.judgement.limits or {}, given.attainment, given.slo or ())
    searches = {}
    for flags in loads:
        simulate.check_files(at := Namespace(**{**vars(given), **flags}))
        recipe = simulate.make_recipe(at, rate_is_swept=False)
        load = simulate.read_load(replace(widest, trace=at.trace, recipe=recipe))
        groups = [
            make_group(name, own, reasons.get(name, ""), load) for name, own in offers.items()
        ]
        name = str(at.trace or (f"{at.rate:.12g}/s" if at.rate else recipe))
        searches[name] = FleetSearch(load, slo, groups, given.max_pods)
    return searches, slo


def _engines(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yields flags of simulate for each engine:

    vLLM's defaults first, then others, then split pods.
    """
    considered = [getattr(given, name.replace("-", "_")) for name in CONSIDERED]
    for (device, price), size in product(given.device, given.tensor_parallel_size):
        if dict(given.device)[device] != price:
            raise UsageError(f"--device: {device} has two prices")
        engine = {"device": device, "gpu_hour_price": price, "tensor_parallel_size": size}
        for seqs, tokens in product(*considered[1:]):
            limits = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "prefill_share": 0.0}
            yield {**engine, **limits, **dict.fromkeys(simulate.TRANSFERS)}
        first = {"max_num_seqs": considered[1][0], "max_num_batched_tokens": considered[2][0]}
        for share in filter(None, given.prefill_share):
            yield {**engine, **first, "prefill_share": share, "prefill_pods": 1, "decode_pods": 1}


@contextmanager
def _workers(given: Namespace) -> Iterator[Simulate]:
    """Yields a function that simulates fleets in processes, of this machine or of a Dask cluster."""
    joblib = import_module("joblib")
    try:
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runs that are left when one fails
            chosen = {
                "backend": "loky",
                "initializer": simulation.depend,
                "initargs": (os.getpid(),),
            }
            if given.backend is not None:
                distributed = import_module("distributed")
                for name in DASK_LOGGERS:
                    logging.getLogger(name).setLevel(
                        logging.CRITICAL + 1
                    )  # errors come as exceptions
                host, _, port = given.backend.rpartition(":")
                with socket.create_connection((host, int(port)), CONNECT_S) as probe:
                    probe.recv(
                        1
                    )  # a scheduler speaks first; a client would wait for others without end
                client = stack.enter_context(
                    distributed.Client(f"tcp://{given.backend}", timeout=CONNECT_S)
                )
                chosen = {"backend": "dask", "client": client}
            stack.enter_context(joblib.parallel_config(**chosen))
            parallel = stack.enter_context(
                joblib.Parallel(n_jobs=given.processes, return_as="generator")
            )
            yield lambda work: parallel(joblib.delayed(run_fleet)(*its) for its in work)
    except BrokenExecutor as error:
        raise ConfigError(
            f"a process of --processes ended: {str(error).partition('.')[0]}"
        ) from None
    except Exception as error:
        if given.backend is None or isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--backend {DASK}{given.backend}: {type(error).__name__}: {error}"
        ) from None


def _report(given: Namespace, slo: Slo, searches: Mapping[str, FleetSearch]) -> int:
    missed = [
        f"{name}: nothing meets {slo}; nearest: {search.nearest()}"
        for name, search in searches.items()
        if search.cheapest() is None
    ]
    if len(missed) == len(searches):
        raise ConfigError("; ".join(missed))
    text = "\n\n".join(_table(name, slo, search) for name, search in searches.items())
    figures = {
        "slo": str(slo),
        "loads": [_figures(name, search) for name, search in searches.items()],
    }
    engines = [
        its for search in searches.values() for group in search.groups for its in group.engines
    ]
    with simulate.written(given, figures, text) as parts:
        if given.plot is not None:
            _draw(searches, parts.enter_context(report.whole_file(given.plot)))
    for line in dict.fromkeys(f"{its.device}: {its.job.plan.profile.checked}" for its in engines):
        print(line, file=sys.stderr)
    for line in missed:
        print(f"error: {line}", file=sys.stderr)
    return 1 if missed else 0


def _table(name: str, slo: Slo, search: FleetSearch) -> str:
    """Returns the best fleet of each device and size as a Markdown table, then the answer."""
    rows = [
        ("", "price/h", *(f"{its.upper()} p99" for its in summary.LATENCIES), "of the limit", "")
    ]
    for group in search.groups:
        cells = ["-"] * 5
        if best := group.best():
            p99 = (best.verdict.summary.latency(its).p99 for its in summary.LATENCIES)
            cells = [
                f"{best.price:,.2f}",
                *map(report.milliseconds, p99),
                f"{best.verdict.slo_share:.0%}",
            ]
        rows.append((str(best or group.name), *cells, group.why(search.cheapest())))
    answer = search.ranking() or [f"nearest: {search.nearest()}"]
    return "\n".join(
        [f"{name}: {len(search.load):,} requests; {slo}", report.markdown(rows), *answer]
    )


def _figures(name: str, search: FleetSearch) -> dict[str, object]:
    cheapest = search.cheapest()
    return {
        "load": name,
        "cheapest": cheapest and _fleet_figures(cheapest),
        "nearest": None if cheapest else search.nearest(),
        "reasons": {group.name: group.why(cheapest) for group in search.groups},
        "front": [_fleet_figures(its) for its in search.front()],
        "simulated": [_fleet_figures(its) for its in search.fleets()],
    }


def _fleet_figures(fleet: PlannedFleet) -> dict[str, object]:
    profile, verdict = fleet.engine.job.plan.profile, fleet.verdict
    return {
        "device": fleet.engine.device,
        "tensor_parallel_size": profile.devices,
        "pods": fleet.pods,
        "prefill_pods": fleet.prefill_pods,
        "max_num_seqs": profile.engine.max_num_seqs,
        "max_num_batched_tokens": profile.engine.max_num_batched_tokens,
        "price_per_hour": fleet.price,
        "slo_share": verdict.slo_share,
        "misses": verdict.misses,
        "summary": verdict.summary,
    }


def _draw(searches: Mapping[str, FleetSearch], path: Path) -> None:
    """Draws a panel for each load:

    price and worst latency of all fleets, their front, the cheapest.
    """
    columns = min(2, len(searches))
    rows = -(-len(searches) // columns)
    title = "Price and worst latency of fleets: device, tensor-parallel size, pods"
    with report.picture_file(
        path, title, (max(6.4, 4.4 * columns), 3.8 * rows), (rows, columns)
    ) as panels:
        for axes in panels[len(searches) :]:
            axes.set_visible(False)
        for axes, (name, search) in zip(panels, searches.items(), strict=False):
            best = search.cheapest()
            for fleets, label, style, color in (
                (search.fleets(), "simulated", ".", report.GREY),
                (search.front(), "Pareto front", "-", report.BLUE),
                (filter(None, [best]), "cheapest within the SLO", "o", report.GREEN),
            ):
                points = [(its.price, 100 * its.verdict.slo_share) for its in fleets]
                x, y = zip(*points, strict=True) if points else ((), ())
                axes.plot(x, y, style, color=color, label=label, drawstyle="steps-post")
            axes.axhline(100, color=report.RED, linestyle="--", linewidth=1, label="SLO")
            axes.set(title=f"{name}: {best}" if best else name, xlabel="price an hour")
            axes.set(ylabel="worst latency (% of its limit)", yscale="log")
            met = (
                [its for its in search.front() if its.verdict.slo_share <= 1]
                if columns == 1
                else []
            )
            below = {"xytext": (-3, -1), "textcoords": "offset points", "ha": "right", "va": "top"}
            for its in met:  # nothing is left of the front and below
                axes.annotate(
                    str(its), (its.price, 100 * its.verdict.slo_share), fontsize=7, **below
                )
            axes.set_xlim(left=0)
            axes.set_ylim(top=min(MOST_DRAWN, axes.get_ylim()[1]))
