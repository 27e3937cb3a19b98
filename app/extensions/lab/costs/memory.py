"""Memory of a device that vLLM takes beside weights and KV cache (docs/fidelity.md, "KV blocks").

Its profiling run determines this memory. The run computes a step of `max-num-batched-tokens`, then
samples for `max-num-seqs` sequences. The larger of both peaks is kept free, beside the weights and
what is allocated outside PyTorch.
"""

import re

from msgspec import Struct

from app.core.engine.profile import EngineLimits
from app.extensions.lab.costs.devices import GIB
from app.extensions.lab.costs.shapes import ModelShape
from config.declaration import ConfigError

BF16_BYTES = 2
LAST_SORTING = [0, 16]
"""Last version of vLLM whose sampler sorts all logits."""
LAST_UNCOUNTED = [0, 20]
"""Last version of vLLM that does not count CUDA graphs."""
NEWEST = [0, 28]
"""Newest version of vLLM with a log that was compared."""


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Memory of a device that a generation of vLLM takes, from its logs of public servers."""

    utilization: float
    """Default of `gpu-memory-utilization`."""
    logit_bytes: float
    """Bytes of the sampler for each logit of `max-num-seqs` sequences."""
    outside_gib: float
    """Memory outside PyTorch, of a single device."""
    outside_parallel_gib: float
    """Memory outside PyTorch, of each of several devices, which communicate."""
    graphs_gib: float = 0.0
    """CUDA graphs."""


def version_numbers(vllm_version: str) -> list[int]:
    """Returns the first two numbers of a version, such as [0, 15]; `NEWEST` for an empty one.

    Raises:
        ConfigError: The text is not a version.
    """
    if not vllm_version:
        return NEWEST
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:[.a-z+-][\w.+-]*)?", vllm_version)
    if match is None:
        raise ConfigError(
            f"vllm-version {vllm_version!r}: must be a version of vLLM, such as 0.15.1"
        )
    return [int(number) for number in match.groups()]


def memory_use(vllm_version: str) -> MemoryUse:
    """Returns the memory that a version of vLLM takes."""
    numbers = version_numbers(vllm_version)
    if numbers <= LAST_SORTING:
        return MemoryUse(
            utilization=0.9, logit_bytes=38.3, outside_gib=0.13, outside_parallel_gib=0.55
        )
    if numbers <= LAST_UNCOUNTED:
        return MemoryUse(
            utilization=0.9, logit_bytes=14.9, outside_gib=0.25, outside_parallel_gib=2.1
        )
    return MemoryUse(
        utilization=0.92,
        logit_bytes=14.9,
        outside_gib=0.25,
        outside_parallel_gib=2.1,
        graphs_gib=0.7,
    )


def token_bytes(shape: ModelShape, devices: int, cache_bytes: float) -> float:
    """Returns the bytes of a token in the blocks of a device.

    Layers with a window share the blocks of other layers. `cache_bytes` are those of a number.
    """
    layers = max(1, round(shape.num_hidden_layers * (1 - shape.sliding_share)))
    return cache_bytes * shape.cached_numbers(devices) * layers


def reserved_bytes(shape: ModelShape, devices: int, limits: EngineLimits, use: MemoryUse) -> float:
    """Returns the bytes of each device that are neither for weights nor for the cache.

    They hold the larger peak of the profiling run (a layer or the sampler), and memory outside of
    that run.
    """
    width = shape.hidden_size
    tokens = limits.max_num_batched_tokens
    inner_width = shape.matrices * shape.intermediate_size / devices
    if shape.num_experts:
        expert_width = shape.matrices * shape.moe_intermediate_size / devices
        inner_width = shape.num_experts_per_tok * (expert_width + width)
    layer = BF16_BYTES * tokens * (inner_width + 4 * width)
    sampler = use.logit_bytes * limits.max_num_seqs * shape.vocab_size + BF16_BYTES * tokens * width
    outside_gib = use.outside_parallel_gib if devices > 1 else use.outside_gib
    return max(layer, sampler) + (outside_gib + use.graphs_gib) * GIB
