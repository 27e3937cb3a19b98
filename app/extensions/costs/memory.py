"""Memory that vLLM takes beside weights and KV cache (docs/how-timing-works.md, "KV blocks").

Its profiling run determines this memory. The run computes a step of `max-num-batched-tokens`, then
samples for `max-num-seqs` sequences. The larger of both peaks is kept free, beside the weights and
what is allocated outside PyTorch.
"""

from msgspec.structs import replace

from app.core.engine.profile import EngineLimits
from app.extensions.costs.engine_options import BF16_BYTES, EngineOptions
from app.extensions.costs.shapes import CostShape
from app.extensions.costs.version_rules import MemoryUse, rules_of
from vllm_facts.accelerator import GIB, DeviceMemory
from vllm_facts.devices import GENERATIONS

TENSORRT_GENERATION = "blackwell"
"""Generation with TensorRT's kernels for experts in MXFP4."""
HOPPER = "hopper"
BUS_GIB = 0.55
"""Memory outside PyTorch, of each of several devices without a switch."""
UNIFIED_GIB = 0.9
"""The same of a device that shares the memory of the host, besides."""
GRAPH_BASE = 0.3
"""Share of the CUDA graphs' memory that does not depend on the sizes of a batch."""
LARGEST_GRAPH = 512
"""Sequences of the largest CUDA graph; vLLM computes graphs up to twice `max-num-seqs`."""
ENCODER_SHARED = 0.37
"""Share of an encoder's step that tensor parallel devices divide."""


def memory_use_of(options: EngineOptions, device: DeviceMemory) -> MemoryUse:
    """Returns the memory that an engine with these options takes on a device.

    Raises:
        ConfigError: The version is unknown.
    """
    use = rules_of(options.vllm_version, MemoryUse)
    if not device.has_switch:
        use = replace(use, outside_pair_gib=BUS_GIB, outside_many_gib=BUS_GIB)
    if device.is_unified:
        use = replace(
            use,
            outside_gib=use.outside_gib + UNIFIED_GIB,
            outside_pair_gib=use.outside_pair_gib + UNIFIED_GIB,
            outside_many_gib=use.outside_many_gib + UNIFIED_GIB,
        )
    if options.gpu_memory_utilization is not None:
        use = replace(use, utilization=options.gpu_memory_utilization)
    if options.enforce_eager:
        use = replace(use, graphs_gib=0.0)
    return use


def pads_for_marlin(device_name: str, use: MemoryUse) -> bool:
    """Returns whether experts in MXFP4 have the layout of Marlin's kernels on a device."""
    generation = GENERATIONS.get(device_name)
    if generation == TENSORRT_GENERATION:
        return False
    return generation != HOPPER or use.has_marlin_on_hopper


def token_bytes(shape: CostShape, devices: int, cache_bytes: float, stages: int = 1) -> float:
    """Returns the bytes of a token in the blocks of a device.

    Layers with a window share the blocks of other layers. A number has `cache_bytes`, and a device
    has the layers of one of `stages` stages.
    """
    layers = max(1, round(shape.attention_layers / stages * (1 - shape.sliding_share)))
    return shape.cached_bytes(devices, cache_bytes) * layers


def state_bytes(shape: CostShape, sharers: int) -> float:
    """Returns the bytes of a sequence's states on one of `sharers` devices."""
    if shape.recurrent is None:
        return 0.0
    return shape.recurrent_layers * shape.recurrent.sequence_bytes / sharers


def reserved_bytes(shape: CostShape, devices: int, limits: EngineLimits, use: MemoryUse) -> float:
    """Returns the bytes of each device that are neither for weights nor for the cache.

    They hold the largest peak of the profiling run (a layer, the sampler, or the encoder of
    images), and memory outside of that run.
    """
    width = shape.hidden_size
    tokens = limits.max_num_batched_tokens
    inner_width = shape.matrices * shape.intermediate_size / devices
    if shape.num_experts:
        expert_width = shape.matrices * shape.moe_intermediate_size / devices
        routed_width = shape.moe_latent_size or width
        inner_width = shape.num_experts_per_tok * (expert_width + routed_width) * use.expert_copies
    layer = BF16_BYTES * tokens * (inner_width + 4 * width)
    sampler = use.logit_bytes * limits.max_num_seqs * shape.vocab_size + BF16_BYTES * tokens * width
    encoder = 0.0
    if shape.has_any_size_encoder:
        encoder = use.encoder_gib * GIB * (1 - ENCODER_SHARED + ENCODER_SHARED / devices)
    outside_gib = use.outside_gib
    if devices > 1:
        outside_gib = use.outside_pair_gib if devices == 2 else use.outside_many_gib
    sizes = min(1.0, 2 * limits.max_num_seqs / LARGEST_GRAPH)
    graphs_gib = use.graphs_gib * (GRAPH_BASE + (1 - GRAPH_BASE) * sizes)
    return max(layer, sampler, encoder) + (outside_gib + graphs_gib) * GIB
