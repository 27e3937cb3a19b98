"""`understudy plan`: the cheapest fleet that meets an SLO under a load, by simulation."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

from app.core.settings import load as load_settings
from app.core.settings import settings_type
from config import ConfigError, UsageError
from config.declaration import check_installed
from config.flags import FlagTable, as_command
from config.settings import Settings
from vllm_facts.devices import DEVICES
from vllm_facts.step_defaults import default_sequences, step_defaults
from workbench.engine.costs import version_of
from workbench.engine.steps import AUTO
from workbench.load.output_files import atomic_file, write_results
from workbench.load.progress import progress_bar
from workbench.load.study_folder import check_study, workload_file
from workbench.plan.backends import fleet_runner
from workbench.plan.list_prices import list_price_figures, list_price_line
from workbench.plan.over_time import (
    PodsOverTime,
    over_time_figures,
    over_time_order,
    over_time_table,
    plan_over_time,
)
from workbench.plan.plan_flags import (
    CONSIDERED_SEQUENCES,
    CONSIDERED_TOKENS,
    DEFAULT_LOAD_S,
    DevicePrice,
    make_parser,
)
from workbench.plan.plan_report import draw_plan, plan_figures, plan_text
from workbench.plan.repeat_command import shared_flags
from workbench.plan.search import FleetSearch, make_group
from workbench.plan.slo import Slo
from workbench.plan.together import (
    shared_figures,
    shared_fleets,
    shared_headline,
    shared_table,
)
from workbench.plan.uncertainty import OTHER_DRAWS
from workbench.runs import simulate_flags
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.job import Job, read_load
from workbench.runs.job_flags import (
    TRANSFER_FLAGS,
    UNMEASURED_FLAGS,
    check_files,
    make_job,
    make_recipe,
    present_options,
)

Offers = dict[str, list[tuple[Job, float]]]
"""Jobs and their prefill shares, by device, model and tensor-parallel size."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; its exit status is 1 if a load has no fleet within the SLO."""
    plan_options, words = make_parser().parse_beside_settings(
        argv, settings_type(), plugins_only=True
    )
    options = simulate_flags.make_parser().parse_args([])
    vars(options).update(profile=AUTO, **vars(plan_options))
    options.model_config = options.model_configs[0]
    options.flags = shared_flags(argv)
    if options.study is not None:
        if options.rate or options.trace:
            raise UsageError("--study cannot be combined with --trace or --rate")
        trace = workload_file(options.study)
        options.verdict = check_study(options.study, is_accepted=options.accept_study)
        options.trace = [trace]
    if options.rate and not (options.trace or options.seconds or options.num_requests):
        options.seconds = DEFAULT_LOAD_S
        options.flags["seconds"] = f"{DEFAULT_LOAD_S:g}"
    if not options.goodput and not options.slo:
        raise UsageError(
            "limits are required, such as --slo ttft_p95=1s,tpot_p95=50ms or --goodput ttft:1000"
        )
    unmeasured = present_options(options, UNMEASURED_FLAGS)
    if options.confidence is not None and unmeasured:
        flag = next(iter(unmeasured)).replace("_", "-")
        raise UsageError(f"--confidence: the prediction error with --{flag} is unknown")
    if options.backend is not None:
        check_installed("plan", "--backend")
        check_installed("dask", "--backend")
    if options.plot is not None:
        check_installed("fleet", "--plot")
    settings = load_settings(words, {})
    if options.over_time is not None:
        return _report_over_time(options, settings)
    searches, slo = _make_searches(options, settings)
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
                break
            runs = run_fleets((search.load, fleet.job, slo) for search, fleet in fleets)
            with closing(runs) as verdicts:
                for (search, fleet), verdict in zip(fleets, verdicts, strict=True):
                    search.learn(fleet, verdict)
                    finished += 1
                    progress(finished)
        for search in searches.values():
            search.examine(run_fleets, slo)


def _make_searches(options: Namespace, settings: Settings) -> tuple[dict[str, FleetSearch], Slo]:
    """Returns the searches by the names of their loads, and the SLO.

    Raises:
        ConfigError: No engine can be made.
    """
    load_flags = _load_flags(options)
    offers, reasons = _make_offers(options, load_flags[0], settings)
    models = {flags["engine_name"]: flags["model_config"] for flags in _engines(options)}
    jobs = [job for group in offers.values() for job, _ in group]
    if not jobs:
        raise ConfigError(next(iter(reasons.values())))
    # The lengths of a drawn load are cut to the limit of the widest engine.
    widest = max(jobs, key=lambda job: max_request_tokens(job.plan.profile.engine))
    slo = Slo(
        widest.judgement.limits or {}, options.attainment, options.slo or (), options.confidence
    )
    searches = {}
    if options.together and len(load_flags) != len(options.model_configs):
        raise UsageError(
            f"--together requires a load for each model, got {len(options.model_configs)} models"
            f" and {len(load_flags)} loads"
        )
    for number, flags in enumerate(load_flags):
        load_options = Namespace(**{**vars(options), **flags})
        check_files(load_options)
        recipe = make_recipe(load_options, rate_is_swept=False)
        load_job = replace(widest, trace=load_options.trace, recipe=recipe)
        load = read_load(load_job)
        repeat_flags: FlagTable = {}
        if load_options.trace:
            repeat_flags["trace"] = str(load_options.trace)
        if load_options.rate:
            repeat_flags["rate"] = f"{load_options.rate:.12g}"
        served = set(options.model_configs)
        if options.together:
            served = {options.model_configs[number]}
        groups = [
            make_group(
                name,
                group,
                reasons.get(name, ""),
                load=load,
                flags={**repeat_flags, **options.flags},
            )
            for name, group in offers.items()
            if models[name] in served
        ]
        name = str(recipe)
        if load_options.trace:
            name = str(load_options.trace)
        elif load_options.rate:
            name = f"{load_options.rate:.12g}/s"
        if options.together:
            name = f"{options.model_configs[number]}, {name}"
        search = FleetSearch(load, slo, groups, options.max_pods)
        search.other_draws = _other_draws(load_job)
        searches[name] = search
    return searches, slo


def _other_draws(job: Job) -> list[Job]:
    """Returns jobs whose loads are other draws than the load of `job`; none for a trace."""
    recipe = job.recipe
    if recipe is None:
        return []
    return [
        replace(job, recipe=replace(recipe, seed=recipe.seed + number))
        for number in range(1, OTHER_DRAWS + 1)
    ]


def _report_over_time(options: Namespace, settings: Settings) -> int:
    """Prints the accelerators over time for each load; engines have vLLM's default limits.

    Raises:
        ConfigError: No engine can be made, or none meets the SLO, or the load has sessions.
    """
    if options.plot is not None:
        raise UsageError(
            "--plot cannot be combined with --over-time; to get the series, use --json"
        )
    searches, slo = _make_searches(options, settings)
    texts = []
    figures = []
    for name, search in searches.items():
        load = search.load
        if load.session or options.in_flight is not None:
            raise ConfigError(
                f"{name}: --over-time requires arrivals that do not depend on replies"
            )
        plans = _plans_over_time(search, slo, options.over_time)
        if not plans:
            raise ConfigError(f"{name}: no request rate meets {slo} on a single pod")
        texts.append(over_time_table(f"{name}, {options.policy}", load, slo, plans))
        engines = [over_time_figures(plan) for plan in plans]
        figures.append({"load": name, "policy": options.policy, "engines": engines})
    document: dict[str, object] = {"slo": str(slo), "loads": figures}
    text = _with_notes(options, document, "\n\n".join(texts))
    with write_results(options.json, document, text):
        return 0


def _with_notes(options: Namespace, document: dict[str, object], text: str) -> str:
    """Returns the text with lines about a study and list prices, which the document gets too."""
    if options.study is not None:
        document["study"] = {"folder": str(options.study), "verdict": options.verdict}
        text += f"\n{options.study}, the measured fleet, simulated: {options.verdict}"
    listed = _listed(options)
    if listed:
        document["list_prices"] = list_price_figures(listed)
        text += f"\n{list_price_line(listed)}"
    return text


def _plans_over_time(search: FleetSearch, slo: Slo, window_s: float) -> list[PodsOverTime]:
    """Returns the engines that meet the SLO, the cheapest first."""
    plans = []
    with progress_bar(sys.stderr, "measured", len(search.groups), "engines") as progress:
        for number, group in enumerate(search.groups, 1):
            if group.engines:
                job = group.engines[0].job
                plans.append(
                    plan_over_time(group.name, job, search.load, slo=slo, window_s=window_s)
                )
            progress(number)
    return sorted(filter(None, plans), key=over_time_order)


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
        name = engine_flags["engine_name"]
        group = offers.setdefault(name, [])
        job_options = Namespace(**{**vars(options), **load_flags, **engine_flags})
        try:
            job = make_job(job_options, settings)
        except UsageError:
            raise
        except ConfigError as error:
            reasons.setdefault(name, str(error))
        else:
            job = replace(job, node_devices=engine_flags["node_devices"])
            if job.plan.profile.devices > job.node_devices > 1:
                reasons.setdefault(
                    name,
                    f"node: a pod has {job.plan.profile.devices} devices and a node"
                    f" {job.node_devices}",
                )
                continue
            group.append((job, engine_flags["prefill_share"]))
    return offers, reasons


def _engines(options: Namespace) -> Iterator[dict[str, Any]]:
    """Yields flags of simulate for each engine.

    vLLM's defaults come first, then other limits, then separate pods for prefill.
    """
    prices: dict[str, DevicePrice] = {}
    defaults = step_defaults(version_of(options.vllm_version))
    for offer, model, size in product(
        _offered(options.device), options.model_configs, options.tensor_parallel_size
    ):
        if prices.setdefault(offer.label, offer) != offer:
            raise UsageError(
                f"--device: {offer.label} has more than one price; give each price list a"
                f" name, such as {offer.device}@spot=PRICE"
            )
        engine = {
            "device": offer.device,
            "gpu_hour_price": offer.price,
            "node_devices": offer.node_devices,
            "tensor_parallel_size": size,
            "model_config": model,
            "engine_name": _engine_name(offer, size, model, options.model_configs),
        }
        device = DEVICES[offer.device]
        considered_sequences = options.max_num_seqs or _with_default(
            default_sequences(device), CONSIDERED_SEQUENCES
        )
        considered_tokens = options.max_num_batched_tokens or _with_default(
            defaults.tokens(device), CONSIDERED_TOKENS
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


def _offered(offers: Sequence[DevicePrice]) -> list[DevicePrice]:
    """Returns the offers without list prices of devices that also have a price of the user."""
    priced = {offer.label for offer in offers if not offer.is_listed}
    return [offer for offer in offers if not offer.is_listed or offer.label not in priced]


def _listed(options: Namespace) -> list[str]:
    """Returns the devices with a list price."""
    return list(
        dict.fromkeys(offer.device for offer in _offered(options.device) if offer.is_listed)
    )


def _engine_name(offer: DevicePrice, size: int, model: str, models: Sequence[str]) -> str:
    """Returns the name of an engine, with its model if there are several."""
    name = f"{offer.label} tp {size}"
    if len(models) > 1:
        name += f" {model.rstrip('/').rpartition('/')[2]}"
    return name


def _with_default(default: int, values: Sequence[int]) -> list[int]:
    """Returns the values with the default of the device first."""
    return [default, *(value for value in values if value != default)]


def _report(options: Namespace, slo: Slo, searches: Mapping[str, FleetSearch]) -> int:
    missed = [
        f"{name}: no request rate meets {slo}; nearest: {search.nearest()}"
        for name, search in searches.items()
        if search.cheapest() is None
    ]
    if len(missed) == len(searches):
        raise ConfigError("; ".join(missed))
    text = "\n\n".join(
        plan_text(name, slo, search, is_only=len(searches) == 1, is_long=options.why)
        for name, search in searches.items()
    )
    figures: dict[str, object] = {
        "slo": str(slo),
        "loads": [plan_figures(name, slo, search) for name, search in searches.items()],
    }
    if options.together:
        fleets = shared_fleets(searches)
        text = f"{shared_headline(fleets)}\n\n{text}\n\n{shared_table(fleets)}"
        figures["together"] = shared_figures(fleets)
    text = _with_notes(options, figures, text)
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
