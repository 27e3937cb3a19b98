"""Profiles without a recording, computed from a model's `config.json` and a device's data sheet.

Real memory bandwidth and arithmetic are fixed shares of the sheet's figures. One measured model and
device gave these shares (docs/fidelity.md, "Calibration"). `CHECKED` has the errors on other
models.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from config.declaration import ConfigError
from config.kernels import ASYNCHRONOUS, KERNELS, SYNCHRONOUS, Format, KernelSum
from config.memory import BF16_BYTES, NEWEST, memory_use, reserved, token_bytes, version_numbers
from config.profile import CostConstants, EngineLimits, FrontCosts, Profile, read_profile
from config.settings import Settings
from config.shapes import DEVICES, Device, ModelShape, Quantization, model_shape

AUTO = "auto"
"""Name of the profile that is computed from a data sheet."""

VLLM_DEVICES = frozenset(("", "auto", "cpu", "cuda", "hpu", "neuron", "tpu", "xpu"))
"""Values of `--device` of earlier versions of vLLM; none is a data sheet."""

OF_BANDWIDTH, OF_FLOPS, OF_FLOPS_ATTENTION = 0.85, 0.65, 0.45
"""Shares of the data sheet's figures that real engines reach."""
BASE_S, PER_SEQUENCE_S = 1e-3, 10e-6
FRONT = FrontCosts(front=4e-3, front_per_token=1e-6, out_per_stream=25e-6)
ALL_REDUCE_S = 12e-6
"""Latency of an all-reduce over all devices, in seconds, without transfer; a layer needs two."""
MXFP4_ROWS = 256
"""Experts in MXFP4 are padded to a multiple of so many rows."""

FEW = 16
"""Most experts of a bf16 mixture; the tables of operators lack large experts."""
LAST_SYNCHRONOUS = [0, 13]
"""Last version of vLLM whose scheduler waits for each step."""
CHECKED_KERNELS: Mapping[tuple[Format, bool], str] = {
    ("bf16", False): "dense bf16 models on H100 are within 5 % (TPOT, median of 40 runs)",
    ("fp8", False): "Llama 70B in FP8 on H100, H200 and B200 is within 4 % (TPOT) and 10 % (TTFT)",
    ("nvfp4", False): "Llama 70B in NVFP4 on B200 is within 2 % (TPOT) and 10 % (TTFT)",
    (
        "mxfp4",
        True,
    ): "gpt-oss-120b on H100 and H200 is within 4 % (TPOT) and 6 % (TTFT), on B200 9 and 16 %",
    (
        "fp8-block",
        True,
    ): "MiniMax-M2.5 on H200 is within 1 % (TPOT) and 5 % (TTFT), on B200 9 and 19 %",
}
"""Format and whether the model has experts -> how far such profiles were checked (medians of
`python -m benchmarks.cells`).
"""
CHECKED = (
    "shares of the data sheet, without constants of kernels for {what}; measured servers were 29 % slower"
    " (TPOT) and 56 % (TTFT) than such profiles, dense bf16 models on H100 10 %"
)


class StorageFormat(Struct, frozen=True):
    """Storage format of weights and cache, and precision of products."""

    weight_bytes: float
    """Bytes of one weight of the projections, with its share of scales."""
    cache_bytes: float = BF16_BYTES
    """Bytes of one number in the KV cache."""
    in_8bit: bool = False
    """Products are in 8 bits, if the device supports them."""
    kind: str = "bf16"
    kernels: Format | None = None
    """The format of the kernels that compute with these weights; None without constants of such."""


def profile_of(
    name: str,
    device: str | None = None,
    tensor_parallel_size: int = 1,
    model_config_path: str | None = None,
    vllm_version: str = "",
    limits: Mapping[str, int] = {},
) -> Profile:
    """Returns the profile of `--profile name`; the other arguments are for `auto` only.

    `limits` are the fields of `EngineLimits` that differ from vLLM's defaults.
    """
    for given, value in (("device", device), ("model-config", model_config_path)):
        if (name == AUTO) == (value is None):
            rule = (
                "must be given, too" if value is None else f"can be given with profile {AUTO} only"
            )
            raise ConfigError(f"profile {name}: {given} {rule}")
    if vllm_version and name != AUTO:
        raise ConfigError(f"profile {name}: vllm-version can be given with profile {AUTO} only")
    if device is None or model_config_path is None:
        return read_profile(name)
    named, file = f"model config {model_config_path}", Path(model_config_path)
    try:
        document = msgspec.json.decode(
            (file / "config.json" if file.is_dir() else file).read_bytes()
        )
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{named}: is not JSON: {error}") from None
    return datasheet_profile(document, device, tensor_parallel_size, named, vllm_version, limits)


def chosen_profile(settings: Settings, limits: Mapping[str, int] = {}) -> Profile:
    """Returns the profile that a server's settings select; `limits` as in `profile_of`."""
    at = settings.steps
    device = None if at.device in VLLM_DEVICES else at.device
    devices = settings.model.tensor_parallel_size
    return profile_of(at.profile, device, devices, at.model_config or None, at.vllm_version, limits)


def datasheet_profile(
    config: object,
    device_name: str,
    devices: int = 1,
    named: str = "model config",
    vllm_version: str = "",
    limits: Mapping[str, int] = {},
) -> Profile:
    """Computes the profile of a model; `config` is the content of a `config.json`. May raise
    ConfigError.

    `limits` are the fields of `EngineLimits` that differ from vLLM's defaults; the blocks follow
    them.
    """
    shape, device = model_shape(config, named), DEVICES.get(device_name.lower())
    if device is None:
        rule = (
            f"none of {', '.join(DEVICES)}; a recording of any other makes its profile (calibrate)"
        )
        raise ConfigError(f"device {device_name}: {rule}")
    if devices < 1 or shape.num_attention_heads % devices:
        rule = f"it must divide the {shape.num_attention_heads} attention heads of {named}"
        raise ConfigError(f"tensor-parallel-size {devices}: {rule}")
    stored = _storage(shape.quantization_config, named)
    engine = SYNCHRONOUS if version_numbers(vllm_version) <= LAST_SYNCHRONOUS else ASYNCHRONOUS
    if (its := _kernel_sum(shape, stored, device_name.lower(), devices)) is None:
        mixture = ", a mixture of few experts," if shape.num_experts else ""
        checked = CHECKED.format(what=f"{stored.kind}{mixture} on {device.name}")
        cost, front = _cost(shape, stored, device, devices), FRONT
    else:
        engine, checked = its.kernels.engine or engine, _checked(shape, its.weights, device)
        cost, front = its.constants(engine), replace(FRONT, front=engine.front)
        stored = replace(stored, cache_bytes=its.cache_bytes)
    if version_numbers(vllm_version) > NEWEST:
        checked += (
            f"; vLLM {vllm_version} is taken for {NEWEST[0]}.{NEWEST[1]}, the newest that is known"
        )
    tokens = limits.get("max_num_batched_tokens", device.max_num_batched_tokens)
    defaults = EngineLimits(
        num_gpu_blocks=2,
        max_num_seqs=min(device.max_num_seqs, tokens),
        max_num_batched_tokens=tokens,
        async_scheduling=engine is not SYNCHRONOUS,
    )
    batch = replace(defaults, **limits)
    blocks = _blocks(shape, stored, device, devices, batch, vllm_version, named)
    longest = min(shape.max_position_embeddings, (blocks - 1) * batch.block_size)
    shared, expert = shape.weights()
    count = shape.table_weights + shared + shape.num_experts * expert
    return Profile(
        source=f"Made of {shape.architectures[0]}'s config.json and a data sheet ({device.sheet}).",
        model=f"{shape.architectures[0]}, {count / 1e9:.1f} billion parameters, {stored.kind}",
        device=f"{device.name}, {devices}",
        devices=devices,
        weight_bytes=_held(shape, stored),
        checked=checked,
        kv_bytes_per_token=devices * token_bytes(shape, devices, stored.cache_bytes),
        engine=replace(batch, **{"num_gpu_blocks": blocks, "max_model_len": longest, **limits}),
        cost=cost,
        front=front,
    )


def _kernel_sum(
    shape: ModelShape, stored: StorageFormat, name: str, devices: int
) -> KernelSum | None:
    """Returns the sum over kernels; None for a device without constants for the products and
    experts.
    """
    kernels, weights = KERNELS.get(name), stored.kernels
    if kernels is None or weights is None:
        return None
    few = weights == "bf16" and shape.num_experts <= FEW
    if shape.num_experts and (few or weights not in kernels.experts):
        return None
    if weights != "mxfp4" and weights not in kernels.products:
        return None
    cache_bytes = stored.cache_bytes if kernels.follows_cache_scheme else BF16_BYTES
    return KernelSum(shape, weights, kernels, DEVICES[name], devices, cache_bytes)


def _checked(shape: ModelShape, kind: Format, device: Device) -> str:
    """Returns how far a sum over kernels was checked for such models, and whether on this device."""
    name, found = device.name.split()[0], CHECKED_KERNELS.get((kind, shape.num_experts > 0))
    if found is None:
        found = f"no {'mixture' if shape.num_experts else 'dense model'} in {kind} was compared with a server"
    elif name not in found:
        found += f"; none on {name} was compared"
    return f"a sum over kernels; {found}"


def _cost(shape: ModelShape, stored: StorageFormat, device: Device, devices: int) -> CostConstants:
    read_per_s = device.bandwidth * OF_BANDWIDTH * devices
    flops = (stored.in_8bit and device.flops_8bit) or device.flops
    layers, (shared, expert) = shape.num_hidden_layers, shape.weights()
    output_bytes = BF16_BYTES * shape.vocab_size * shape.hidden_size
    computed = 2 * (shared + expert * shape.num_experts_per_tok)
    sums = 2 * layers if devices > 1 else 0
    # Ring all-reduce: each device sends 2 (n - 1) / n of all bytes.
    summed_s = sums * BF16_BYTES * shape.hidden_size * 2 * (devices - 1) / devices / device.link
    cached_bytes = stored.cache_bytes * shape.cached_numbers(devices) * layers
    attention_ops = 4 * shape.num_attention_heads * shape.head_dim * layers
    return CostConstants(
        base=BASE_S + sums * ALL_REDUCE_S,
        weights=(stored.weight_bytes * shared + output_bytes) / read_per_s,
        expert_weights=stored.weight_bytes * expert * shape.num_experts / read_per_s,
        expert_share=shape.num_experts_per_tok / shape.num_experts if shape.num_experts else 0.0,
        per_token=computed / (flops * OF_FLOPS * devices) + summed_s,
        p=6.0,
        per_context=cached_bytes / (device.bandwidth * OF_BANDWIDTH),
        per_attention=attention_ops / (device.flops * OF_FLOPS_ATTENTION * devices),
        per_sequence=PER_SEQUENCE_S,
    )


def _blocks(
    shape: ModelShape,
    stored: StorageFormat,
    device: Device,
    devices: int,
    limits: EngineLimits,
    vllm_version: str,
    named: str,
) -> int:
    held, use = _held(shape, stored) / devices, memory_use(vllm_version)
    left = device.memory * use.utilization - held - reserved(shape, devices, limits, use)
    blocks = int(left / (token_bytes(shape, devices, stored.cache_bytes) * limits.block_size))
    if blocks < 2:
        raise ConfigError(
            f"{named}: weights of {held / 1e9:.0f} GB a device leave no room for a KV cache in"
            f" {use.utilization:.0%} of {device.name}'s memory, beside steps of max-num-batched-tokens"
            f" {limits.max_num_batched_tokens} and max-num-seqs {limits.max_num_seqs}; a larger"
            " tensor-parallel-size would"
        )
    return blocks


def _held(shape: ModelShape, stored: StorageFormat) -> float:
    """Returns the bytes of all weights. Of a model in MXFP4 only the experts have 4 bits."""
    shared, expert = shape.weights()
    if stored.kernels != "mxfp4" or not shape.num_experts:
        return BF16_BYTES * shape.table_weights + stored.weight_bytes * (
            shared + expert * shape.num_experts
        )
    padded = (
        -(-shape.moe_intermediate_size // MXFP4_ROWS) * MXFP4_ROWS / shape.moe_intermediate_size
    )
    experts = stored.weight_bytes * expert * padded * shape.num_experts
    return BF16_BYTES * (shape.table_weights + shared) + experts


_FP8 = StorageFormat(1, in_8bit=True, kernels="fp8")
FIXED: Mapping[str, StorageFormat] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt", "modelopt FP8"), _FP8),
    "mxfp4": StorageFormat((4 + 8 / 32) / 8, kernels="mxfp4"),
    "modelopt NVFP4": StorageFormat((4 + 8 / 16) / 8, kernels="nvfp4"),
    "bitsandbytes": StorageFormat((4 + 16 / 64) / 8),
}
"""Method and algorithm -> format, without the size of the cache."""


def _storage(given: Quantization | None, named: str) -> StorageFormat:
    """Returns the storage format.

    A group shares a scale of 2 bytes, and with AWQ and GPTQ a zero.
    """
    if given is None:
        return StorageFormat(BF16_BYTES, kernels="bf16")
    method, groups = (
        given.quant_method.lower().removesuffix("_marlin"),
        [*given.config_groups.values()],
    )
    kind, cache = f"{method} {given.quant_algo}".strip(), 1 if given.kv_cache_scheme else BF16_BYTES
    if kind in FIXED:
        its = replace(FIXED[kind], cache_bytes=cache, kind=kind)
        in_blocks = its.kernels == "fp8" and given.weight_block_size
        return replace(its, kernels="fp8-block") if in_blocks else its
    if method in ("awq", "gptq"):
        shared = (2 + given.bits / 8) / given.group_size if given.group_size > 0 else 0
        return StorageFormat(given.bits / 8 + shared, cache, kind=method)
    if method == "compressed-tensors" and groups:
        weights, seen = groups[0].weights, groups[0].input_activations
        group = weights.group_size or 0
        size = weights.num_bits / 8 + (2 / group if group > 0 else 0)
        in_8bit = seen is not None and seen.num_bits == 8
        kernels: Format | None = "fp8" if in_8bit and weights.num_bits == 8 else None
        return StorageFormat(size, cache, in_8bit, f"{method} {weights.num_bits} bits", kernels)
    known = f"{', '.join(FIXED)}, awq, gptq, compressed-tensors with its groups"
    raise ConfigError(f"{named}: quantization_config: quant_method {kind} is none of {known}")
