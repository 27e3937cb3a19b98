"""Profiles without a recording, computed from a model's `config.json` and a device's data sheet.

Real memory bandwidth and arithmetic are fixed shares of the sheet's figures. One measured model and
device gave these shares (docs/accuracy.md). `CHECKED` has the errors on other
models. research/README.md has the formulas.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.profile import CostConstants, EngineLimits, FrontCosts, Profile, read_profile
from app.core.profiles import AUTO
from app.extensions.costs.adjustment import Adjustment
from app.extensions.costs.adjustments import NO_ADJUSTMENT, find_adjustment, host_front_ms
from app.extensions.costs.drafters import Drafter, make_drafter
from app.extensions.costs.drafting import (
    SYNCHRONOUS_PASS_S,
    Drafting,
    independent_rows,
)
from app.extensions.costs.encoders import (
    EncoderRates,
    SheetRates,
    encoder_seconds,
)
from app.extensions.costs.engine_memory import EngineMemory
from app.extensions.costs.engine_options import (
    BF16_BYTES,
    CacheFormat,
    EngineOptions,
)
from app.extensions.costs.estimated_shapes import estimated_shape
from app.extensions.costs.graph_launches import (
    TRITON_COMPUTE,
    has_triton_sinks,
    least_layer_us,
)
from app.extensions.costs.kernel_constants import ASYNCHRONOUS, KERNELS, SYNCHRONOUS
from app.extensions.costs.kernel_sum import KernelSum
from app.extensions.costs.kernels import EngineOverhead, Format
from app.extensions.costs.memory import (
    memory_use_of,
    pads_for_marlin,
    state_bytes,
    token_bytes,
)
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import CostShape
from app.extensions.costs.sheet_overheads import MEASURED_OVERHEADS, NO_OVERHEAD
from app.extensions.costs.speculation import Speculation, waits_for_drafts, with_acceptance
from app.extensions.costs.storage import StorageFormat
from app.extensions.costs.storage_formats import read_storage
from app.extensions.costs.text_configs import has_encoder
from app.extensions.costs.version_rules import (
    MemoryUse,
    nearest_measured,
    newest_measured,
    version_of,
)
from config.declaration import ConfigError
from vllm_facts.accelerator import Device
from vllm_facts.devices import DEVICES
from vllm_facts.encoders import encoder_of
from vllm_facts.step_defaults import StepDefaults, default_sequences, step_defaults

BANDWIDTH_SHARE = 0.85
"""Share of the data sheet's memory bandwidth that real engines reach."""
FLOPS_SHARE = 0.65
"""Share of the data sheet's operations that matrix products reach."""
ATTENTION_FLOPS_SHARE = 0.45
"""Share of the data sheet's operations that attention reaches."""
BASE_S = 1e-3
PER_SEQUENCE_S = 10e-6
FRONT = FrontCosts(front=4e-3, front_per_token=1e-6, out_per_stream=25e-6)
ALL_REDUCE_S = 12e-6
"""Latency of an all-reduce over all devices, in seconds, without transfer; a layer needs two."""
DEFAULT_OPTIONS = EngineOptions()
MAX_FEW_EXPERTS = 16
"""Most experts of a bf16 mixture without constants: the tables of operators lack large experts."""
CHECKED_KERNELS: Mapping[tuple[Format, bool], str] = {
    (
        "bf16",
        False,
    ): "dense bf16 models on H100 are within 2 % (TPOT, median of 28 runs), on A100 4 % (of 5)",
    ("fp8", False): "Llama 70B in FP8 on H100, H200 and B200 is within 4 % (TPOT) and 7 % (TTFT)",
    ("nvfp4", False): "Llama 70B in NVFP4 on B200 is within 1 % (TPOT) and 6 % (TTFT)",
    (
        "mxfp4",
        True,
    ): "gpt-oss-120b on H100 and H200 is within 2 % (TPOT) and 4 % (TTFT), on B200 5 and 10 %",
    (
        "fp8-block",
        True,
    ): "MiniMax-M2.5 on H200 is within 3 % (TPOT) and 5 % (TTFT), on B200 2 and 5 %",
    ("nvfp4", True): "MiniMax-M2.5 in NVFP4 on B200 is within 4 % (TPOT) and 4 % (TTFT)",
}
"""Format and whether the model has experts -> how far such profiles were checked (medians of
`python -m benchmarks.cells`).
"""
SUM_OVER_KERNELS = "a sum over kernels;"
"""How `Profile.checked` begins where all constants are from tables of the device."""
CHECKED_LATENT: Mapping[tuple[Format, bool], str] = {
    (
        "nvfp4",
        False,
    ): "Kimi-K2.5 on B300 is within 7 % (TPOT) and 5 % (TTFT), on B200 5 and 24 %",
}
"""The same for latent attention: format, and whether a query sees chosen tokens alone."""
CHECKED = (
    "shares of the data sheet, without constants of kernels for {what}; measured servers were 29 %"
    " slower (TPOT) and 56 % (TTFT) than such profiles, dense bf16 models on H100 10 %"
)

MEASURING = (
    "for other devices, measure a server for ten minutes: record its answers at two rates, and"
    " calibrate a profile (docs/profiles.md)"
)
ENCODER_CHECKED = (
    "the encoder of images is a sum over its products; no server with images was compared"
)
DRAFTS_CHECKED = (
    "the gain of drafts was off by 5 percentage points (median of 15 runs of gpt-oss-120b with"
    " EAGLE-3 on H200)"
)


class Deployment(Struct, frozen=True, kw_only=True):
    """A model on the devices of an engine."""

    shape: CostShape
    storage: StorageFormat
    cache: CacheFormat
    device_name: str
    """Key of `DEVICES`."""
    options: EngineOptions
    use: MemoryUse
    defaults: StepDefaults
    max_num_batched_tokens: int
    """Of each rank."""

    @property
    def device(self) -> Device:
        """The data sheet of each device."""
        return DEVICES[self.device_name]

    @property
    def token_bytes(self) -> float:
        """Memory of a token's keys and values on all devices, in bytes."""
        devices = self.options.tensor_parallel_size
        return devices * token_bytes(self.shape, devices, self.cache.bytes)

    @property
    def engine(self) -> EngineOverhead:
        """The overhead of steps on a device without a measured one."""
        speculation = self.options.speculative_config
        if not self.defaults.async_scheduling or waits_for_drafts(speculation):
            return SYNCHRONOUS
        return ASYNCHRONOUS


class StepCosts(Struct, frozen=True, kw_only=True):
    """The costs of a deployment's steps, and how far such costs were checked."""

    cost: CostConstants
    front: FrontCosts
    engine: EngineOverhead
    checked: str
    encoder_rates: EncoderRates
    adjustment: Adjustment = NO_ADJUSTMENT


def profile_of(
    name: str,
    device: str | None = None,
    model_config: str | None = None,
    options: EngineOptions = DEFAULT_OPTIONS,
    limits: Mapping[str, int] = {},
) -> Profile:
    """Returns the profile of `--profile name`; the other arguments are for `auto` only.

    `model_config` is the name of a common model, a `config.json` or its folder. `limits` are the
    fields of `EngineLimits` that differ from vLLM's defaults.

    Raises:
        ConfigError: An argument or a file is wrong or missing.
    """
    for flag, value in (("device", device), ("model-config", model_config)):
        if name == AUTO and value is None:
            raise ConfigError(f"profile {name}: {flag} is also required")
        if name != AUTO and value is not None:
            raise ConfigError(f"profile {name}: {flag} requires profile {AUTO}")
    if device is None or model_config is None:
        return read_profile(name)
    return datasheet_profile(
        find_config(model_config),
        device,
        options,
        origin=f"model config {model_config}",
        limits=limits,
    )


def datasheet_profile(
    config: object,
    device_name: str,
    options: EngineOptions = DEFAULT_OPTIONS,
    *,
    origin: str = "model config",
    limits: Mapping[str, int] = {},
) -> Profile:
    """Computes the profile of a model; `config` is the content of a `config.json`.

    `limits` are the fields of `EngineLimits` that differ from vLLM's defaults, of one rank of data
    parallelism; the blocks follow them.

    Raises:
        ConfigError: The model or the device is unknown, or they do not fit; the message about the
            model begins with `origin`.
    """
    shape, estimate = estimated_shape(config, origin)
    deployment = _deployment(shape, device_name.lower(), options, limits=limits, origin=origin)
    version, version_text = nearest_measured(options.vllm_version)
    costs = _kernel_costs(deployment, version)
    if costs is None:
        costs = _sheet_costs(deployment)
    drafting = None
    if options.speculative_config is not None:
        drafting, costs = _with_drafts(deployment, costs, options.speculative_config, origin)
    texts = [
        costs.checked,
        *_adjustment_texts(costs.adjustment, version),
        f"keys and values in {deployment.cache.reason}",
        *_unmeasured(options),
    ]
    cost = _with_encoder(
        costs.cost, config, costs.encoder_rates, devices=options.tensor_parallel_size
    )
    texts += _part_texts(config, cost, estimate)
    if version_text:
        texts.append(version_text)
    device = deployment.device
    architecture = shape.architectures[0]
    weights = deployment.storage.kind
    return Profile(
        source=f"Made of {architecture}'s config.json and a data sheet ({device.sheet}).",
        model=f"{architecture}, {_parameters(shape) / 1e9:.1f} billion parameters, {weights}",
        device=f"{device.name}, {options.devices}",
        devices=options.devices,
        weight_bytes=deployment.storage.model_bytes(shape),
        checked="; ".join(texts),
        kv_bytes_per_token=deployment.token_bytes,
        engine=_engine_limits(deployment, costs, drafting, limits=limits, origin=origin),
        cost=cost,
        front=costs.front,
        speculation=None if drafting is None else drafting.drafter.speculation.rates,
    )


def _deployment(
    shape: CostShape,
    device_name: str,
    options: EngineOptions,
    *,
    limits: Mapping[str, int],
    origin: str,
) -> Deployment:
    device = DEVICES.get(device_name)
    if device is None:
        raise ConfigError(f"device {device_name}: must be one of {', '.join(DEVICES)}; {MEASURING}")
    options.check(shape, origin)
    use = memory_use_of(options, device)
    quantization = options.weight_quantization(shape.quantization_config, origin)
    storage = read_storage(quantization, origin)
    defaults = step_defaults(version_of(options.vllm_version))
    default_tokens = defaults.tokens(device, reads_whole_items=shape.reads_whole_items)
    return Deployment(
        shape=shape,
        storage=replace(storage, for_marlin=pads_for_marlin(device_name, use)),
        cache=options.cache_format(quantization),
        device_name=device_name,
        options=options,
        use=use,
        defaults=defaults,
        max_num_batched_tokens=limits.get("max_num_batched_tokens", default_tokens),
    )


def _kernel_costs(deployment: Deployment, version: int) -> StepCosts | None:
    """Returns costs as a sum over kernels; None for a device without constants for the model."""
    kernel_sum = _kernel_sum(
        deployment.shape,
        deployment.storage,
        device_name=deployment.device_name,
        options=deployment.options,
        cache=deployment.cache,
    )
    if kernel_sum is None:
        return None
    adjustment = _find_adjustment(
        kernel_sum, deployment.device_name, version=version, defaults=deployment.defaults
    )
    kernel_sum = replace(
        kernel_sum,
        adjustment=adjustment,
        independent_rows=independent_rows(deployment.options.speculative_config),
        max_rank_tokens=deployment.max_num_batched_tokens,
    )
    engine = kernel_sum.kernels.engine or deployment.engine
    return StepCosts(
        cost=kernel_sum.constants(engine),
        front=replace(
            FRONT,
            front=engine.front + adjustment.front_ms / 1000,
            front_per_token=FRONT.front_per_token + kernel_sum.delay_per_token(),
        ),
        engine=engine,
        checked=_checked(deployment.shape, kernel_sum, deployment.device),
        encoder_rates=kernel_sum,
        adjustment=adjustment,
    )


def _sheet_costs(deployment: Deployment) -> StepCosts:
    """Returns costs as shares of the data sheet.

    Raises:
        ConfigError: The cost of an option is not known.
    """
    shape = deployment.shape
    storage = deployment.storage
    device = deployment.device
    options = deployment.options
    _check_sheet_options(options, storage, device)
    mixture = ", a mixture of few experts," if shape.num_experts else ""
    checked = CHECKED.format(what=f"{storage.kind}{mixture} on {device.name}")
    overhead = MEASURED_OVERHEADS.get(device.name, NO_OVERHEAD)
    if overhead.checked:
        checked += f"; {overhead.checked}"
    cost = _sheet_cost(
        shape, storage, device, options.tensor_parallel_size, cache_bytes=deployment.cache.bytes
    )
    unused_share = (1 - cost.expert_share) ** independent_rows(options.speculative_config)
    cost = replace(cost, expert_share=1 - unused_share)
    return StepCosts(
        cost=cost,
        front=FRONT,
        engine=deployment.engine,
        checked=checked,
        encoder_rates=SheetRates(device.flops * FLOPS_SHARE, device.flops * ATTENTION_FLOPS_SHARE),
    )


def _with_drafts(
    deployment: Deployment, costs: StepCosts, speculative_config: Speculation, origin: str
) -> tuple[Drafting, StepCosts]:
    """Returns the costs of drafts, and of steps that verify drafts."""
    speculation, length_text = with_acceptance(speculative_config, origin)
    drafting = _drafting(
        make_drafter(speculation, deployment.shape, deployment.storage, origin),
        deployment.device_name,
        options=deployment.options,
        cache=deployment.cache,
        engine=costs.engine,
    )
    checked = f"{speculation.draft_count} drafts by {speculation.method}, {length_text}"
    return drafting, replace(
        costs,
        cost=drafting.added_to(costs.cost),
        checked=f"{costs.checked}; {checked}; {DRAFTS_CHECKED}",
    )


def _engine_limits(
    deployment: Deployment,
    costs: StepCosts,
    drafting: Drafting | None,
    *,
    limits: Mapping[str, int],
    origin: str,
) -> EngineLimits:
    """Returns the limits of all ranks: `limits` of one rank, vLLM's defaults, and the blocks.

    Raises:
        ConfigError: The model does not fit into the memory.
    """
    device = deployment.device
    tokens = deployment.max_num_batched_tokens
    default_limits = EngineLimits(
        num_gpu_blocks=2,
        max_num_seqs=min(default_sequences(device), tokens),
        max_num_batched_tokens=tokens,
        async_scheduling=costs.engine is not SYNCHRONOUS,
    )
    memory = EngineMemory(
        deployment.shape,
        deployment.storage,
        device=device,
        options=deployment.options,
        use=deployment.use,
        drafter=None if drafting is None else drafting.drafter,
    )
    # The blocks follow from the other limits, unless `limits` have them, too.
    filled = memory.fill_in(replace(default_limits, **limits), deployment.cache.bytes, origin)
    return _all_ranks(replace(filled, **limits), deployment.options)


def _parameters(shape: CostShape) -> float:
    shared, expert = shape.weights()
    return shape.table_weights + shared + shape.num_experts * expert


def _find_adjustment(
    kernel_sum: KernelSum, device_name: str, *, version: int, defaults: StepDefaults
) -> Adjustment:
    """Returns the correction of a sum over kernels, with the launches that limit its steps."""
    shape = kernel_sum.shape
    # Corrections were fitted to models with keys and values of each head in all layers
    # and with vLLM's choice of kernels.
    is_fitted = shape.latent is None and shape.recurrent is None
    if is_fitted and kernel_sum.has_default_experts:
        adjustment = find_adjustment(
            device_name,
            kernel_sum.weights,
            has_experts=shape.num_experts > 0,
            version=version,
        )
    else:
        adjustment = replace(NO_ADJUSTMENT, front_ms=host_front_ms(device_name, version))
    layer_us = least_layer_us(shape, device_name, defaults)
    if adjustment.step_launch_us is None and layer_us is not None:
        adjustment = replace(adjustment, step_launch_us=layer_us)
    return adjustment


def _drafting(
    drafter: Drafter,
    device_name: str,
    *,
    options: EngineOptions,
    cache: CacheFormat,
    engine: EngineOverhead,
) -> Drafting:
    """Returns the costs of a drafter on the devices of its model; `engine` runs the model."""
    device = DEVICES[device_name]
    devices = options.tensor_parallel_size
    shape = drafter.shape
    draft = None
    if shape is not None:
        kernel_sum = _kernel_sum(
            shape, drafter.storage, device_name=device_name, options=options, cache=cache
        )
        if kernel_sum is not None:
            overhead = kernel_sum.kernels.engine or ASYNCHRONOUS
            draft = kernel_sum.constants(replace(overhead, base=0.0, sequence=0.0, slowdown=0.0))
        else:
            sheet = _sheet_cost(shape, drafter.storage, device, devices, cache_bytes=cache.bytes)
            draft = replace(sheet, base=sheet.base - BASE_S, per_sequence=0.0)
    drafting = Drafting(drafter=drafter, draft=draft, device=device, devices=devices)
    if engine is SYNCHRONOUS:
        drafting = replace(drafting, pass_s=SYNCHRONOUS_PASS_S)
    return drafting


def _check_sheet_options(options: EngineOptions, storage: StorageFormat, device: Device) -> None:
    """Checks that shares of the data sheet are enough for the options.

    Raises:
        ConfigError: The cost of an option is not known.
    """
    for name, is_set in (
        ("pipeline-parallel-size", options.pipeline_parallel_size > 1),
        ("data-parallel-size", options.data_parallel_size > 1),
        ("enable-expert-parallel", options.enable_expert_parallel),
        ("enforce-eager", options.enforce_eager),
    ):
        if is_set:
            names = ", ".join(KERNELS)
            raise ConfigError(
                f"{name}: the cost is unknown because there are no kernel constants for"
                f" {storage.kind} on {device.name}; kernel constants are available for {names}"
            )


def _adjustment_texts(adjustment: Adjustment, version: int) -> Iterator[str]:
    """Yields the version whose correction is taken, if there is one."""
    if not adjustment.cells:
        return
    if adjustment.version == newest_measured():  # the sources of these cells do not state a version
        yield f"fitted to {adjustment.cells} cells of unstated versions of vLLM"
        return
    text = f"fitted to {adjustment.cells} cells of vLLM 0.{adjustment.version}"
    if version != adjustment.version:
        text += ", the nearest version with measurements"
    yield text


def _unmeasured(options: EngineOptions) -> Iterator[str]:
    """Yields texts about options that were compared with no server."""
    if options.pipeline_parallel_size > 1:
        yield "no pipeline was compared with a server"
    if options.data_parallel_size > 1:
        yield "ranks of data parallelism are taken to have equal loads"
    if options.enforce_eager:
        yield "enforce-eager is an estimate; five runs on A100 had 3 to 6 % less throughput"


def _all_ranks(limits: EngineLimits, options: EngineOptions) -> EngineLimits:
    """Returns the limits of all ranks and stages together, from the `limits` of one rank."""
    ranks = options.data_parallel_size
    return replace(
        limits,
        num_gpu_blocks=limits.num_gpu_blocks * ranks,
        max_num_seqs=limits.max_num_seqs * ranks,
        max_num_batched_tokens=limits.max_num_batched_tokens * options.parallel_batches,
    )


def _kernel_sum(
    shape: CostShape,
    storage: StorageFormat,
    *,
    device_name: str,
    options: EngineOptions,
    cache: CacheFormat,
) -> KernelSum | None:
    """Returns the sum over kernels; None for a device without constants for the model."""
    kernels = KERNELS.get(device_name)
    weights = storage.kernels
    if kernels is None or weights is None:
        return None
    if shape.num_experts:
        has_few_experts = weights == "bf16" and shape.num_experts <= MAX_FEW_EXPERTS
        if has_few_experts or weights not in kernels.experts:
            return None
    attention_weights = storage.attention_kernels
    network_weights = storage.network_kernels
    for kind in (attention_weights, network_weights):
        if kind not in kernels.products:
            return None
    if shape.latent is not None:
        latent = kernels.sparse_latent if shape.latent.top_tokens else kernels.latent
        if latent is None:
            return None
    if shape.recurrent is not None and kernels.recurrence is None:
        return None
    assert attention_weights is not None and network_weights is not None
    if has_triton_sinks(shape, device_name):
        attention = replace(kernels.attention, compute=TRITON_COMPUTE)
        kernels = replace(kernels, attention=attention)
    return KernelSum(
        shape=shape,
        weights=weights,
        attention_weights=attention_weights,
        network_weights=network_weights,
        kernels=kernels,
        device=DEVICES[device_name],
        options=options,
        cache_bytes=cache.bytes,
    )


def _part_texts(config: object, cost: CostConstants, estimate: str) -> Iterator[str]:
    """Yields texts about the parts of a model that were compared with no server."""
    if estimate:
        yield estimate
    elif has_encoder(config) and not cost.encoder:
        yield "the text model alone, without its encoder of images"
    if cost.encoder:
        yield ENCODER_CHECKED


def _with_encoder(
    cost: CostConstants, config: object, rates: EncoderRates, *, devices: int
) -> CostConstants:
    """Adds the costs of the encoder of a model, if it is known."""
    encoder = encoder_of(config)
    if encoder is None:
        return cost
    seconds = encoder_seconds(encoder, rates, devices)
    return replace(
        cost,
        encoder=seconds.step,
        per_embedding=seconds.embedding,
        per_embedding_pair=seconds.embedding_pair,
    )


def _checked(shape: CostShape, kernel_sum: KernelSum, device: Device) -> str:
    """Returns how far a sum over kernels was checked for such models and this device."""
    device_name = device.name.split()[0]
    weights = kernel_sum.weights
    comparison = CHECKED_KERNELS.get((weights, shape.num_experts > 0))
    if shape.latent is not None:
        comparison = CHECKED_LATENT.get((weights, shape.latent.top_tokens > 0))
    if shape.recurrent is not None:
        comparison = "no model with a state in its layers was compared with a server"
    if comparison is None:
        kind = "mixture" if shape.num_experts else "dense model"
        attention = "with latent attention " if shape.latent is not None else ""
        comparison = f"no {kind} {attention}in {weights} was compared with a server"
    elif device_name not in comparison:
        comparison += f"; none on {device_name} was compared"
    if kernel_sum.kernels.scaled:
        source = DEVICES[kernel_sum.kernels.scaled].name.split()[0]
        return f"a sum over kernels with {source}'s shares of the data sheet; {comparison}"
    derived = kernel_sum.kernels.derived
    if shape.num_experts:
        derived = kernel_sum.kernels.derived_experts
    if weights in derived:
        return f"a sum over kernels, without a table for {weights} on {device_name}; {comparison}"
    return f"{SUM_OVER_KERNELS} {comparison}"


def _sheet_cost(
    shape: CostShape, storage: StorageFormat, device: Device, devices: int, *, cache_bytes: int
) -> CostConstants:
    """Returns costs as shares of the data sheet's figures."""
    read_rate = device.bandwidth * BANDWIDTH_SHARE * devices
    flops = (storage.in_8bit and device.flops_8bit) or device.flops
    layers = shape.layers
    shared, expert = shape.weights()
    output_bytes = BF16_BYTES * shape.vocab_size * shape.hidden_size
    token_operations = 2 * (shared + expert * shape.num_experts_per_tok)
    all_reduces = 2 * layers if devices > 1 else 0
    # Ring all-reduce: each device sends 2 (n - 1) / n of all bytes.
    overhead = MEASURED_OVERHEADS.get(device.name, NO_OVERHEAD)
    reduced_bytes = all_reduces * BF16_BYTES * shape.hidden_size
    reduced_s = reduced_bytes * 2 * (devices - 1) / devices / device.link
    cached_bytes = shape.cached_bytes(devices, cache_bytes) * shape.attention_layers
    attention_operations = shape.pair_operations * shape.attention_layers
    state_read_bytes = 2 * state_bytes(shape, devices)
    expert_share = 0.0
    if shape.num_experts:
        expert_share = shape.num_experts_per_tok / shape.num_experts
    return CostConstants(
        base=BASE_S
        + all_reduces * ALL_REDUCE_S
        + layers * overhead.layer_s
        + shape.sparse_layers * overhead.expert_layer_s,
        weights=(storage.weight_bytes * shared + output_bytes) / read_rate,
        expert_weights=storage.weight_bytes * expert * shape.num_experts / read_rate,
        expert_share=expert_share,
        per_token=token_operations / (flops * FLOPS_SHARE * devices) + reduced_s,
        p=6.0,
        per_context=cached_bytes / (device.bandwidth * BANDWIDTH_SHARE),
        per_attention=attention_operations / (device.flops * ATTENTION_FLOPS_SHARE * devices),
        per_sequence=PER_SEQUENCE_S + overhead.sequence_s,
        per_decode=state_read_bytes / (device.bandwidth * BANDWIDTH_SHARE),
    )
