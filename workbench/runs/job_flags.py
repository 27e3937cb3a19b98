"""Makes the job of the flags of simulate and plan, and checks their combinations."""

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence, Set
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
from workbench.runs.job_spec import JobSpec
from workbench.runs.kv_tiers import MAX_TIERS, KvTier, TierRules
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


def with_profile(spec: JobSpec) -> JobSpec:
    """Returns a job with the profile that the other flags imply, unless a flag names it."""
    if spec.profile is not None:
        return spec
    is_computed = spec.device is not None or spec.model_config is not None
    return msgspec.structs.replace(spec, profile=AUTO if is_computed else DEFAULT_PROFILE)


def make_job(spec: JobSpec, settings: Settings) -> Job:
    """Makes the job that a description describes; `settings` name the plugins.

    Raises:
        ConfigError: Values are wrong or contradict each other.
    """
    spec = with_profile(spec)
    assert spec.profile is not None
    profile = _make_profile(spec, spec.profile)
    swept = "" if spec.sweep is None else spec.sweep.name
    _check_plan_flags(spec, swept)
    plan = SimulationPlan(
        profile=profile,
        rules=rules_of(spec.vllm_version, SchedulerRules),
        pods=spec.pods or 1,
        policy=spec.policy,
        in_flight=spec.in_flight,
        turnaround_s=spec.turnaround or 0.0,
        seed=spec.seed,
        autoscaling=_make_autoscaling(spec, swept, profile.weight_bytes, autoscalers(settings)),
    )
    if spec.loras is not None:
        plan = _with_adapters(spec, spec.loras, plan)
    elif spec.max_loras is not None or spec.max_lora_rank is not None:
        raise UsageError("--max-loras and --max-lora-rank require --loras")
    if spec.kv_tiers is not None:
        rules = TierRules(
            policy=spec.kv_offload_policy, store_threshold=spec.kv_offload_store_threshold
        )
        tiers = _check_tiers(spec, spec.kv_tiers, plan)
        plan = replace(plan, tiers=tiers, tier_rules=rules)
    if spec.priorities is not None:
        check_priorities(spec.priorities, is_drawn=spec.trace is None)
        plan = replace(plan, priorities=tuple(spec.priorities))
    split = _make_disaggregation(spec, swept, profile.kv_bytes_per_token)
    if split is not None:
        plan = replace(plan, disaggregation=split, pods=split.prefill_pods + split.decode_pods)
    recipe = make_recipe(spec, rate_is_swept=swept == RATE)
    profile_name = spec.profile
    costs = step_costs(settings, profile)
    if costs is not None:
        plugin_name, plugin_costs = costs
        profile_name = f"{profile_name}, steps by {plugin_name}"
        plan = replace(plan, step_costs=plugin_costs)
    check_files(spec)
    judgement = Judgement(_read_goodput(spec), spec.gpu_hour_price, spec.slo)
    return Job(
        profile_name=profile_name,
        plan=plan,
        trace=spec.trace,
        trace_options=_trace_options(spec),
        recipe=recipe,
        judgement=judgement,
        model=spec.model_config or "",
        device=spec.device or "",
        options=make_engine_options(spec),
        situation=_make_situation(spec, has_plugin_costs=costs is not None),
        conversations=_read_conversations(spec),
        watts=_find_watts(spec),
    )


def with_workload(spec: JobSpec) -> JobSpec:
    """Returns a job whose trace is the workload of `--study`, if there is one.

    Raises:
        UsageError: There is also a trace.
        ConfigError: The folder is not that of a study.
    """
    if spec.study is None:
        return spec
    if spec.trace is not None:
        raise UsageError("--study and --trace cannot be used together")
    return msgspec.structs.replace(spec, trace=workload_file(spec.study))


def _trace_options(spec: JobSpec) -> TraceOptions:
    """Returns how to read the trace. Raises UsageError for an option without a trace."""
    for name in ("trace_block_size", "trace_columns"):
        if getattr(spec, name) is not None and spec.trace is None:
            raise UsageError(f"--{name.replace('_', '-')} requires --trace")
    return TraceOptions(spec.trace_block_size, spec.trace_columns)


def _with_adapters(
    spec: JobSpec, adapters: Sequence[int | tuple[str, float]], plan: SimulationPlan
) -> SimulationPlan:
    """Returns the plan with LoRA adapters, whose slots take memory from the KV cache.

    Raises:
        ConfigError: The shape of the model is not known, or the slots leave no memory.
    """
    profile = plan.profile
    if spec.profile != AUTO or profile.kv_bytes_per_token is None:
        raise ConfigError(f"profile {spec.profile}: --loras requires profile {AUTO}")
    if spec.prefill_pods is not None or spec.sweep is not None:
        raise ConfigError("--loras cannot be combined with --prefill-pods or --sweep")
    assert spec.model_config is not None and spec.device is not None
    engine_options = make_engine_options(spec)
    max_rank = spec.max_lora_rank or DEFAULT_LORA_RANK
    costs = lora_costs(
        cost_shape(find_config(spec.model_config)),
        DEVICES[spec.device.lower()],
        max_rank,
        engine_options.tensor_parallel_size,
    )
    max_loras = spec.max_loras or DEFAULT_MAX_LORAS
    block_bytes = profile.kv_bytes_per_token * profile.engine.block_size
    slot_blocks = math.ceil(max_loras * costs.adapter_bytes / block_bytes)
    engine = msgspec.structs.replace(
        profile.engine, num_gpu_blocks=max(2, profile.engine.num_gpu_blocks - slot_blocks)
    )
    check_engine_limits(engine, f"profile {spec.profile} with --max-loras {max_loras}")
    adapter_plan = AdapterPlan(
        shares=adapter_shares(adapters),
        max_loras=max_loras,
        max_rank=max_rank,
        costs=costs,
    )
    changed = msgspec.structs.replace(profile, engine=engine)
    return replace(plan, profile=changed, adapters=adapter_plan)


def _check_tiers(
    spec: JobSpec, tiers: Sequence[KvTier], plan: SimulationPlan
) -> tuple[KvTier, ...]:
    """Returns the tiers of the KV cache.

    Raises:
        ConfigError: A tier cannot be simulated with the other flags.
    """
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise ConfigError("--kv-tiers: each tier must have a unique name")
    if len(tiers) > MAX_TIERS:
        raise ConfigError(
            "--kv-tiers: vLLM has two tiers, the host's memory and then a disk;"
            f" {len(tiers)} were specified"
        )
    if len(tiers) > 1 and spec.kv_offload_store_threshold >= 2:
        raise ConfigError("--kv-offload-store-threshold cannot be combined with a second tier")
    kv_bytes = spec.kv_bytes_per_token or plan.profile.kv_bytes_per_token
    if kv_bytes is None:
        raise ConfigError(
            f"--kv-tiers requires the size of keys and values, which profile {spec.profile}"
            " does not specify"
        )
    if not plan.profile.engine.enable_prefix_caching:
        raise ConfigError("--kv-tiers requires prefix caching")
    if spec.prefill_pods is not None or spec.sweep is not None:
        raise ConfigError("--kv-tiers cannot be combined with --prefill-pods or --sweep")
    return tuple(tiers)


def _find_watts(spec: JobSpec) -> DeviceWatts | None:
    """Returns the power of a device, measured or as given.

    Raises:
        ConfigError: The power of the device was not measured.
    """
    watts: DeviceWatts | str | None = spec.device_watts
    if watts is None or isinstance(watts, DeviceWatts):
        return watts
    device = spec.device
    if spec.profile == DEFAULT_PROFILE:
        device = "h100"
    measured = MEASURED.get(device or "")
    if measured is None:
        name = device or f"profile {spec.profile}"
        raise ConfigError(
            f"--device-watts auto: no power measurements under load are available for {name}; "
            f"use one of {', '.join(MEASURED)}, or specify LOW-HIGH, where LOW is the power in "
            "watts with one request and HIGH is the power with many"
        )
    return measured


def _read_conversations(spec: JobSpec) -> int | None:
    conversations: int | None = spec.conversations
    if conversations is not None and spec.trace is None:
        raise UsageError("--conversations requires --trace")
    return conversations


def _make_situation(spec: JobSpec, *, has_plugin_costs: bool) -> Situation | None:
    """Returns the situation of profile auto; None where no server is comparable.

    That is the case for other profiles, for costs of plugins, and for options that no measured
    server had.
    """
    if spec.profile != AUTO or has_plugin_costs or present_options(spec, UNMEASURED_FLAGS):
        return None
    assert spec.model_config is not None and spec.device is not None
    config = find_config(spec.model_config)
    return make_situation(config, spec.device, make_engine_options(spec))


def present_options(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of the flags in `names` that the command line has."""
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _make_profile(spec: JobSpec, name: str) -> Profile:
    limits = present_options(spec, EngineLimits.__struct_fields__)
    engine_options = make_engine_options(spec)
    profile = profile_of(
        name,
        spec.device,
        spec.model_config,
        engine_options,
        limits=limits,
    )
    if name != AUTO:  # profile auto has applied the limits to each rank
        _check_no_options(spec, engine_options)
        engine = msgspec.structs.replace(profile.engine, **limits)
        profile = msgspec.structs.replace(profile, engine=engine)
    check_engine_limits(profile.engine, f"profile {spec.profile} with the flags")
    speculation = spec.speculative_config
    if speculation is not None and spec.profile != AUTO:
        speculation, _ = with_acceptance(speculation, profile.model)
        profile = msgspec.structs.replace(profile, speculation=speculation.rates)
    return profile


def make_engine_options(spec: JobSpec) -> EngineOptions:
    """Returns the options of the engine of profile auto."""
    # An environment variable sets the other one.
    names = [name for name in EngineOptions.__struct_fields__ if name != "has_tf32"]
    return EngineOptions(**{name: getattr(spec, name) for name in names})


def _check_no_options(spec: JobSpec, engine_options: EngineOptions) -> None:
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
            raise ConfigError(f"profile {spec.profile}: {flag} requires profile {AUTO}")


def _check_plan_flags(spec: JobSpec, swept: str) -> None:
    if swept and getattr(spec, swept.replace("-", "_")) is not None:
        raise UsageError(f"--{swept} cannot be combined with --sweep {swept}")
    if spec.turnaround is not None and spec.in_flight is None and swept != IN_FLIGHT:
        raise UsageError("--turnaround requires --in-flight")


def _read_goodput(spec: JobSpec) -> Limits | None:
    if spec.goodput is None:
        return None
    try:
        return read_limits(spec.goodput)
    except ValueError as error:
        raise UsageError(f"--goodput {error}") from None


def _make_disaggregation(
    spec: JobSpec, swept: str, kv_bytes: float | None
) -> Disaggregation | None:
    """Returns the split into prefill and decode pods, if any; the first of a sweep."""
    sweeps = swept == PREFILL_PODS
    kv_bytes = spec.kv_bytes_per_token or kv_bytes
    is_split = spec.prefill_pods is not None or spec.decode_pods is not None
    _check_split_flags(spec, swept, is_split=is_split)
    if not is_split and not sweeps:
        return None
    if kv_bytes is None:
        raise ConfigError(
            f"profile {spec.profile} does not specify the size of keys and values; set "
            "--kv-bytes-per-token"
        )
    prefill_pods = spec.prefill_pods or 0
    decode_pods = spec.decode_pods or 0
    if spec.sweep is not None and sweeps:
        prefill_pods = int(spec.sweep.values[0])
        decode_pods = (spec.pods or 0) - prefill_pods
    return Disaggregation(
        prefill_pods=prefill_pods,
        decode_pods=decode_pods,
        bytes_per_token=kv_bytes,
        bandwidth=spec.transfer_bandwidth or DEFAULT_BANDWIDTH,
        latency_s=spec.transfer_latency or 0.0,
    )


def _check_split_flags(spec: JobSpec, swept: str, *, is_split: bool) -> None:
    sweeps = swept == PREFILL_PODS
    flags = "--prefill-pods and --decode-pods"
    if is_split and (spec.prefill_pods is None or spec.decode_pods is None):
        raise ConfigError(f"{flags} must be used together")
    if is_split and (spec.pods is not None or sweeps or swept == PODS):
        raise ConfigError(
            f"{flags} define all pods and cannot be combined with --pods or a sweep over pods"
        )
    if spec.sweep is not None and sweeps and (spec.pods or 0) <= spec.sweep.values[-1]:
        raise ConfigError(
            f"--sweep {swept}: --pods must exceed the last value in the sweep, because the"
            " remaining pods are decode pods"
        )
    transfer_flags = [
        f"--{name.replace('_', '-')}" for name in present_options(spec, TRANSFER_FLAGS)
    ]
    if transfer_flags and not is_split and not sweeps:
        raise ConfigError(f"{', '.join(transfer_flags)} requires {flags}")


def _make_autoscaling(
    spec: JobSpec,
    swept: str,
    weight_bytes: float,
    plugin_policies: Mapping[str, AutoscalerStart],
) -> Autoscaling | None:
    times_s = {}
    if spec.autoscale_every is not None:
        times_s["every_s"] = spec.autoscale_every
    if spec.scrape_interval is not None:
        times_s["scrape_s"] = spec.scrape_interval
    if spec.autoscale is None or spec.cold_start is None:
        if spec.autoscale or spec.cold_start or times_s:
            raise ConfigError(
                "--autoscale and --cold-start must be used together; the interval flags require "
                "both of them"
            )
        return None
    if swept in (PODS, PREFILL_PODS) or spec.prefill_pods is not None:
        raise ConfigError("--autoscale cannot be combined with --prefill-pods or a sweep over pods")
    flag = "--autoscale"
    try:
        policy = read_policy(spec.autoscale, plugin_policies)
        flag = "--cold-start"
        cold_start_s = read_cold_start(spec.cold_start, weight_bytes)
    except (ValueError, ArgumentTypeError) as error:
        raise ConfigError(f"{flag} {error}") from None
    return Autoscaling(policy, cold_start_s, **times_s, policy_text=spec.autoscale)


def make_recipe(spec: JobSpec, *, rate_is_swept: bool) -> Recipe | None:
    """Returns the recipe of a synthetic load; None for a trace.

    Raises:
        UsageError: Flags contradict each other.
    """
    values = present_options(spec, SYNTHETIC_FLAGS)
    if spec.trace is not None:
        if values or rate_is_swept:
            flag = "--sweep rate"
            if not rate_is_swept:
                flag = "--" + next(iter(values)).replace("_", "-")
            source = "--trace" if spec.study is None else "--study"
            raise UsageError(
                f"{flag} describes a generated load and cannot be combined with {source}"
            )
        return None
    _check_synthetic_flags(values.keys(), values.get("arrivals"), rate_is_swept)
    if spec.sweep is not None and rate_is_swept:
        values["rate"] = spec.sweep.values[0]
    for flag, name in (("num_requests", "requests"), ("think", "think_s")):
        if flag in values:
            values[name] = values.pop(flag)
    return Recipe(**values, seed=spec.seed)


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


def json_file(spec: JobSpec) -> Path | None:
    """Returns the file of `--json`, if any."""
    return None if spec.json == STDOUT else spec.json


def check_files(spec: JobSpec) -> None:
    """Checks that the output files can be written.

    Raises:
        ConfigError: A file cannot be written.
        UsageError: A file is named twice, or does not go with a sweep.
    """
    for name in ("requests", "html"):
        if spec.sweep is not None and getattr(spec, name) is not None:
            raise UsageError(f"--{name} applies to a single run and cannot be used with --sweep")
    check_output_paths(
        [spec.requests, spec.plot, spec.html, json_file(spec)],
        [spec.trace, spec.model_config, spec.profile],
    )
    check_picture_path(spec.plot)
