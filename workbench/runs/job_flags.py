"""Makes the job of the flags of simulate and plan, and checks their combinations."""

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from app.extensions.plugins.plugged import autoscalers, step_costs
from app.extensions.plugins.policies import AutoscalerStart
from config import ConfigError, UsageError
from config.sections.engine import DEFAULT_PROFILE
from config.settings import Settings
from vllm_facts.devices import DEVICES
from workbench.engine.costs import (
    MEASURED,
    DeviceWatts,
    EngineOptions,
    Situation,
    cost_shape,
    find_config,
    lora_costs,
    make_situation,
    profile_of,
    rules_of,
    with_acceptance,
)
from workbench.engine.steps import AUTO, EngineLimits, Profile, SchedulerRules
from workbench.load.autoscale_flags import read_cold_start, read_policy
from workbench.load.autoscaler import Autoscaling
from workbench.load.output_files import STDOUT, check_output_paths, check_picture_path
from workbench.load.priorities import check_priorities
from workbench.load.study_folder import workload_file
from workbench.load.synthetic import BURSTY, RAMP, Recipe
from workbench.runs.adapters import AdapterPlan, adapter_shares
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.engine_limits import check_engine_limits
from workbench.runs.goodput import Limits, read_limits
from workbench.runs.job import Job
from workbench.runs.kv_tiers import MAX_TIERS, KvTier, TierRules
from workbench.runs.simulate_flags import fill_in_profile
from workbench.runs.simulation import SimulationPlan
from workbench.runs.summary import Judgement
from workbench.runs.sweeps import IN_FLIGHT, PODS, PREFILL_PODS, RATE
from workbench.runs.traces import TraceOptions

UNMEASURED_FLAGS = ("speculative_config", "loras", "kv_tiers")
"""Flags that no measured server had."""
TRANSFER_FLAGS = ("transfer_bandwidth", "transfer_latency", "kv_bytes_per_token")
SYNTHETIC_FLAGS = (
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
    "turns",
    "think",
)
DEFAULT_MAX_LORAS = 1
DEFAULT_LORA_RANK = 16
"""vLLM's defaults."""
DEFAULT_BANDWIDTH = 50e9
"""Bytes per second of a port of 400 Gbit/s."""


def make_job(options: Namespace, settings: Settings) -> Job:
    """Makes the job of the flags; `settings` name the plugins.

    Raises:
        ConfigError: Values are wrong or contradict each other.
    """
    fill_in_profile(options)
    profile = _make_profile(options)
    swept = "" if options.sweep is None else options.sweep.name
    _check_plan_flags(options, swept)
    plan = SimulationPlan(
        profile=profile,
        rules=rules_of(options.vllm_version, SchedulerRules),
        pods=options.pods or 1,
        policy=options.policy,
        in_flight=options.in_flight,
        turnaround_s=options.turnaround or 0.0,
        seed=options.seed,
        autoscaling=_make_autoscaling(options, swept, profile.weight_bytes, autoscalers(settings)),
    )
    if options.loras is not None:
        plan = _with_adapters(options, plan)
    elif options.max_loras is not None or options.max_lora_rank is not None:
        raise UsageError("--max-loras and --max-lora-rank require --loras")
    if options.kv_tiers is not None:
        rules = TierRules(
            policy=options.kv_offload_policy, store_threshold=options.kv_offload_store_threshold
        )
        plan = replace(plan, tiers=_check_tiers(options, plan), tier_rules=rules)
    if options.priorities is not None:
        check_priorities(options.priorities, is_drawn=options.trace is None)
        plan = replace(plan, priorities=tuple(options.priorities))
    split = _make_disaggregation(options, swept, profile.kv_bytes_per_token)
    if split is not None:
        plan = replace(plan, disaggregation=split, pods=split.prefill_pods + split.decode_pods)
    recipe = make_recipe(options, rate_is_swept=swept == RATE)
    profile_name = options.profile
    costs = step_costs(settings, profile)
    if costs is not None:
        plugin_name, plugin_costs = costs
        profile_name = f"{profile_name}, steps by {plugin_name}"
        plan = replace(plan, step_costs=plugin_costs)
    check_files(options)
    judgement = Judgement(_read_goodput(options), options.gpu_hour_price, options.slo)
    return Job(
        profile_name=profile_name,
        plan=plan,
        trace=options.trace,
        trace_options=_trace_options(options),
        recipe=recipe,
        judgement=judgement,
        model=options.model_config or "",
        device=options.device or "",
        options=make_engine_options(options),
        situation=_make_situation(options, has_plugin_costs=costs is not None),
        conversations=_read_conversations(options),
        watts=_find_watts(options),
    )


def use_study(options: Namespace) -> None:
    """Makes the workload of `--study` the trace.

    Raises:
        UsageError: There is also a trace.
        ConfigError: The folder is not that of a study.
    """
    if options.study is None:
        return
    if options.trace is not None:
        raise UsageError("--study and --trace cannot be used together")
    options.trace = workload_file(options.study)


def _trace_options(options: Namespace) -> TraceOptions:
    """Returns how to read the trace. Raises UsageError for an option without a trace."""
    for name in ("trace_block_size", "trace_columns"):
        if getattr(options, name) is not None and options.trace is None:
            raise UsageError(f"--{name.replace('_', '-')} requires --trace")
    return TraceOptions(options.trace_block_size, options.trace_columns)


def _with_adapters(options: Namespace, plan: SimulationPlan) -> SimulationPlan:
    """Returns the plan with LoRA adapters, whose slots take memory from the KV cache.

    Raises:
        ConfigError: The shape of the model is not known, or the slots leave no memory.
    """
    profile = plan.profile
    if options.profile != AUTO or profile.kv_bytes_per_token is None:
        raise ConfigError(f"profile {options.profile}: --loras requires profile {AUTO}")
    if options.prefill_pods is not None or options.sweep is not None:
        raise ConfigError("--loras cannot be combined with --prefill-pods or --sweep")
    engine_options = make_engine_options(options)
    max_rank = options.max_lora_rank or DEFAULT_LORA_RANK
    costs = lora_costs(
        cost_shape(find_config(options.model_config)),
        DEVICES[options.device.lower()],
        max_rank,
        engine_options.tensor_parallel_size,
    )
    max_loras = options.max_loras or DEFAULT_MAX_LORAS
    block_bytes = profile.kv_bytes_per_token * profile.engine.block_size
    slot_blocks = math.ceil(max_loras * costs.adapter_bytes / block_bytes)
    engine = msgspec.structs.replace(
        profile.engine, num_gpu_blocks=max(2, profile.engine.num_gpu_blocks - slot_blocks)
    )
    check_engine_limits(engine, f"profile {options.profile} with --max-loras {max_loras}")
    adapters = AdapterPlan(
        shares=adapter_shares(options.loras),
        max_loras=max_loras,
        max_rank=max_rank,
        costs=costs,
    )
    changed = msgspec.structs.replace(profile, engine=engine)
    return replace(plan, profile=changed, adapters=adapters)


def _check_tiers(options: Namespace, plan: SimulationPlan) -> tuple[KvTier, ...]:
    """Returns the tiers of the KV cache.

    Raises:
        ConfigError: A tier cannot be simulated with the other flags.
    """
    tiers: list[KvTier] = options.kv_tiers
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise ConfigError("--kv-tiers: each tier must have a unique name")
    if len(tiers) > MAX_TIERS:
        raise ConfigError(
            "--kv-tiers: vLLM has two tiers, the host's memory and then a disk;"
            f" {len(tiers)} were specified"
        )
    if len(tiers) > 1 and options.kv_offload_store_threshold >= 2:
        raise ConfigError("--kv-offload-store-threshold cannot be combined with a second tier")
    kv_bytes = options.kv_bytes_per_token or plan.profile.kv_bytes_per_token
    if kv_bytes is None:
        raise ConfigError(
            f"--kv-tiers requires the size of keys and values, which profile {options.profile}"
            " does not specify"
        )
    if not plan.profile.engine.enable_prefix_caching:
        raise ConfigError("--kv-tiers requires prefix caching")
    if options.prefill_pods is not None or options.sweep is not None:
        raise ConfigError("--kv-tiers cannot be combined with --prefill-pods or --sweep")
    return tuple(tiers)


def _find_watts(options: Namespace) -> DeviceWatts | None:
    """Returns the power of a device, measured or as given.

    Raises:
        ConfigError: The power of the device was not measured.
    """
    watts: DeviceWatts | str | None = options.device_watts
    if watts is None or isinstance(watts, DeviceWatts):
        return watts
    device = options.device
    if options.profile == DEFAULT_PROFILE:
        device = "h100"
    measured = MEASURED.get(device or "")
    if measured is None:
        name = device or f"profile {options.profile}"
        raise ConfigError(
            f"--device-watts auto: no power measurements under load are available for {name}; "
            f"use one of {', '.join(MEASURED)}, or specify LOW-HIGH, where LOW is the power in "
            "watts with one request and HIGH is the power with many"
        )
    return measured


def _read_conversations(options: Namespace) -> int | None:
    conversations: int | None = options.conversations
    if conversations is not None and options.trace is None:
        raise UsageError("--conversations requires --trace")
    return conversations


def _make_situation(options: Namespace, *, has_plugin_costs: bool) -> Situation | None:
    """Returns the situation of profile auto; None where no server is comparable.

    That is the case for other profiles, for costs of plugins, and for options that no measured
    server had.
    """
    if options.profile != AUTO or has_plugin_costs or present_options(options, UNMEASURED_FLAGS):
        return None
    config = find_config(options.model_config)
    return make_situation(config, options.device, make_engine_options(options))


def present_options(options: Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of the flags in `names` that the command line has."""
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _make_profile(options: Namespace) -> Profile:
    limits = present_options(options, EngineLimits.__struct_fields__)
    engine_options = make_engine_options(options)
    profile = profile_of(
        options.profile,
        options.device,
        options.model_config,
        engine_options,
        limits=limits,
    )
    if options.profile != AUTO:  # profile auto has applied the limits to each rank
        _check_no_options(options, engine_options)
        engine = msgspec.structs.replace(profile.engine, **limits)
        profile = msgspec.structs.replace(profile, engine=engine)
    check_engine_limits(profile.engine, f"profile {options.profile} with the flags")
    speculation = options.speculative_config
    if speculation is not None and options.profile != AUTO:
        speculation, _ = with_acceptance(speculation, profile.model)
        profile = msgspec.structs.replace(profile, speculation=speculation.rates)
    return profile


def make_engine_options(options: Namespace) -> EngineOptions:
    """Returns the options of the engine of profile auto."""
    # An environment variable sets the other one.
    names = [name for name in EngineOptions.__struct_fields__ if name != "has_tf32"]
    return EngineOptions(**{name: getattr(options, name) for name in names})


def _check_no_options(options: Namespace, engine_options: EngineOptions) -> None:
    """Checks that a profile from a file gets none of the options that compute a profile.

    Raises:
        ConfigError: An option is given.
    """
    defaults = EngineOptions()
    for name in EngineOptions.__struct_fields__:
        if name in ("speculative_config", "vllm_version"):  # which go with any profile
            continue
        if getattr(engine_options, name) != getattr(defaults, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"profile {options.profile}: {flag} requires profile {AUTO}")


def _check_plan_flags(options: Namespace, swept: str) -> None:
    if swept and getattr(options, swept.replace("-", "_")) is not None:
        raise UsageError(f"--{swept} cannot be combined with --sweep {swept}")
    if options.turnaround is not None and options.in_flight is None and swept != IN_FLIGHT:
        raise UsageError("--turnaround requires --in-flight")


def _read_goodput(options: Namespace) -> Limits | None:
    if options.goodput is None:
        return None
    try:
        return read_limits(options.goodput)
    except ValueError as error:
        raise UsageError(f"--goodput {error}") from None


def _make_disaggregation(
    options: Namespace, swept: str, kv_bytes: float | None
) -> Disaggregation | None:
    """Returns the split into prefill and decode pods, if any; the first of a sweep."""
    sweeps = swept == PREFILL_PODS
    kv_bytes = options.kv_bytes_per_token or kv_bytes
    is_split = options.prefill_pods is not None or options.decode_pods is not None
    _check_split_flags(options, swept, is_split=is_split)
    if not is_split and not sweeps:
        return None
    if kv_bytes is None:
        raise ConfigError(
            f"profile {options.profile} does not specify the size of keys and values; set "
            "--kv-bytes-per-token"
        )
    prefill_pods = options.prefill_pods
    decode_pods = options.decode_pods
    if sweeps:
        prefill_pods = int(options.sweep.values[0])
        decode_pods = options.pods - prefill_pods
    return Disaggregation(
        prefill_pods=prefill_pods,
        decode_pods=decode_pods,
        bytes_per_token=kv_bytes,
        bandwidth=options.transfer_bandwidth or DEFAULT_BANDWIDTH,
        latency_s=options.transfer_latency or 0.0,
    )


def _check_split_flags(options: Namespace, swept: str, *, is_split: bool) -> None:
    sweeps = swept == PREFILL_PODS
    flags = "--prefill-pods and --decode-pods"
    if is_split and (options.prefill_pods is None or options.decode_pods is None):
        raise ConfigError(f"{flags} must be used together")
    if is_split and (options.pods is not None or sweeps or swept == PODS):
        raise ConfigError(
            f"{flags} define all pods and cannot be combined with --pods or a sweep over pods"
        )
    if sweeps and (options.pods or 0) <= options.sweep.values[-1]:
        raise ConfigError(
            f"--sweep {swept}: --pods must exceed the last value in the sweep, because the"
            " remaining pods are decode pods"
        )
    transfer_flags = [
        f"--{name.replace('_', '-')}" for name in present_options(options, TRANSFER_FLAGS)
    ]
    if transfer_flags and not is_split and not sweeps:
        raise ConfigError(f"{', '.join(transfer_flags)} requires {flags}")


def _make_autoscaling(
    options: Namespace,
    swept: str,
    weight_bytes: float,
    plugin_policies: Mapping[str, AutoscalerStart],
) -> Autoscaling | None:
    times_s = {}
    if options.autoscale_every is not None:
        times_s["every_s"] = options.autoscale_every
    if options.scrape_interval is not None:
        times_s["scrape_s"] = options.scrape_interval
    if options.autoscale is None or options.cold_start is None:
        if options.autoscale or options.cold_start or times_s:
            raise ConfigError(
                "--autoscale and --cold-start must be used together; the interval flags require "
                "both of them"
            )
        return None
    if swept in (PODS, PREFILL_PODS) or options.prefill_pods is not None:
        raise ConfigError("--autoscale cannot be combined with --prefill-pods or a sweep over pods")
    flag = "--autoscale"
    try:
        policy = read_policy(options.autoscale, plugin_policies)
        flag = "--cold-start"
        cold_start_s = read_cold_start(options.cold_start, weight_bytes)
    except (ValueError, ArgumentTypeError) as error:
        raise ConfigError(f"{flag} {error}") from None
    return Autoscaling(policy, cold_start_s, **times_s, policy_text=options.autoscale)


def make_recipe(options: Namespace, *, rate_is_swept: bool) -> Recipe | None:
    """Returns the recipe of a synthetic load; None for a trace.

    Raises:
        UsageError: Flags contradict each other.
    """
    values = present_options(options, SYNTHETIC_FLAGS)
    if options.trace is not None:
        if values or rate_is_swept:
            flag = "--sweep rate"
            if not rate_is_swept:
                flag = "--" + next(iter(values)).replace("_", "-")
            source = "--trace" if options.study is None else "--study"
            raise UsageError(
                f"{flag} describes a generated load and cannot be combined with {source}"
            )
        return None
    _check_synthetic_flags(values.keys(), values.get("arrivals"), rate_is_swept)
    if rate_is_swept:
        values["rate"] = options.sweep.values[0]
    for flag, name in (("num_requests", "requests"), ("think", "think_s")):
        if flag in values:
            values[name] = values.pop(flag)
    return Recipe(**values, seed=options.seed)


def _check_synthetic_flags(flags: Set[str], arrivals: str | None, rate_is_swept: bool) -> None:
    has_rate = rate_is_swept or "rate" in flags
    violations = {
        "a load is missing: use --trace FILE, or --rate with --seconds, or --num-requests": (
            not has_rate and "num_requests" not in flags
        ),
        "--seconds and --arrivals require --rate": (
            not has_rate and not flags.isdisjoint({"seconds", "arrivals"})
        ),
        "--arrivals ramp requires --seconds, at the end of which --rate is reached": (
            arrivals == RAMP and "seconds" not in flags
        ),
        "a load with only a rate never ends; add --seconds or --num-requests": (
            flags.isdisjoint({"seconds", "num_requests"})
        ),
        "--burstiness requires --arrivals bursty": arrivals != BURSTY and "burstiness" in flags,
        "--ramp-from requires --arrivals ramp": arrivals != RAMP and "ramp_from" in flags,
        "--prefix-groups and --prefix-tokens must be used together": (
            len(flags & {"prefix_groups", "prefix_tokens"}) == 1
        ),
        "--think requires --turns": "think" in flags and "turns" not in flags,
    }
    for rule, is_violated in violations.items():
        if is_violated:
            raise UsageError(rule)


def json_file(options: Namespace) -> Path | None:
    """Returns the file of `--json`, if any."""
    return None if options.json == STDOUT else options.json


def check_files(options: Namespace) -> None:
    """Checks that the output files can be written.

    Raises:
        ConfigError: A file cannot be written.
        UsageError: A file is named twice, or does not go with a sweep.
    """
    for name in ("requests", "html"):
        if options.sweep is not None and getattr(options, name) is not None:
            raise UsageError(f"--{name} applies to a single run and cannot be used with --sweep")
    check_output_paths(
        [options.requests, options.plot, options.html, json_file(options)],
        [options.trace, options.model_config, options.profile],
    )
    check_picture_path(options.plot)
