"""Profiles without a recording, computed from a model's `config.json` and a device's data sheet.

Real memory bandwidth and arithmetic are fixed shares of the sheet's figures. One measured model and
device gave these shares (docs/fidelity.md, "Calibration"). `CHECKED` has the errors on other
models.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from app.core.engine.profile import CostConstants, EngineLimits, FrontCosts, Profile, read_profile
from app.core.profiles import AUTO
from app.extensions.lab.costs.devices import DEVICES, Device
from app.extensions.lab.costs.kernel_constants import ASYNCHRONOUS, KERNELS, SYNCHRONOUS
from app.extensions.lab.costs.kernel_sum import KernelSum
from app.extensions.lab.costs.kernels import Format
from app.extensions.lab.costs.memory import (
    BF16_BYTES,
    NEWEST,
    memory_use,
    reserved_bytes,
    token_bytes,
    version_numbers,
)
from app.extensions.lab.costs.shapes import ModelShape, model_shape
from app.extensions.lab.costs.storage import StorageFormat, read_storage
from config.declaration import ConfigError

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
MAX_FEW_EXPERTS = 16
"""Most experts of a bf16 mixture without constants: the tables of operators lack large experts."""
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
    "shares of the data sheet, without constants of kernels for {what}; measured servers were 29 %"
    " slower (TPOT) and 56 % (TTFT) than such profiles, dense bf16 models on H100 10 %"
)


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

    Raises:
        ConfigError: An argument or a file is wrong or missing.
    """
    for flag, value in (("device", device), ("model-config", model_config_path)):
        if name == AUTO and value is None:
            raise ConfigError(f"profile {name}: {flag} must be given, too")
        if name != AUTO and value is not None:
            raise ConfigError(f"profile {name}: {flag} can be given with profile {AUTO} only")
    if vllm_version and name != AUTO:
        raise ConfigError(
            f"profile {name}: profile-vllm-version can be given with profile {AUTO} only"
        )
    if device is None or model_config_path is None:
        return read_profile(name)
    return datasheet_profile(
        _read_json(model_config_path),
        device,
        tensor_parallel_size,
        origin=f"model config {model_config_path}",
        vllm_version=vllm_version,
        limits=limits,
    )


def _read_json(model_config_path: str) -> object:
    path = Path(model_config_path)
    if path.is_dir():
        path /= "config.json"
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"model config {model_config_path}: cannot be read: {error.strerror}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"model config {model_config_path}: is not JSON: {error}") from None


def datasheet_profile(
    config: object,
    device_name: str,
    devices: int = 1,
    *,
    origin: str = "model config",
    vllm_version: str = "",
    limits: Mapping[str, int] = {},
) -> Profile:
    """Computes the profile of a model; `config` is the content of a `config.json`.

    `limits` are the fields of `EngineLimits` that differ from vLLM's defaults; the blocks follow
    them.

    Raises:
        ConfigError: The model or the device is unknown, or they do not fit; the message about the
            model begins with `origin`.
    """
    shape = model_shape(config, origin)
    device = DEVICES.get(device_name.lower())
    if device is None:
        raise ConfigError(
            f"device {device_name}: must be one of {', '.join(DEVICES)}; for other devices"
            " calibrate makes a profile of a recording"
        )
    if devices < 1 or shape.num_attention_heads % devices:
        raise ConfigError(
            f"tensor-parallel-size {devices}: it must divide the {shape.num_attention_heads}"
            f" attention heads of {origin}"
        )
    storage = read_storage(shape.quantization_config, origin)
    engine = ASYNCHRONOUS
    if version_numbers(vllm_version) <= LAST_SYNCHRONOUS:
        engine = SYNCHRONOUS
    kernel_sum = _kernel_sum(shape, storage, device_name.lower(), devices)
    front = FRONT
    if kernel_sum is None:
        mixture = ", a mixture of few experts," if shape.num_experts else ""
        checked = CHECKED.format(what=f"{storage.kind}{mixture} on {device.name}")
        cost = _sheet_cost(shape, storage, device, devices)
    else:
        engine = kernel_sum.kernels.engine or engine
        checked = _checked(shape, kernel_sum.weights, device)
        cost = kernel_sum.constants(engine)
        front = replace(FRONT, front=engine.front)
        storage = replace(storage, cache_bytes=kernel_sum.cache_bytes)
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
    memory = _Memory(shape, storage, device, devices)
    engine_limits = memory.fill_in(replace(defaults, **limits), vllm_version, origin)
    architecture = shape.architectures[0]
    shared, expert = shape.weights()
    parameters = shape.table_weights + shared + shape.num_experts * expert
    return Profile(
        source=f"Made of {architecture}'s config.json and a data sheet ({device.sheet}).",
        model=f"{architecture}, {parameters / 1e9:.1f} billion parameters, {storage.kind}",
        device=f"{device.name}, {devices}",
        devices=devices,
        weight_bytes=storage.model_bytes(shape),
        checked=checked,
        kv_bytes_per_token=devices * token_bytes(shape, devices, storage.cache_bytes),
        engine=replace(engine_limits, **limits),
        cost=cost,
        front=front,
    )


def _kernel_sum(
    shape: ModelShape, storage: StorageFormat, device_name: str, devices: int
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
    if weights != "mxfp4" and weights not in kernels.products:
        return None
    return KernelSum(
        shape=shape,
        weights=weights,
        kernels=kernels,
        device=DEVICES[device_name],
        devices=devices,
        cache_bytes=storage.cache_bytes if kernels.follows_cache_scheme else BF16_BYTES,
    )


def _checked(shape: ModelShape, weights: Format, device: Device) -> str:
    """Returns how far a sum over kernels was checked for such models and this device."""
    device_name = device.name.split()[0]
    comparison = CHECKED_KERNELS.get((weights, shape.num_experts > 0))
    if comparison is None:
        kind = "mixture" if shape.num_experts else "dense model"
        comparison = f"no {kind} in {weights} was compared with a server"
    elif device_name not in comparison:
        comparison += f"; none on {device_name} was compared"
    return f"a sum over kernels; {comparison}"


def _sheet_cost(
    shape: ModelShape, storage: StorageFormat, device: Device, devices: int
) -> CostConstants:
    """Returns costs as shares of the data sheet's figures."""
    read_rate = device.bandwidth * BANDWIDTH_SHARE * devices
    flops = (storage.in_8bit and device.flops_8bit) or device.flops
    layers = shape.num_hidden_layers
    shared, expert = shape.weights()
    output_bytes = BF16_BYTES * shape.vocab_size * shape.hidden_size
    token_operations = 2 * (shared + expert * shape.num_experts_per_tok)
    all_reduces = 2 * layers if devices > 1 else 0
    # Ring all-reduce: each device sends 2 (n - 1) / n of all bytes.
    reduced_bytes = all_reduces * BF16_BYTES * shape.hidden_size
    reduced_s = reduced_bytes * 2 * (devices - 1) / devices / device.link
    cached_bytes = storage.cache_bytes * shape.cached_numbers(devices) * layers
    attention_operations = 4 * shape.num_attention_heads * shape.head_dim * layers
    expert_share = 0.0
    if shape.num_experts:
        expert_share = shape.num_experts_per_tok / shape.num_experts
    return CostConstants(
        base=BASE_S + all_reduces * ALL_REDUCE_S,
        weights=(storage.weight_bytes * shared + output_bytes) / read_rate,
        expert_weights=storage.weight_bytes * expert * shape.num_experts / read_rate,
        expert_share=expert_share,
        per_token=token_operations / (flops * FLOPS_SHARE * devices) + reduced_s,
        p=6.0,
        per_context=cached_bytes / (device.bandwidth * BANDWIDTH_SHARE),
        per_attention=attention_operations / (device.flops * ATTENTION_FLOPS_SHARE * devices),
        per_sequence=PER_SEQUENCE_S,
    )


class _Memory:
    """The memory of a model's devices."""

    def __init__(
        self, shape: ModelShape, storage: StorageFormat, device: Device, devices: int
    ) -> None:
        self._shape = shape
        self._storage = storage
        self._device = device
        self._devices = devices

    def fill_in(self, limits: EngineLimits, vllm_version: str, origin: str) -> EngineLimits:
        """Returns the limits with the blocks of the KV cache, and the most tokens of a request."""
        shape = self._shape
        device = self._device
        use = memory_use(vllm_version)
        weight_bytes = self._storage.model_bytes(shape) / self._devices
        free_bytes = (
            device.memory * use.utilization
            - weight_bytes
            - reserved_bytes(shape, self._devices, limits, use)
        )
        cached_bytes = token_bytes(shape, self._devices, self._storage.cache_bytes)
        blocks = int(free_bytes / (cached_bytes * limits.block_size))
        if blocks < 2:
            raise ConfigError(
                f"{origin}: weights of {weight_bytes / 1e9:.0f} GB a device leave no room for a KV"
                f" cache in {use.utilization:.0%} of {device.name}'s memory, beside steps of"
                f" max-num-batched-tokens {limits.max_num_batched_tokens} and max-num-seqs"
                f" {limits.max_num_seqs}; a larger tensor-parallel-size would"
            )
        cache_tokens = (blocks - 1) * limits.block_size
        return replace(
            limits,
            num_gpu_blocks=blocks,
            max_model_len=min(shape.max_position_embeddings, cache_tokens),
        )
