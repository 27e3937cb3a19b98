"""`understudy plan`: the cheapest fleet that meets an SLO under a load, by simulation."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from app.core.settings import load as load_settings
from app.core.settings import settings_type
from config import ConfigError, UsageError
from config.declaration import check_installed
from config.flags import FlagTable, as_command, long_name
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
from workbench.plan.search import FleetSearch, make_group
from workbench.plan.slo import Slo
from workbench.plan.together import (
    shared_figures,
    shared_fleets,
    shared_headline,
    shared_table,
)
from workbench.plan.uncertainty import OTHER_DRAWS
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
from workbench.runs.job_spec import JobSpec, field_names, flag_name

SEARCHED = ("device", "rate", "trace", "max_num_seqs", "max_num_batched_tokens")
"""Fields of a job for which `plan` takes several values, besides the tensor-parallel size."""
UNREPEATED = (
    *("study", "model_config", "tensor_parallel_size"),
    *("json", "plot", "processes"),
)
"""Further fields that the command of a fleet does not repeat, or that differ there."""
Offers = dict[str, list[tuple[Job, float]]]
"""Jobs and their prefill shares, by device, model and tensor-parallel size."""


class Engine(NamedTuple):
    """An engine to consider."""

    name: str
    model: str
    node_devices: int
    """Devices that are rented together."""
    spec: JobSpec
    prefill_share: float = 0.0
    """Share of the pods that only prefill."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command; its exit status is 1 if a load has no fleet within the SLO."""
    parser = make_parser()
    options, words = parser.parse_beside_settings(argv, settings_type(), plugins_only=True)
    spec = shared_spec(options, parser.table_of(argv))
    if options.study is not None:
        if options.rate or options.trace:
            raise UsageError("--study cannot be combined with --trace or --rate")
        trace = workload_file(options.study)
        options.verdict = check_study(options.study, is_accepted=options.accept_study)
        options.trace = [trace]
    if options.rate and not (options.trace or options.seconds or options.num_requests):
        spec = spec.changed(seconds=DEFAULT_LOAD_S)
    if not options.goodput and not options.slo:
        raise UsageError(
            "limits are required, such as --slo ttft_p95=1s,tpot_p95=50ms or --goodput ttft:1000"
        )
    unmeasured = present_options(spec, UNMEASURED_FLAGS)
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
        return _report_over_time(options, spec, settings)
    searches, slo = _make_searches(options, spec, settings)
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


def shared_spec(options: Namespace, texts: FlagTable) -> JobSpec:
    """Returns what all jobs have in common; `texts` are the flags as they were written."""
    plan_flags = {long_name(action) for action in make_parser().actions().values()}
    repeated = {
        flag_name(field) for field in field_names() if field not in (*SEARCHED, *UNREPEATED)
    }
    fields = {name: value for name, value in vars(options).items() if name in field_names()}
    return JobSpec(
        **{**fields, **dict.fromkeys(SEARCHED), "tensor_parallel_size": 1},
        profile=AUTO,
        model_config=options.model_configs[0],
        texts={
            name: text
            for name, text in texts.items()
            if name in repeated or name not in plan_flags  # the flag of a plugin
        },
    )


def _make_searches(
    options: Namespace, spec: JobSpec, settings: Settings
) -> tuple[dict[str, FleetSearch], Slo]:
    """Returns the searches by the names of their loads, and the SLO.

    Raises:
        ConfigError: No engine can be made.
    """
    loads = [spec.changed(trace=trace, rate=rate) for trace, rate in _traces_and_rates(options)]
    offers, reasons = _make_offers(options, loads[0], settings)
    models = {engine.name: engine.model for engine in _engines(options, spec)}
    jobs = [job for group in offers.values() for job, _ in group]
    if not jobs:
        raise ConfigError(next(iter(reasons.values())))
    # The lengths of a drawn load are cut to the limit of the widest engine.
    widest = max(jobs, key=lambda job: max_request_tokens(job.plan.profile.engine))
    slo = Slo(
        widest.judgement.limits or {}, options.attainment, options.slo or (), options.confidence
    )
    searches = {}
    if options.together and len(loads) != len(options.model_configs):
        raise UsageError(
            f"--together requires a load for each model, got {len(options.model_configs)} models"
            f" and {len(loads)} loads"
        )
    for number, load_spec in enumerate(loads):
        check_files(load_spec)
        recipe = make_recipe(load_spec, rate_is_swept=False)
        load_job = replace(widest, trace=load_spec.trace, recipe=recipe)
        load = read_load(load_job)
        repeated = JobSpec().changed(trace=load_spec.trace, rate=load_spec.rate).updated(spec)
        served = set(options.model_configs)
        if options.together:
            served = {options.model_configs[number]}
        groups = [
            make_group(
                name,
                group,
                reasons.get(name, ""),
                load=load,
                shared=repeated,
            )
            for name, group in offers.items()
            if models[name] in served
        ]
        name = str(recipe)
        if load_spec.trace:
            name = str(load_spec.trace)
        elif load_spec.rate:
            name = f"{load_spec.rate:.12g}/s"
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


def _report_over_time(options: Namespace, spec: JobSpec, settings: Settings) -> int:
    """Prints the accelerators over time for each load; engines have vLLM's default limits.

    Raises:
        ConfigError: No engine can be made, or none meets the SLO, or the load has sessions.
    """
    if options.plot is not None:
        raise UsageError(
            "--plot cannot be combined with --over-time; to get the series, use --json"
        )
    searches, slo = _make_searches(options, spec, settings)
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


def _traces_and_rates(options: Namespace) -> list[tuple[Path | None, float | None]]:
    """Returns the trace and the rate of each load."""
    if options.trace:
        rate = options.rate[0] if options.rate else None
        return [(path, rate) for path in options.trace]
    return [(None, rate) for rate in options.rate or (None,)]


def _make_offers(
    options: Namespace, spec: JobSpec, settings: Settings
) -> tuple[Offers, dict[str, str]]:
    """Returns the jobs of all engines, and by name the reason for an engine that cannot be made."""
    offers: Offers = {}
    reasons: dict[str, str] = {}
    for engine in _engines(options, spec):
        group = offers.setdefault(engine.name, [])
        try:
            job = make_job(engine.spec, settings)
        except UsageError:
            raise
        except ConfigError as error:
            reasons.setdefault(engine.name, str(error))
        else:
            job = replace(job, node_devices=engine.node_devices)
            if job.plan.profile.devices > job.node_devices > 1:
                reasons.setdefault(
                    engine.name,
                    f"node: a pod has {job.plan.profile.devices} devices and a node"
                    f" {job.node_devices}",
                )
                continue
            group.append((job, engine.prefill_share))
    return offers, reasons


def _engines(options: Namespace, spec: JobSpec) -> Iterator[Engine]:
    """Yields the engines to consider for a load.

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
        engine = Engine(
            name=_engine_name(offer, size, model, options.model_configs),
            model=model,
            node_devices=offer.node_devices,
            spec=spec.changed(
                device=offer.device,
                gpu_hour_price=offer.price,
                tensor_parallel_size=size,
                model_config=model,
            ),
        )
        device = DEVICES[offer.device]
        considered_sequences = options.max_num_seqs or _with_default(
            default_sequences(device), CONSIDERED_SEQUENCES
        )
        considered_tokens = options.max_num_batched_tokens or _with_default(
            defaults.tokens(device), CONSIDERED_TOKENS
        )
        for sequences, tokens in product(considered_sequences, considered_tokens):
            limited = engine.spec.without(*TRANSFER_FLAGS).changed(
                max_num_seqs=sequences, max_num_batched_tokens=tokens
            )
            yield engine._replace(spec=limited)
        for share in filter(None, options.prefill_share):
            split = engine.spec.changed(
                max_num_seqs=considered_sequences[0],
                max_num_batched_tokens=considered_tokens[0],
                prefill_pods=1,
                decode_pods=1,
            )
            yield engine._replace(spec=split, prefill_share=share)


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
