"""Memory that vLLM takes beside weights and KV cache (docs/how-timing-works.md, "KV blocks").

Its profiling run determines this memory. The run computes a step of `max-num-batched-tokens`, then
samples for `max-num-seqs` sequences. The larger of both peaks is kept free, beside the weights and
what is allocated outside PyTorch.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.profile import EngineLimits
from app.extensions.lab.costs.device import Device
from app.extensions.lab.costs.devices import GIB
from app.extensions.lab.costs.engine_options import BF16_BYTES, EngineOptions
from app.extensions.lab.costs.owned_device import OwnedDevice
from app.extensions.lab.costs.shapes import CostShape
from config.declaration import ConfigError

LAST_SORTING = [0, 16]
"""Last version of vLLM whose sampler sorts all logits."""
LAST_UNCOUNTED = [0, 19]
"""Last version of vLLM that does not count CUDA graphs, and with a lower default share."""
LAST_LONG_VIDEO = [0, 11]
"""Last version of vLLM that computes the longest video in its profiling run."""
OLDEST = [0, 11]
"""Oldest version of vLLM that is known."""
NEWEST = [0, 28]
"""Newest version of vLLM with a log that was compared."""
LAST_TRITON_EXPERTS = [0, 16]
"""Last version of vLLM whose experts in MXFP4 have the layout of Triton's kernels on Hopper."""
TENSORRT_EXPERTS = frozenset(("b200", "b300", "gb200", "gb300"))
"""Devices with TensorRT's kernels for experts in MXFP4."""
MEASURED = (11, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 28)
"""Versions 0.N of vLLM whose servers or logs were compared."""
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


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Memory of a device that a generation of vLLM takes, from its logs of public servers."""

    utilization: float
    """Default of `gpu-memory-utilization`."""
    logit_bytes: float
    """Bytes of the sampler for each logit of `max-num-seqs` sequences."""
    outside_gib: float
    """Memory outside PyTorch, of a single device."""
    outside_pair_gib: float
    """Memory outside PyTorch, of each of two devices, which communicate."""
    outside_many_gib: float
    """Memory outside PyTorch, of each of more devices, whose switch sums for them."""
    graphs_gib: float = 0.0
    """CUDA graphs of all sizes of a batch."""
    expert_copies: int = 1
    """Copies of the activation of experts."""
    encoder_gib: float = 1.75
    """The step of an encoder of images of any size."""


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


def measured_version(vllm_version: str) -> tuple[list[int], str]:
    """Returns the version whose constants are taken, and a text where this is another version.

    Raises:
        ConfigError: The text is not a version, or the version is too old.
    """
    numbers = version_numbers(vllm_version)
    if numbers < OLDEST:
        raise ConfigError(
            f"vllm-version {vllm_version}: the oldest supported version is {OLDEST[0]}.{OLDEST[1]}"
        )
    if numbers > NEWEST:
        return (
            NEWEST,
            f"vLLM {vllm_version} is taken for {NEWEST[0]}.{NEWEST[1]}, the newest known version",
        )
    _, minor = min((abs(measured - numbers[1]), measured) for measured in MEASURED)
    if minor == numbers[1]:
        return numbers, ""
    return [0, minor], f"vLLM {vllm_version} is taken for 0.{minor}, the nearest that was measured"


def memory_use(numbers: list[int]) -> MemoryUse:
    """Returns the memory that a version of vLLM takes."""
    if numbers <= LAST_SORTING:
        return MemoryUse(
            utilization=0.9,
            logit_bytes=38.3,
            outside_gib=0.13,
            outside_pair_gib=0.55,
            outside_many_gib=2.3,
            encoder_gib=5.4 if numbers <= LAST_LONG_VIDEO else 1.75,
        )
    use = MemoryUse(
        utilization=0.9,
        logit_bytes=14.9,
        outside_gib=0.25,
        outside_pair_gib=2.1,
        outside_many_gib=2.1,
        expert_copies=2,
    )
    if numbers <= LAST_UNCOUNTED:
        return use
    return replace(use, utilization=0.92, graphs_gib=0.7)


def memory_use_of(
    numbers: list[int], options: EngineOptions, device: Device | OwnedDevice
) -> MemoryUse:
    """Returns the memory that an engine with these options takes on a device."""
    use = memory_use(numbers)
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


def pads_for_marlin(device_name: str, numbers: list[int]) -> bool:
    """Returns whether experts in MXFP4 have the layout of Marlin's kernels on a device."""
    if device_name in TENSORRT_EXPERTS:
        return False
    return device_name not in ("h100", "h200") or numbers > LAST_TRITON_EXPERTS


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
