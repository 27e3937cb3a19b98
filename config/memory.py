"""Blocks of the KV cache: what vLLM's profiling run leaves of a device (docs/fidelity.md, "KV blocks").

The run computes a step of `max-num-batched-tokens`, then samples for `max-num-seqs` sequences. The larger of
both peaks is kept free, beside the weights and what is allocated outside PyTorch.
"""

import re

from msgspec import Struct

from config.declaration import ConfigError
from config.profile import EngineLimits
from config.shapes import GIB, ModelShape

BF16_BYTES = 2


class MemoryUse(Struct, frozen=True):
    """What a generation of vLLM takes of a device, from its logs of public servers."""

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


def version_numbers(vllm_version: str) -> list[int]:
    """Returns the first two numbers of a version, such as [0, 15]; none for an empty one."""
    if not vllm_version:
        return []
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:[.a-z+-][\w.+-]*)?", vllm_version)
    if found is None:
        raise ConfigError(f"vllm-version {vllm_version!r}: must be a version of vLLM, such as 0.15.1")
    return [int(number) for number in found.groups()]


def memory_use(vllm_version: str) -> MemoryUse:
    numbers = version_numbers(vllm_version)
    if not numbers or numbers > LAST_UNCOUNTED:
        return COUNTED_GRAPHS
    return SORTING if numbers <= LAST_SORTING else UNCOUNTED_GRAPHS


def token_bytes(shape: ModelShape, devices: int, cache_bytes: float) -> float:
    """Returns the bytes of a token in the blocks of a device; layers with a window share those of others."""
    layers = max(1, round(shape.num_hidden_layers * (1 - shape.sliding_share)))
    return 2 * cache_bytes * -(-shape.heads_kv // devices) * shape.head_size * layers


def reserved(shape: ModelShape, devices: int, limits: EngineLimits, use: MemoryUse) -> float:
    """Returns the bytes of each device that are neither for weights nor for the cache.

    They hold the larger peak of the profiling run, of a layer or of the sampler, and what is outside of it.
    """
    width, tokens = shape.hidden_size, limits.max_num_batched_tokens
    inner = shape.matrices * shape.intermediate_size / devices
    if shape.experts:
        inner = shape.experts_a_token * (shape.matrices * shape.expert_size / devices + width)
    layer = BF16_BYTES * tokens * (inner + 4 * width)
    sampler = use.logit_bytes * limits.max_num_seqs * shape.vocab_size + BF16_BYTES * tokens * width
    return max(layer, sampler) + (use.outside_gib[devices > 1] + use.graphs_gib) * GIB
