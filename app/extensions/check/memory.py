"""Compares a model and its context with the memory of devices. Start reading at `check_memory`.

`app.extensions.lab.costs` computes the sizes, as for `simulate` and `plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from app.core.engine.profile import EngineLimits
from app.extensions.check.combinations import number_of
from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from app.extensions.lab.costs.cache_layout import CacheLayout, cache_layout
from app.extensions.lab.costs.devices import GIB
from app.extensions.lab.costs.engine_memory import EngineMemory, MemoryBudget
from app.extensions.lab.costs.engine_options import KV_CACHE_DTYPES, EngineOptions
from app.extensions.lab.costs.known_models import config_of, full_name
from app.extensions.lab.costs.memory import OLDEST, measured_version, memory_use_of, version_numbers
from app.extensions.lab.costs.owned_device import AMD, OwnedDevice
from app.extensions.lab.costs.shapes import CostShape, Quantization, memory_shape
from app.extensions.lab.costs.storage_formats import read_storage
from config.declaration import ConfigError
from config.sources import FlagValues
from config.vllm.model_choice import Choice

REPACKS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(
        ("awq", "gptq", "int4", "w4a16", "quantized"),
        {"quant_method": "awq", "bits": 4, "group_size": 128},
    ),
    **dict.fromkeys(
        ("int8", "w8a8", "w8a16"), {"quant_method": "gptq", "bits": 8, "group_size": 128}
    ),
    "fp8": {"quant_method": "fp8"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp8": {"quant_method": "mxfp8"},
    "bnb": {"quant_method": "bitsandbytes"},
}
"""Format in the name of a repack -> its `quantization_config`."""
MARGIN_SHARE = 0.015
"""Error of the free memory, in either direction, as a share of a device's memory."""
MARGIN_GIB = 0.4
"""Part of the margin that does not depend on the device."""
DRAFT_MARGIN_SHARE = 0.05
"""The margin with a drafter, whose weights are not counted."""
MAX_TENSOR_PARALLEL = 16
AMPERE = 8.0
TURING = 7.5
_PARAMETERS = re.compile(r"(?:^|[-_])(\d{1,4}(?:\.\d{1,3})?)([bBtT])(?=[-_.]|$)")
PLAIN_BYTES = (1.0, 2.0)
"""Least and most bytes of a parameter without a format in the name."""
NAMED_BYTES = {
    **dict.fromkeys(("bf16", "fp16"), 2.0),
    **dict.fromkeys(("fp8", "int8", "w8a8", "w8a16", "mxfp8"), 1.0),
    **dict.fromkeys(("fp4", "int4", "awq", "gptq", "4bit", "w4a16"), 0.53),
}
"""Format in a name -> bytes of a parameter."""
NEEDS_AMPERE = frozenset(("fp8", "fbgemm_fp8", "modelopt", "mxfp4", "compressed-tensors"))
NVIDIA_ONLY = frozenset(("modelopt", "modelopt_fp4", "nvfp4"))

PACKED_CACHE_BYTES = {"nvfp4": (4 + 8 / 16) / 8}
"""Value of `--kv-cache-dtype` with less than a byte -> bytes of a number."""
DECIDING = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "max-model-len",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "quantization",
)
"""Options that decide about memory."""


class Fit(Struct, frozen=True, kw_only=True):
    """The memory of a device, and the tokens of the KV cache within the margin."""

    budget: MemoryBudget
    layout: CacheLayout
    margin_bytes: float
    length: int
    """Tokens of the longest request."""
    version: list[int]

    def blocks(self, margins: float = 0.0) -> int:
        """Returns the blocks of the KV cache with a number of margins more of free memory."""
        free_bytes = self.budget.cache_bytes + margins * self.margin_bytes
        return max(0, int(free_bytes / self.layout.block_bytes) - 1)

    def tokens(self, margins: float = 0.0) -> int:
        """Returns the tokens that vLLM logs."""
        return self.layout.tokens(self.blocks(margins), self.length, self.version)

    def longest(self, margins: float = 0.0) -> int:
        """Returns the longest request that the KV cache holds."""
        return self.layout.longest(self.blocks(margins), self.length)

    @property
    def concurrency(self) -> float:
        """Requests of the full length at a time."""
        return self.layout.concurrency(self.blocks(), self.length)


def engine_options(values: FlagValues, version: str) -> EngineOptions:
    """Returns the options that decide about memory. Raises ValueError for a wrong number."""
    dtype = str(values.get("kv-cache-dtype") or "auto")
    if dtype not in KV_CACHE_DTYPES:
        dtype = "fp8"  # other formats have 8 bits or fewer
    utilization = values.get("gpu-memory-utilization")
    known_version = version if version_numbers(version) >= OLDEST else ""
    return EngineOptions(
        tensor_parallel_size=number_of(values, "tensor-parallel-size") or 1,
        pipeline_parallel_size=number_of(values, "pipeline-parallel-size") or 1,
        data_parallel_size=number_of(values, "data-parallel-size") or 1,
        enable_expert_parallel=values.get("enable-expert-parallel") == "true",
        kv_cache_dtype=dtype,
        gpu_memory_utilization=float(str(utilization)) if utilization else None,
        enforce_eager=values.get("enforce-eager") == "true",
        quantization=str(values.get("quantization") or ""),
        vllm_version=known_version,
    )


def shape_of(choice: Choice | None, model_config: str) -> CostShape | None:
    """Returns the shape of a model; None for an unknown one.

    Raises:
        ConfigError: The file `model_config` is not that of a model whose memory is known.
    """
    if model_config:
        return memory_shape(config_of(model_config), f"model config {model_config}")
    if choice is None:
        return None
    for config in _configs(choice):
        with suppress(ConfigError):
            return memory_shape(config, f"model {choice.name}")
    return None


def _configs(choice: Choice) -> Iterator[object]:
    facts = choice.facts
    with suppress(ConfigError):
        if full_name(choice.name) is not None:
            yield config_of(choice.name)
    if facts.shape and not facts.format:
        yield {"architectures": [facts.architecture], **facts.shape}
    quantization = REPACKS.get(facts.format)
    if not facts.base or quantization is None:
        return
    with suppress(ConfigError):
        if full_name(facts.base) is not None:
            base = config_of(facts.base)
            assert isinstance(base, dict)
            yield {**base, "quantization_config": quantization}
    if facts.shape:
        shape = {"architectures": [facts.architecture], **facts.shape}
        yield {**shape, "quantization_config": quantization}


def estimate(shape: CostShape, values: FlagValues, device: OwnedDevice, version: str) -> Fit:
    """Returns the memory of one device.

    Raises:
        ConfigError: The parallel sizes do not divide the model, or a format is not known.
    """
    options = engine_options(values, version)
    options.check(shape, "the model")
    measured, _ = measured_version(options.vllm_version)
    quantization = options.weight_quantization(shape.quantization_config, "the model")
    storage = read_storage(quantization, "the model")
    tokens = number_of(values, "max-num-batched-tokens") or device.max_num_batched_tokens
    sequences = number_of(values, "max-num-seqs") or min(device.max_num_seqs, tokens)
    limits = EngineLimits(
        num_gpu_blocks=2,
        block_size=min(1024, number_of(values, "block-size") or 16),
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
    )
    memory = EngineMemory(
        shape,
        storage,
        device=device,
        options=options,
        use=memory_use_of(measured, options),
    )
    share = MARGIN_SHARE
    if "speculative-config" in values or "spec-method" in values:
        share = DRAFT_MARGIN_SHARE
    length = number_of(values, "max-model-len")
    if length <= 0:
        length = shape.max_position_embeddings
    cache_bytes = options.cache_format(quantization).bytes
    number_bytes = PACKED_CACHE_BYTES.get(str(values.get("kv-cache-dtype")), cache_bytes)
    layout = cache_layout(
        shape,
        devices=options.tensor_parallel_size,
        stages=options.pipeline_parallel_size,
        number_bytes=number_bytes,
        block_size=limits.block_size,
        step_tokens=tokens,
        sharers=max(1, number_of(values, "decode-context-parallel-size")),
    )
    return Fit(
        budget=memory.budget(limits, cache_bytes),
        layout=layout,
        margin_bytes=device.memory * share + MARGIN_GIB * GIB,
        length=length,
        version=version_numbers(version),
    )


def check_memory(
    options: ReadOptions,
    choice: Choice | None,
    *,
    device: OwnedDevice,
    model_config: str,
    place: Place,
) -> Iterator[Finding]:
    """Yields whether the model fits on the device."""
    name = choice.name if choice is not None else model_config or "the model"
    if not options.unknown_options.isdisjoint(("*", *DECIDING)):
        unknown = ", ".join(f"--{name}" for name in DECIDING if name in options.unknown_options)
        message = f"memory not checked: {unknown or 'an option'} is not known"
        yield finding("M305", place, message)
        return
    shape = shape_of(choice, model_config)
    if shape is None:
        yield _by_name(name, options, device=device, place=place)
        return
    yield from _formats(options, shape, device, place)
    try:
        fit = estimate(shape, options.values, device, options.version)
    except ConfigError as error:
        yield _flaw(str(error), options, place)
        return
    yield _verdict(fit, options, shape, device=device, place=place)


def _by_name(name: str, options: ReadOptions, *, device: OwnedDevice, place: Place) -> Finding:
    """Compares the memory with weights of the number of parameters in a name.

    Only weights that cannot fit are an error: without a format in the name, they can have 8 bits.
    """
    advice = "give its config.json with --model-config"
    message = f"memory not checked: the shape of {name} is not known"
    parameters = parameters_of(name)
    if not parameters or "cpu-offload-gb" in options.values:
        return finding("M305", place, message, fix=advice)
    number_bytes = PLAIN_BYTES
    for word, size in NAMED_BYTES.items():
        if word in name.lower():
            number_bytes = (size, size)
    count = 1
    for option in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        count *= number_of(options.values, option) or 1
    smallest, largest = (parameters * size / count / GIB for size in number_bytes)
    memory = device.memory / GIB
    if smallest > memory:
        text = f"weights of at least {smallest:.0f} GiB, by the name of {name}, do not fit"
        return finding("M301", place, f"{text} on {device.name}", fix="use more devices")
    weights = (
        f"{largest:.0f} GiB" if smallest == largest else f"{smallest:.0f} to {largest:.0f} GiB"
    )
    text = f"the name stands for weights of {weights} in {memory:.0f} GiB on {device.name}"
    return finding("M305", place, f"{message}; {text}", fix=advice)


def parameters_of(name: str) -> float:
    """Returns the parameters in a name such as Qwen3-30B-A3B; 0 without a number."""
    match = _PARAMETERS.search(name.rpartition("/")[2])
    if match is None:
        return 0.0
    return float(match[1]) * (1e12 if match[2] in "tT" else 1e9)


def _flaw(text: str, options: ReadOptions, place: Place) -> Finding:
    name, _, rule = text.partition(": ")
    if name.split()[0] in ("tensor-parallel-size", "pipeline-parallel-size"):
        found = options.place_of(name.split()[0], place)
        message, _, fix = f"--{name}: {rule}".partition("; ")
        return finding("C202", found, message, fix=fix)
    if name == "enable-expert-parallel":
        message, _, fix = f"--{name}: {rule}".partition("; ")
        return finding("C202", options.place_of(name, place), message, fix=fix)
    return finding("M305", place, f"memory not checked: {text}")


def _formats(
    options: ReadOptions, shape: CostShape, device: OwnedDevice, place: Place
) -> Iterator[Finding]:
    """Yields the formats that a device cannot compute."""
    quantization: Quantization | None = shape.quantization_config
    method = str(options.values.get("quantization") or "")
    if not method and quantization is not None:
        method = quantization.quant_method
    found = options.place_of("quantization", place)
    if device.capability == AMD:
        algorithm = quantization.quant_algo if quantization is not None else ""
        if method in NVIDIA_ONLY and "FP4" in algorithm:
            message = f"{device.name} cannot compute weights in NVFP4"
            yield finding("D405", found, message, fix="use a checkpoint in FP8 or MXFP4")
        return
    if device.capability < AMPERE and method in NEEDS_AMPERE:
        message = f"{device.name} cannot compute weights in {method}"
        yield finding("D405", found, message, fix="use a checkpoint in GPTQ, or in 16 bits")
    if device.capability < TURING and method.startswith("awq"):
        message = f"{device.name} cannot compute weights in AWQ"
        yield finding("D405", found, message, fix="use a checkpoint in GPTQ, or in 16 bits")
    if device.capability < AMPERE and options.values.get("dtype") == "bfloat16":
        message = f"{device.name} does not compute in bfloat16"
        yield finding("D405", options.place_of("dtype", place), message, fix="use --dtype half")


def _verdict(
    fit: Fit, options: ReadOptions, shape: CostShape, *, device: OwnedDevice, place: Place
) -> Finding:
    budget = fit.budget
    margin = f"margin {fit.margin_bytes / GIB:.1f} GiB"
    parts = (
        f"weights {budget.weight_bytes / GIB:.1f} GiB, activation and graphs"
        f" {budget.reserved_bytes / GIB:.1f} GiB"
    )
    highest = fit.tokens(1)
    lowest = fit.tokens(-1)
    is_automatic = str(options.values.get("max-model-len", "")) == "-1"
    if not highest:
        message = f"{parts} leave no KV cache on {device.name} ({margin})"
        return finding("M301", place, message, fix=_fix(fit, options, shape, device=device))
    tokens = f"KV cache of {fit.tokens():,} tokens ({lowest:,} to {highest:,}, {margin})"
    if fit.length > fit.longest(1) and not is_automatic:
        found = options.place_of("max-model-len", place)
        message = f"{tokens} on {device.name} does not hold a request of {fit.length:,} tokens"
        return finding("M302", found, message, fix=_fix(fit, options, shape, device=device))
    text = (
        f"{tokens} on {device.name}, {fit.concurrency:.1f} requests of {fit.length:,} tokens; {parts}"
    )
    if fit.length > fit.longest(-1) and not is_automatic:
        fix = _fix(fit, options, shape, device=device)
        return finding("M303", place, f"fits by less than the margin: {text}", fix=fix)
    return finding("M304", place, f"fits: {text}")


def _fix(fit: Fit, options: ReadOptions, shape: CostShape, *, device: OwnedDevice) -> str:
    """Returns the longest context that fits, and the smallest parallel size that would."""
    advice = []
    lowest = fit.longest(-1) // 16 * 16
    if lowest >= 1024:
        advice.append(f"--max-model-len {lowest}")
    size = (number_of(options.values, "tensor-parallel-size") or 1) * 2
    while size <= MAX_TENSOR_PARALLEL:
        values = {**options.values, "tensor-parallel-size": str(size)}
        with suppress(ConfigError):
            larger = estimate(shape, values, device, options.version)
            if larger.longest(-1) >= fit.length:
                advice.append(f"--tensor-parallel-size {size}")
                break
        size *= 2
    return f"use {' or '.join(advice)}" if advice else "use a device with more memory"
