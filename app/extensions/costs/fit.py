"""The memory of a device with a model, and the tokens it holds. Start reading at `estimate`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct, structs

from app.core.engine.profile import EngineLimits
from app.extensions.costs.cache_layout import CacheLayout, CacheUse, cache_layout
from app.extensions.costs.engine_memory import EngineMemory, MemoryBudget
from app.extensions.costs.engine_options import (
    AUTO_DTYPE,
    FP8_BYTES,
    KV_CACHE_DTYPES,
    EngineOptions,
)
from app.extensions.costs.memory import memory_use_of
from app.extensions.costs.repacks import configs_of, find_config
from app.extensions.costs.shapes import CostShape, Quantization, memory_shape
from app.extensions.costs.speculation import MTP, read_speculation
from app.extensions.costs.step_limits import StepLimits, is_text_only, step_limits
from app.extensions.costs.storage import StorageFormat
from app.extensions.costs.storage_formats import read_storage
from app.extensions.costs.version_rules import (
    CacheRules,
    MemoryUse,
    rules_of,
    version_of,
)
from config.declaration import ConfigError
from config.sources import FlagValues
from vllm_facts.accelerator import GIB, OTHER_MAKER, DeviceMemory
from vllm_facts.known_models import config_of, full_name, known_models
from vllm_facts.model_choice import Choice
from vllm_facts.option_numbers import number_of, positive_number
from vllm_facts.step_defaults import default_sequences, step_defaults
from vllm_facts.version import FIRST, NEWEST, parse_version

MARGIN_SHARE = 0.015
"""Error of the free memory, in either direction, as a share of a device's memory."""
MARGIN_GIB = 1.0
"""Part of the margin that does not depend on the device.

A first start, which compiles the model, has about 1 GiB less than a later one in public logs.
"""
PARAMETER_ROUNDING = 0.5e9
"""Error of a published number of parameters in whole billions."""
UNCOMPARED = ("GlmMoeDsa", "MiniMaxM3")
"""Begin of architectures with a sparse cache that no compared log has."""
UNCOMPARED_SHARE = 0.4
"""Their margin, as a share of the KV cache, besides."""
DRAFT_MARGIN_SHARE = 0.05
"""The margin with a drafter that is not a module of the model, whose weights are not counted."""
DRAFT_LAYERS = {MTP: 1, "eagle": 1, "eagle3": 1, "dflash": 5, "ngram": 0, "suffix": 0}
"""Method of speculation -> layers of the drafter, of the model's width."""
FP8_KERNELS = ("fp8", "fp8-block")
ADA = 8.9
"""Compute capability from which on devices compute in 8-bit floats."""
MARLIN_SCALE_BYTES = 2 / 128
"""Bytes of scales for each weight in FP8 on devices that do not compute in 8-bit floats."""
PACKED_CACHE_BYTES = {"nvfp4": (4 + 8 / 16) / 8}
"""Value of `--kv-cache-dtype` with less than a byte -> bytes of a number."""


class Fit(Struct, frozen=True, kw_only=True):
    """The memory of a device, and the tokens of the KV cache within the margin."""

    budget: MemoryBudget
    layout: CacheLayout
    margin_bytes: float
    length: int
    """Tokens of the longest request."""
    cache_rules: CacheRules

    def blocks(self, margins: float = 0.0) -> int:
        """Returns the blocks of the KV cache with a number of margins more of free memory."""
        free_bytes = self.budget.cache_bytes + margins * self.margin_bytes
        return max(0, int(free_bytes / self.layout.block_bytes) - 1)

    def tokens(self, margins: float = 0.0) -> int:
        """Returns the tokens that vLLM logs."""
        return self.layout.tokens(self.blocks(margins), self.length, self.cache_rules)

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
    return EngineOptions(
        tensor_parallel_size=number_of(values, "tensor-parallel-size") or 1,
        pipeline_parallel_size=number_of(values, "pipeline-parallel-size") or 1,
        data_parallel_size=number_of(values, "data-parallel-size") or 1,
        enable_expert_parallel=values.get("enable-expert-parallel") == "true",
        kv_cache_dtype=dtype,
        gpu_memory_utilization=float(str(utilization)) if utilization else None,
        enforce_eager=values.get("enforce-eager") == "true",
        quantization=re.sub("^modelopt_.*", "modelopt", str(values.get("quantization") or "")),
        vllm_version=known_version(version),
    )


def known_version(version: str) -> str:
    """Returns the version whose rules apply: that of older and newer ones is the nearest."""
    if not version:
        return ""
    number = parse_version(version)
    first, newest = parse_version(FIRST), parse_version(NEWEST)
    return min(max(number, first), newest).release


def shape_of(choice: Choice | None, model_config: str) -> CostShape | None:
    """Returns the shape of a model; None for an unknown one.

    Raises:
        ConfigError: The file `model_config` is not that of a model whose memory is known.
    """
    if model_config:
        return memory_shape(find_config(model_config), f"model config {model_config}")
    if choice is None:
        return None
    for config in _configs(choice):
        with suppress(ConfigError):
            return memory_shape(config, f"model {choice.name}")
    return None


def _configs(choice: Choice) -> Iterator[object]:
    known = known_models()
    if os.path.isdir(choice.name):
        with suppress(ConfigError):
            yield config_of(choice.name)
    with suppress(ConfigError):
        name = full_name(choice.name)
        if name is not None:
            yield known[name]
    yield from configs_of(choice.name, choice.facts, known)


def estimate(shape: CostShape, values: FlagValues, device: DeviceMemory, version: str) -> Fit:
    """Returns the memory of one device.

    Raises:
        ConfigError: The parallel sizes do not divide the model, or a format is not known.
    """
    options = engine_options(values, version)
    options.check(shape, "the model")
    quantization = options.weight_quantization(shape.quantization_config, "the model")
    storage = _storage(quantization, device)
    cache_rules = rules_of(options.vllm_version, CacheRules)
    defaults = step_defaults(version_of(options.vllm_version))
    steps = step_limits(values, shape, device, defaults)
    if values.get("language-model-only") == "true" and shape.has_any_size_encoder:
        shape = structs.replace(shape, parameters=0.0)  # of the language model alone
    cache_bytes = _cache_bytes(options, values, quantization)
    drafter = module_drafter(values)
    draft_layers, drafts = drafter or (0, 0)
    keeps_ends = values.get("enable-prefix-caching") == "true" and cache_rules.keeps_state_ends
    cache_use = CacheUse(
        devices=options.tensor_parallel_size,
        stages=options.pipeline_parallel_size,
        number_bytes=PACKED_CACHE_BYTES.get(str(values.get("kv-cache-dtype")), cache_bytes),
        block_size=_block_size(values),
        step_tokens=steps.in_flight,
        state_blocks=(2 if keeps_ends else 1) + drafts,
        sharers=positive_number(values, "decode-context-parallel-size", 1),
        draft_layers=draft_layers,
    )
    packs_experts = storage.kernels == "nvfp4" and shape.num_experts > 0
    use = _memory_use(options, values, device, packs_experts=packs_experts)
    memory = EngineMemory(shape, storage, device=device, options=options, use=use)
    budget = memory.budget(_engine_limits(values, device, steps), cache_bytes)
    return Fit(
        budget=_with_drafter(budget, budget.weight_bytes * draft_layers / shape.num_hidden_layers),
        layout=cache_layout(shape, cache_use),
        margin_bytes=_margin_bytes(
            shape,
            device,
            rounding_bytes=PARAMETER_ROUNDING * storage.weight_bytes / options.devices,
            cache_bytes=budget.cache_bytes,
            has_known_drafter=drafter is not None,
        ),
        length=positive_number(values, "max-model-len", shape.max_position_embeddings),
        cache_rules=cache_rules,
    )


def _block_size(values: FlagValues) -> int:
    return min(1024, positive_number(values, "block-size", 16))


def _engine_limits(values: FlagValues, device: DeviceMemory, steps: StepLimits) -> EngineLimits:
    """Returns the limits of a step, which decide about the memory of activations."""
    sequences = min(default_sequences(device), steps.tokens)
    return EngineLimits(
        num_gpu_blocks=2,  # the least valid number: the memory left for blocks is not known yet
        block_size=_block_size(values),
        max_num_seqs=positive_number(values, "max-num-seqs", sequences),
        max_num_batched_tokens=steps.tokens,
    )


def _with_drafter(budget: MemoryBudget, draft_bytes: float) -> MemoryBudget:
    """Returns a budget where the weights of a drafter take memory from the cache."""
    return structs.replace(
        budget,
        weight_bytes=budget.weight_bytes + draft_bytes,
        cache_bytes=budget.cache_bytes - draft_bytes,
    )


def _storage(quantization: Quantization | None, device: DeviceMemory) -> StorageFormat:
    """Returns the format of the weights on a device."""
    storage = read_storage(quantization, "the model")
    if storage.kernels in FP8_KERNELS and OTHER_MAKER < device.capability < ADA:
        return structs.replace(storage, weight_bytes=storage.weight_bytes + MARLIN_SCALE_BYTES)
    return storage


def _memory_use(
    options: EngineOptions, values: FlagValues, device: DeviceMemory, *, packs_experts: bool
) -> MemoryUse:
    """Returns what an engine uses besides weights and cache."""
    use = memory_use_of(options, device)
    if is_text_only(values):
        use = structs.replace(use, encoder_gib=0.0)
    if packs_experts:
        use = _with_outside(use, use.packed_experts_gib)
    return use


def _margin_bytes(
    shape: CostShape,
    device: DeviceMemory,
    *,
    rounding_bytes: float,
    cache_bytes: float,
    has_known_drafter: bool,
) -> float:
    """Returns the error of the free memory, in either direction.

    `rounding_bytes` are for a number of parameters in whole billions.
    """
    share = MARGIN_SHARE if has_known_drafter else DRAFT_MARGIN_SHARE
    margin_bytes = device.memory * share + MARGIN_GIB * GIB
    if shape.parameters and shape.parameters.is_integer():
        margin_bytes += rounding_bytes
    if shape.architectures[0].startswith(UNCOMPARED):
        margin_bytes += UNCOMPARED_SHARE * max(0.0, cache_bytes)
    return margin_bytes


def _with_outside(use: MemoryUse, more_gib: float) -> MemoryUse:
    """Returns a use of memory with more outside of the profiling run."""
    return structs.replace(
        use,
        outside_gib=use.outside_gib + more_gib,
        outside_pair_gib=use.outside_pair_gib + more_gib,
        outside_many_gib=use.outside_many_gib + more_gib,
    )


def _cache_bytes(
    options: EngineOptions, values: FlagValues, quantization: Quantization | None
) -> int:
    """Returns the bytes of a number in the KV cache.

    Checkpoints in NVFP4 that ModelOpt made have a cache in 8 bits. Their names do not show it.
    """
    is_made_so = str(values.get("quantization") or "").startswith("modelopt")
    is_4bit = quantization is not None and quantization.quant_algo == "NVFP4"
    if is_made_so and is_4bit and options.kv_cache_dtype == AUTO_DTYPE:
        return FP8_BYTES
    return options.cache_format(quantization).bytes


def module_drafter(values: FlagValues) -> tuple[int, int] | None:
    """Returns the layers and the drafts of a drafter; None for one of an unknown size."""
    if values.get("spec-method"):
        return None
    text = str(values.get("speculative-config") or "")
    if not text:
        return 0, 0
    with suppress(ValueError, ConfigError):
        speculation = read_speculation(text)
        if speculation is None:
            return 0, 0
        layers = DRAFT_LAYERS.get(speculation.method)
        if layers is not None:
            return layers, speculation.draft_count
    return None
