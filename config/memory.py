"""Blocks of the KV cache: the memory that vLLM's profiling run leaves (docs/fidelity.md, "KV
blocks").

The run computes a step of `max-num-batched-tokens`, then samples for `max-num-seqs` sequences. The
larger of both peaks is kept free, beside the weights and what is allocated outside PyTorch.
"""

import re

from msgspec import Struct

from config.declaration import ConfigError
from config.profile import EngineLimits
from config.shapes import GIB, ModelShape

BF16_BYTES = 2


class MemoryUse(Struct, frozen=True):
    """Memory of a device that a generation of vLLM takes, from its logs of public servers."""

    utilization: float
    """Default of `gpu-memory-utilization`."""
    logit_bytes: float
    """Bytes of the sampler for each logit of `max-num-seqs` sequences."""
    outside_gib: tuple[float, float]
    """Memory outside PyTorch, of one device and of each of several, which communicate."""
    graphs_gib: float = 0.0
    """CUDA graphs; before 0.21 they were not counted."""


SORTING = MemoryUse(0.9, 38.3, (0.13, 0.55))
"""vLLM up to 0.16, whose sampler sorts all logits."""
UNCOUNTED_GRAPHS = MemoryUse(0.9, 14.9, (0.25, 2.1))
COUNTED_GRAPHS = MemoryUse(0.92, 14.9, (0.25, 2.1), 0.7)
LAST_SORTING, LAST_UNCOUNTED = [0, 16], [0, 20]
NEWEST = [0, 28]
"""Newest version with a log that was compared."""


def version_numbers(vllm_version: str) -> list[int]:
    """Returns the first two numbers of a version, such as [0, 15]; `NEWEST` for an empty one."""
    if not vllm_version:
        return NEWEST
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:[.a-z+-][\w.+-]*)?", vllm_version)
    if found is None:
        raise ConfigError(
            f"vllm-version {vllm_version!r}: must be a version of vLLM, such as 0.15.1"
        )
    return [int(number) for number in found.groups()]


def memory_use(vllm_version: str) -> MemoryUse:
    numbers = version_numbers(vllm_version)
    if numbers <= LAST_SORTING:
        return SORTING
    return UNCOUNTED_GRAPHS if numbers <= LAST_UNCOUNTED else COUNTED_GRAPHS


def token_bytes(shape: ModelShape, devices: int, cache_bytes: float) -> float:
    """Returns the bytes of a token in the blocks of a device; layers with a window share those of
    others.
    """
    layers = max(1, round(shape.num_hidden_layers * (1 - shape.sliding_share)))
    return cache_bytes * shape.cached_numbers(devices) * layers


def reserved(shape: ModelShape, devices: int, limits: EngineLimits, use: MemoryUse) -> float:
    """Returns the bytes of each device that are neither for weights nor for the cache.

    They hold the larger peak of the profiling run (a layer or the sampler), and memory outside of
    that run.
    """
    width, tokens = shape.hidden_size, limits.max_num_batched_tokens
    inner = shape.matrices * shape.intermediate_size / devices
    if shape.num_experts:
        inner = shape.num_experts_per_tok * (
            shape.matrices * shape.moe_intermediate_size / devices + width
        )
    layer = BF16_BYTES * tokens * (inner + 4 * width)
    sampler = use.logit_bytes * limits.max_num_seqs * shape.vocab_size + BF16_BYTES * tokens * width
    return max(layer, sampler) + (use.outside_gib[devices > 1] + use.graphs_gib) * GIB
