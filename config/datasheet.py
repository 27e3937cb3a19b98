"""Profiles without a recording, computed from a model's `config.json` and a device's data sheet.

Real memory bandwidth and arithmetic are fixed shares of the sheet's figures. One measured model and device
gave these shares (docs/fidelity.md, "Calibration"). `CHECKED` has the errors on other models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from config.declaration import ConfigError, suggestion
from config.kernels import (
    ASYNCHRONOUS,
    KERNELS,
    SYNCHRONOUS,
    EngineOverhead,
    Format,
    Kernels,
    KernelSum,
    LayerShape,
    Rates,
    front_costs,
)
from config.profile import CostConstants, EngineLimits, FrontCosts, Profile, read_profile
from config.settings import Settings

AUTO = "auto"
"""Name of the profile that is computed from a data sheet."""

VLLM_DEVICES = frozenset(("", "auto", "cpu", "cuda", "hpu", "neuron", "tpu", "xpu"))
"""Values of `--device` of earlier versions of vLLM; none is a data sheet."""

OF_BANDWIDTH, OF_FLOPS, OF_FLOPS_ATTENTION = 0.85, 0.65, 0.45
"""Shares of the data sheet's figures that real engines reach."""
MEMORY_SHARE = 0.9
"""vLLM's `gpu-memory-utilization`."""
BASE_S, PER_SEQUENCE_S = 1e-3, 10e-6
FRONT = FrontCosts(front=4e-3, front_per_token=1e-6, out_per_stream=25e-6)
ALL_REDUCE_S = 12e-6
"""Latency of an all-reduce over all devices, in seconds, without transfer; a layer needs two."""
BF16_BYTES, LOGIT_BYTES = 2, 4
BLOCK_SIZE, MAX_NUM_SEQS = 16, 256

FEW = 16
"""Most experts of a bf16 mixture; the tables of operators lack large experts."""
LAST_SYNCHRONOUS = [0, 13]
"""Last version of vLLM whose scheduler waits for each step."""
LATENT = "kv_lora_rank"
"""Field of models whose cache holds latent vectors instead of keys and values."""
CHECKED_KERNELS = {
    "bf16": "a sum over kernels; dense bf16 models on H100 are within 5 % (TPOT, median of 40 runs)",
    "fp8": "a sum over kernels; Llama 70B in FP8 on H100, H200 and B200 is within 5 % (TPOT) and 12 % (TTFT)",
    "nvfp4": "a sum over kernels; Llama 70B in NVFP4 on B200 is within 2 % (TPOT) and 10 % (TTFT)",
    "mxfp4": "a sum over kernels; gpt-oss-120b is within 3 % (TPOT) and 14 % (TTFT), on B200 11 and 26 %",
    "fp8-block": "a sum over kernels; MiniMax-M2.5 on H200 and B200 is within 6 % (TPOT) and 18 % (TTFT)",
}
"""Format -> how far such a profile was checked (medians of `python -m benchmarks.cells`)."""
CHECKED = (
    "shares of the data sheet, without constants of kernels for {what}; measured servers were 29 % slower"
    " (TPOT) and 56 % (TTFT) than such profiles, dense bf16 models on H100 10 %"
)


class Device(Struct, frozen=True):
    """An accelerator. Operations are per second and dense; sheets often have twice as many, with sparsity."""

    name: str
    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    flops: float
    """Operations per second in bf16."""
    flops_8bit: float | None
    """Operations per second in fp8; None without fp8 arithmetic."""
    memory: float
    """Bytes for a process: the sheet's memory, less the share of driver and error correction."""
    link: float
    """Bytes per second to the server's other devices, in one direction: half of the sheet's figure."""
    step_tokens: int
    """vLLM's default `max-num-batched-tokens` on this device."""
    sheet: str


GIB, TERA = 1 << 30, 1e12
# Memory in TB/s, bf16 and fp8 in TFLOPS, memory in GiB, link in TB/s, tokens of a step.
_FIGURES = {
    "h100": ("H100 SXM 80 GB", 3.35, 989.4, 1978.9, 79.2, 0.45, 8192),
    "h200": ("H200 SXM 141 GB", 4.8, 989.4, 1978.9, 139.8, 0.45, 8192),
    "a100": ("A100 SXM 80 GB", 2.039, 312, None, 79.2, 0.3, 2048),
    "l40s": ("L40S 48 GB", 0.864, 362, 733, 44.4, 0.032, 2048),
    "mi300x": ("MI300X 192 GB", 5.3, 1307.4, 2614.9, 191.9, 0.448, 8192),
    "b200": ("B200 SXM 180 GB", 8, 2250, 4500, 178.4, 0.9, 8192),
}
_SHEETS = {
    "h100": "NVIDIA H100 Tensor Core GPU, data sheet: 3.35 TB/s, BF16 1,979 and FP8 3,958 TFLOPS with"
    " sparsity, NVLink 900 GB/s",
    "h200": "NVIDIA H200 Tensor Core GPU, data sheet: 4.8 TB/s, 141 GB, arithmetic and NVLink as H100 SXM",
    "a100": "NVIDIA A100 Tensor Core GPU, data sheet: 2,039 GB/s, BF16 312 TFLOPS, NVLink 600 GB/s",
    "l40s": "NVIDIA L40S, data sheet: 864 GB/s, BF16 362 and FP8 733 TFLOPS, PCIe Gen4 x16 64 GB/s",
    "mi300x": "AMD Instinct MI300X, data sheet: 5.3 TB/s, BF16 1,307.4 and FP8 2,614.9 TFLOPS, Infinity"
    " Fabric 896 GB/s",
    "b200": "NVIDIA DGX B200, data sheet (eight of them): 64 TB/s, FP8 72 PFLOPS with sparsity and BF16"
    " half of it, 1,440 GB, NVLink 14.4 TB/s",
}
DEVICES: Mapping[str, Device] = {
    key: Device(
        name, read * TERA, bf16 * TERA, fp8 and fp8 * TERA, size * GIB, link * TERA, step, _SHEETS[key]
    )
    for key, (name, read, bf16, fp8, size, link, step) in _FIGURES.items()
}


Size: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 24)]

_OF_THREE = (
    *("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2", "Gemma3"),
    *("GptOss", "Granite", "GraniteMoe", "Olmo2", "Olmoe", "Phi3", "SmolLM3"),
)
_OF_TWO = ("GPTNeoX", "Phi", "Starcoder2")
MATRICES: Mapping[str, int] = {
    f"{name}ForCausalLM": count for count, names in ((3, _OF_THREE), (2, _OF_TWO)) for name in names
}
"""Architecture -> matrices of a layer's feed-forward network, beside attention over keys and values."""


class _Scheme(Struct):
    num_bits: Annotated[int, Meta(ge=1, le=16)] = 8
    group_size: int | None = None


class _Group(Struct):
    weights: _Scheme
    input_activations: _Scheme | None = None


class Quantization(Struct):
    """Fields of `quantization_config` in use."""

    quant_method: str
    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    group_size: int = 0
    quant_algo: str = ""
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: _Scheme | None = None
    weight_block_size: list[int] | None = None


class ModelShape(Struct, kw_only=True):
    """Fields of `config.json` in use, by their names."""

    architectures: Annotated[list[str], Meta(min_length=1)]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)]
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Size
    max_position_embeddings: Size
    intermediate_size: Size
    num_key_value_heads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    head_dim: Annotated[int, Meta(ge=1, le=1024)] | None = None
    tie_word_embeddings: bool = False
    num_experts: Annotated[int, Meta(ge=0, le=4096)] | None = None
    num_local_experts: Annotated[int, Meta(ge=0, le=4096)] | None = None
    num_experts_per_tok: Annotated[int, Meta(ge=1, le=4096)] | None = None
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1
    mlp_only_layers: list[int] = []
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    layer_types: list[str] | None = None
    quantization_config: Quantization | None = None

    @property
    def heads_kv(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def experts(self) -> int:
        return self.num_experts or self.num_local_experts or 0

    @property
    def experts_a_token(self) -> int:
        return self.num_experts_per_tok or 1

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if self.head_dim is None and self.hidden_size % heads:
            rule = "must be a multiple of num_attention_heads"
            raise ValueError(f"hidden_size ({self.hidden_size}) {rule} ({heads}), or head_dim be given")
        if self.heads_kv > heads:
            raise ValueError(
                f"num_key_value_heads ({self.heads_kv}) must not be more than num_attention_heads"
            )
        if self.experts and self.experts_a_token > self.experts:
            raise ValueError(f"num_experts_per_tok ({self.experts_a_token}) is more than the experts")

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        step, dense = self.decoder_sparse_step, set(self.mlp_only_layers)
        layers = range(self.num_hidden_layers if self.experts else 0)
        return sum((layer + 1) % step == 0 for layer in layers if layer not in dense)

    @property
    def sliding_share(self) -> float:
        """Share of the layers whose attention sees `sliding_window` tokens."""
        if not self.sliding_window or self.layer_types is None:
            return 0.0
        return self.layer_types.count("sliding_attention") / max(1, len(self.layer_types))

    def for_kernels(self) -> LayerShape:
        share = self.sliding_share
        return LayerShape(
            layers=self.num_hidden_layers,
            sparse_layers=self.sparse_layers,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            heads_kv=self.heads_kv,
            head_size=self.head_size,
            inner=self.intermediate_size,
            matrices=MATRICES[self.architectures[0]],
            experts=self.experts,
            experts_a_token=self.experts_a_token,
            expert_inner=self.moe_intermediate_size or self.intermediate_size,
            vocabulary=self.vocab_size,
            window=(self.sliding_window or 0) if share else 0,
            window_share=share,
        )

    def weights(self) -> tuple[int, int]:
        """Returns two counts over all layers: weights that every token needs, and weights of one expert."""
        matrices, width, layers = MATRICES[self.architectures[0]], self.hidden_size, self.num_hidden_layers
        sparse = self.sparse_layers
        projected = self.num_attention_heads * self.head_size
        attention = width * (projected + 2 * self.heads_kv * self.head_size) + projected * width
        beside = width * self.experts + matrices * width * self.shared_expert_intermediate_size
        shared = layers * attention + (layers - sparse) * matrices * width * self.intermediate_size
        expert = sparse * matrices * width * (self.moe_intermediate_size or self.intermediate_size)
        return shared + sparse * beside, expert


def model_shape(document: object, named: str = "model config") -> ModelShape:
    """Converts the content of a `config.json`; `named` begins the message of a ConfigError."""
    given = document.get("architectures") if isinstance(document, dict) else None
    name = given[0] if isinstance(given, list) and given else None
    if isinstance(document, dict) and document.get(LATENT):
        raise ConfigError(
            f"{named}: {LATENT}: {name} has latent attention, and the cost of its kernels is not known"
        )
    if isinstance(name, str) and name not in MATRICES:  # before other fields: their names may differ
        hint = suggestion(name, names=MATRICES) or f"; known are {', '.join(MATRICES)}"
        raise ConfigError(f"{named}: architectures: {name} is none that a data sheet can tell of{hint}")
    try:
        return msgspec.convert(document, ModelShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{named}: {error}") from None


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
) -> Profile:
    """Returns the profile of `--profile name`; the other arguments are for `auto` only."""
    for given, value in (("device", device), ("model-config", model_config_path)):
        if (name == AUTO) == (value is None):
            rule = "must be given, too" if value is None else f"can be given with profile {AUTO} only"
            raise ConfigError(f"profile {name}: {given} {rule}")
    if vllm_version and name != AUTO:
        raise ConfigError(f"profile {name}: vllm-version can be given with profile {AUTO} only")
    if device is None or model_config_path is None:
        return read_profile(name)
    named, file = f"model config {model_config_path}", Path(model_config_path)
    try:
        document = msgspec.json.decode((file / "config.json" if file.is_dir() else file).read_bytes())
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{named}: is not JSON: {error}") from None
    return datasheet_profile(document, device, tensor_parallel_size, named, vllm_version)


def chosen_profile(settings: Settings) -> Profile:
    """Returns the profile that a server's settings select."""
    at = settings.steps
    device = None if at.device in VLLM_DEVICES else at.device
    devices = settings.model.tensor_parallel_size
    return profile_of(at.profile, device, devices, at.model_config or None, at.vllm_version)


def datasheet_profile(
    config: object,
    device_name: str,
    devices: int = 1,
    named: str = "model config",
    vllm_version: str = "",
) -> Profile:
    """Computes the profile of a model; `config` is the content of a `config.json`. May raise ConfigError."""
    shape, device = model_shape(config, named), DEVICES.get(device_name.lower())
    if device is None:
        hint = suggestion(device_name.lower(), names=DEVICES)
        raise ConfigError(f"device {device_name}: none of {', '.join(DEVICES)}{hint}")
    if devices < 1 or shape.num_attention_heads % devices:
        raise ConfigError(
            f"tensor-parallel-size {devices}: {named} has {shape.num_attention_heads} attention heads,"
            " which must be a multiple of it"
        )
    stored, kernels = _storage(shape.quantization_config, named), KERNELS.get(device_name.lower())
    shared, expert = shape.weights()
    tables = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    count = tables + shared + shape.experts * expert
    kind = stored.kernels
    if kernels is None or kind is None or not _tells_of(kernels, shape, kind):
        mixture = ", a mixture of few experts," if shape.experts else ""
        checked = CHECKED.format(what=f"{stored.kind}{mixture} on {device.name}")
        cost, front, asynchronous = _cost(shape, stored, device, devices), FRONT, True
    else:
        engine, checked = kernels.engine or _generation(vllm_version), CHECKED_KERNELS[kind]
        if not kernels.follows_cache_scheme:
            stored = replace(stored, cache_bytes=BF16_BYTES)
        rates = Rates(device.bandwidth, device.flops, device.flops_8bit or device.flops, device.link)
        its = KernelSum(shape.for_kernels(), kind, kernels, rates, devices, stored.cache_bytes)
        cost, front, asynchronous = its.constants(engine), front_costs(engine), engine is not SYNCHRONOUS
    limits = _limits(shape, stored, device, devices, named)
    return Profile(
        source=f"Made of {shape.architectures[0]}'s config.json and a data sheet ({device.sheet}).",
        model=f"{shape.architectures[0]}, {count / 1e9:.1f} billion parameters, {stored.kind}",
        device=f"{device.name}, {devices}",
        devices=devices,
        checked=checked,
        engine=replace(limits, async_scheduling=asynchronous),
        cost=cost,
        front=front,
    )


def _tells_of(kernels: Kernels, shape: ModelShape, weights: Format) -> bool:
    """Returns whether a device has constants for the model's products and experts."""
    few = weights == "bf16" and shape.experts <= FEW
    if shape.experts and (few or weights not in kernels.experts):
        return False
    return weights == "mxfp4" or weights in kernels.products


def _generation(vllm_version: str) -> EngineOverhead:
    """Returns what an engine of that version adds; the newest for an empty one."""
    numbers = [int(part) for part in re.findall(r"\d+", vllm_version)[:2]]
    return SYNCHRONOUS if numbers and numbers <= LAST_SYNCHRONOUS else ASYNCHRONOUS


def _cost(shape: ModelShape, stored: StorageFormat, device: Device, devices: int) -> CostConstants:
    read_per_s = device.bandwidth * OF_BANDWIDTH * devices
    flops = (stored.in_8bit and device.flops_8bit) or device.flops
    layers, (shared, expert) = shape.num_hidden_layers, shape.weights()
    output_bytes = BF16_BYTES * shape.vocab_size * shape.hidden_size
    computed = 2 * (shared + expert * shape.experts_a_token)
    sums = 2 * layers if devices > 1 else 0
    # Ring all-reduce: each device sends 2 (n - 1) / n of all bytes.
    summed_s = sums * BF16_BYTES * shape.hidden_size * 2 * (devices - 1) / devices / device.link
    cached_heads = -(-shape.heads_kv // devices)  # per device; too few heads are replicated
    cached_bytes = 2 * stored.cache_bytes * shape.head_size * cached_heads * layers
    attention_ops = 4 * shape.num_attention_heads * shape.head_size * layers
    return CostConstants(
        base=BASE_S + sums * ALL_REDUCE_S,
        weights=(stored.weight_bytes * shared + output_bytes) / read_per_s,
        expert_weights=stored.weight_bytes * expert * shape.experts / read_per_s,
        expert_share=shape.experts_a_token / shape.experts if shape.experts else 0.0,
        per_token=computed / (flops * OF_FLOPS * devices) + summed_s,
        p=6.0,
        per_context=cached_bytes / (device.bandwidth * OF_BANDWIDTH),
        per_attention=attention_ops / (device.flops * OF_FLOPS_ATTENTION * devices),
        per_sequence=PER_SEQUENCE_S,
    )


def _limits(
    shape: ModelShape, stored: StorageFormat, device: Device, devices: int, named: str
) -> EngineLimits:
    """Returns vLLM's defaults, with as many blocks as fit beside weights and activations."""
    shared, expert = shape.weights()
    tables = BF16_BYTES * shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    held = (stored.weight_bytes * (shared + expert * shape.experts) + tables) / devices
    widest = max(shape.intermediate_size, shape.moe_intermediate_size or 0)
    wide = 2 * widest / devices + 4 * shape.hidden_size
    used = device.step_tokens * BF16_BYTES * wide + MAX_NUM_SEQS * LOGIT_BYTES * shape.vocab_size
    token_bytes = 2 * stored.cache_bytes * -(-shape.heads_kv // devices) * shape.head_size
    left = device.memory * MEMORY_SHARE - held - used
    blocks = int(left / (token_bytes * shape.num_hidden_layers * BLOCK_SIZE))
    if blocks < 2:
        raise ConfigError(
            f"{named}: weights of {held / 1e9:.0f} GB a device leave no room for a KV cache in"
            f" {MEMORY_SHARE:.0%} of {device.name}'s memory; a larger tensor-parallel-size would"
        )
    return EngineLimits(
        num_gpu_blocks=blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=device.step_tokens,
        max_model_len=min(shape.max_position_embeddings, (blocks - 1) * BLOCK_SIZE),
    )


FIXED: Mapping[str, tuple[float, bool, Format | None]] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt", "modelopt FP8"), (1, True, "fp8")),
    "mxfp4": ((4 + 8 / 32) / 8, False, "mxfp4"),
    "modelopt NVFP4": ((4 + 8 / 16) / 8, False, "nvfp4"),
    "bitsandbytes": ((4 + 16 / 64) / 8, False, None),
}
"""Method and algorithm -> bytes of a weight with its share of scales; True if products are in 8 bits; format
of the kernels.
"""


def _storage(given: Quantization | None, named: str) -> StorageFormat:
    """Returns the storage format. A group shares a scale of 2 bytes, and with AWQ and GPTQ a zero."""
    if given is None:
        return StorageFormat(BF16_BYTES, kernels="bf16")
    method, groups = given.quant_method.lower().removesuffix("_marlin"), [*given.config_groups.values()]
    kind, cache = f"{method} {given.quant_algo}".strip(), 1 if given.kv_cache_scheme else BF16_BYTES
    if kind in FIXED:
        size, in_8bit, kernels = FIXED[kind]
        blocks = kernels == "fp8" and given.weight_block_size
        return StorageFormat(size, cache, in_8bit, kind, "fp8-block" if blocks else kernels)
    if method in ("awq", "gptq"):
        shared = (2 + given.bits / 8) / given.group_size if given.group_size > 0 else 0
        return StorageFormat(given.bits / 8 + shared, cache, kind=method)
    if method == "compressed-tensors" and groups:
        weights, seen = groups[0].weights, groups[0].input_activations
        group = weights.group_size or 0
        size = weights.num_bits / 8 + (2 / group if group > 0 else 0)
        in_8bit = seen is not None and seen.num_bits == 8
        kernels = "fp8" if in_8bit and weights.num_bits == 8 else None
        return StorageFormat(size, cache, in_8bit, f"{method} {weights.num_bits} bits", kernels)
    known = f"{', '.join(FIXED)}, awq, gptq, compressed-tensors with its groups"
    raise ConfigError(f"{named}: quantization_config: quant_method {kind} is none of {known}")
