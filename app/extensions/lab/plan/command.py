"""`python -m app plan`: the cheapest fleet that meets an SLO under a load, by simulation."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

from app.core.profiles import AUTO
from app.core.settings import load as load_settings
from app.core.settings import settings_type
from app.extensions.lab.costs.devices import DEVICES
from app.extensions.lab.fidelity import simulate_flags
from app.extensions.lab.fidelity.engine_limits import max_request_tokens
from app.extensions.lab.fidelity.job import Job, read_load
from app.extensions.lab.fidelity.job_flags import (
    TRANSFER_FLAGS,
    check_files,
    make_job,
    make_recipe,
)
from app.extensions.lab.load.output_files import atomic_file, write_results
from app.extensions.lab.load.progress import progress_bar
from app.extensions.lab.plan.backends import fleet_runner
from app.extensions.lab.plan.plan_flags import (
    CONSIDERED_SEQUENCES,
    CONSIDERED_TOKENS,
    make_parser,
)
from app.extensions.lab.plan.plan_report import draw_plan, plan_figures, plan_table
from app.extensions.lab.plan.search import FleetSearch, make_group
from app.extensions.lab.plan.slo import Slo
from config import ConfigError, UsageError
from config.declaration import check_installed
from config.flags import as_command
from config.settings import Settings

Offers = dict[str, list[tuple[Job, float]]]
"""Jobs and their prefill shares, by device and tensor-parallel size."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; its exit status is 1 if a load has no fleet within the SLO."""
    plan_options, words = make_parser().parse_beside_settings(
        argv, settings_type(), plugins_only=True
    )
    options = simulate_flags.make_parser().parse_args([])
    vars(options).update(profile=AUTO, **vars(plan_options))
    if not options.goodput and not options.slo:
        raise UsageError("an SLO is required: use --goodput or --slo")
    check_installed("plan", "plan")
    if options.backend is not None:
        check_installed("dask", "--backend")
    if options.plot is not None:
        check_installed("fleet", "--plot")
    searches, slo = _make_searches(options, load_settings(words, {}))
    _run_searches(options, searches, slo)
    return _report(options, slo, searches)


def _run_searches(options: Namespace, searches: Mapping[str, FleetSearch], slo: Slo) -> None:
    finished = 0
    with (
        fleet_runner(options) as run_fleets,
        progress_bar(sys.stderr, "planned", 0, "fleets") as progress,
    ):
        while True:
            fleets = [(search, fleet) for search in searches.values() for fleet in search.wanted()]
            if not fleets:
                return
            runs = run_fleets((search.load, fleet.job, slo) for search, fleet in fleets)
            with closing(runs) as verdicts:
                for (search, fleet), verdict in zip(fleets, verdicts, strict=True):
                    search.learn(fleet, verdict)
                    finished += 1
                    progress(finished)


def _make_searches(options: Namespace, settings: Settings) -> tuple[dict[str, FleetSearch], Slo]:
    """Returns the searches by the names of their loads, and the SLO.

    Raises:
        ConfigError: No engine can be made.
    """
    load_flags = _load_flags(options)
    offers, reasons = _make_offers(options, load_flags[0], settings)
    jobs = [job for group in offers.values() for job, _ in group]
    if not jobs:
        raise ConfigError(next(iter(reasons.values())))
    # The lengths of a drawn load are cut to the limit of the widest engine.
    widest = max(jobs, key=lambda job: max_request_tokens(job.plan.profile.engine))
    slo = Slo(
        widest.judgement.limits or {}, options.attainment, options.slo or (), options.confidence
    )
    searches = {}
    for flags in load_flags:
        load_options = Namespace(**{**vars(options), **flags})
        check_files(load_options)
        recipe = make_recipe(load_options, rate_is_swept=False)
        load = read_load(replace(widest, trace=load_options.trace, recipe=recipe))
        groups = [
            make_group(name, group, reasons.get(name, ""), load) for name, group in offers.items()
        ]
        name = str(recipe)
        if load_options.trace:
            name = str(load_options.trace)
        elif load_options.rate:
            name = f"{load_options.rate:.12g}/s"
        searches[name] = FleetSearch(load, slo, groups, options.max_pods)
    return searches, slo


def _load_flags(options: Namespace) -> list[dict[str, Any]]:
    """Returns the flags of simulate for each load."""
    if options.trace:
        rate = options.rate and options.rate[0]
        return [{"trace": path, "rate": rate} for path in options.trace]
    return [{"trace": None, "rate": rate} for rate in options.rate or (None,)]


def _make_offers(
    options: Namespace,
    load_flags: Mapping[str, Any],
    settings: Settings,
) -> tuple[Offers, dict[str, str]]:
    """Returns the jobs of all engines, and by name the reason for an engine that cannot be made."""
    offers: Offers = {}
    reasons: dict[str, str] = {}
    for engine_flags in _engines(options):
        name = f"{engine_flags['device']} tp {engine_flags['tensor_parallel_size']}"
        group = offers.setdefault(name, [])
        job_options = Namespace(**{**vars(options), **load_flags, **engine_flags})
        try:
            job = make_job(job_options, settings)
        except UsageError:
            raise
        except ConfigError as error:
            reasons.setdefault(name, str(error))
        else:
            group.append((job, engine_flags["prefill_share"]))
    return offers, reasons


def _engines(options: Namespace) -> Iterator[dict[str, Any]]:
    """Yields flags of simulate for each engine.

    vLLM's defaults come first, then other limits, then separate pods for prefill.
    """
    for (device, price), size in product(options.device, options.tensor_parallel_size):
        if dict(options.device)[device] != price:
            raise UsageError(f"--device: {device} has more than one price")
        engine = {"device": device, "gpu_hour_price": price, "tensor_parallel_size": size}
        defaults = DEVICES[device]
        considered_sequences = options.max_num_seqs or _with_default(
            defaults.max_num_seqs, CONSIDERED_SEQUENCES
        )
        considered_tokens = options.max_num_batched_tokens or _with_default(
            defaults.max_num_batched_tokens, CONSIDERED_TOKENS
        )
        for sequences, tokens in product(considered_sequences, considered_tokens):
            yield {
                **engine,
                "max_num_seqs": sequences,
                "max_num_batched_tokens": tokens,
                "prefill_share": 0.0,
                **dict.fromkeys(TRANSFER_FLAGS),
            }
        for share in filter(None, options.prefill_share):
            yield {
                **engine,
                "max_num_seqs": considered_sequences[0],
                "max_num_batched_tokens": considered_tokens[0],
                "prefill_share": share,
                "prefill_pods": 1,
                "decode_pods": 1,
            }


def _with_default(default: int, values: Sequence[int]) -> list[int]:
    """Returns the values with the default of the device first."""
    return [default, *(value for value in values if value != default)]


def _report(options: Namespace, slo: Slo, searches: Mapping[str, FleetSearch]) -> int:
    missed = [
        f"{name}: nothing meets {slo}; nearest: {search.nearest()}"
        for name, search in searches.items()
        if search.cheapest() is None
    ]
    if len(missed) == len(searches):
        raise ConfigError("; ".join(missed))
    text = "\n\n".join(plan_table(name, slo, search) for name, search in searches.items())
    figures = {
        "slo": str(slo),
        "loads": [plan_figures(name, search) for name, search in searches.items()],
    }
    with write_results(options.json, figures, text) as files:
        if options.plot is not None:
            draw_plan(searches, files.enter_context(atomic_file(options.plot)))
    engines = [
        engine
        for search in searches.values()
        for group in search.groups
        for engine in group.engines
    ]
    for line in dict.fromkeys(
        f"{engine.device}: {engine.job.plan.profile.checked}" for engine in engines
    ):
        print(line, file=sys.stderr)
    for line in missed:
        print(f"error: {line}", file=sys.stderr)
    return int(bool(missed))
