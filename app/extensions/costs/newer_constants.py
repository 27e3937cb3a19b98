"""Constants of kernels of devices that were added with tables of operators of vLLM 0.24.

`python research/fit_device.py DEVICE` fitted them, unless a comment has another source.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from app.extensions.costs.kernels import (
    AllReduce,
    Attention,
    EngineOverhead,
    Experts,
    Format,
    Kernels,
    Product,
)

FUSED = EngineOverhead(
    base=0.16e-3,
    sequence=12e-6,
    front=18e-3,
    layer_us=5.2,
    casts=0,
    expert_casts=2,
    slowdown=0.09,
)
"""Blackwell's servers, which fuse casts with norms and attention in dense models alone.

The time of a sequence is the host's, and that of other devices.
"""
BLACKWELL_RING_US = (11.2, 16.3, 26.1)
BLACKWELL_RING = (1.8, 2.3, 2.5)
ROUTED_NS = 7.5
"""For each expert of a token: 90 ns a token at measured servers with Hopper, less 30 ns that the
router of MiniMax takes in float32.
"""
BLACKWELL = {"prefill": 1.2, "routed_ns": 11.25}
"""Prefill with experts at measured servers with B200, beside tables with even loads."""
DRAWN = {"routed_ns": ROUTED_NS}
"""The same beside tables with drawn loads, which are as uneven as loads of servers."""
B200_BLOCKS = Product(t0_us=10.4, memory=0.66, compute=0.37, p=8, tile=0.64, wave=0.84)
"""Newer tables time products of fp8 in blocks with their launch: only the share of arithmetic is
known, and is that of B200 times the ratio of the two devices in these tables.
"""
B200_BLOCK_EXPERTS = Experts(t0_us=48, memory=0.94, compute=0.35, p=1.9, **BLACKWELL)
"""B200's, from measured servers without their router; the tables of the devices differ from B200's
by 5 % at most.
"""
B200_MXFP4_EXPERTS = Experts(
    t0_us=23.8, memory=1.0, compute=0.59, p=1.06, prefill=0.5, routed_ns=11.25
)
"""Prompts have activations in MXFP8 (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8), which compute at twice
the rate of the table's 16 bits.
"""
TRITON_EXPERTS: Mapping[Format, Experts] = {
    "fp8-block": Experts(t0_us=37.8, memory=0.638, compute=0.135, p=1, token_ns=65.9, **DRAWN),
}
"""B200's, from the tables of vLLM 0.19."""
UNTUNED_FP8_US = 140
"""Fixed time of experts in FP8 on Blackwell's workstation cards, for which vLLM has no tuned tiles:
one request to GLM-4.6 on eight cards. The table has 30 us.
"""
B300 = Kernels(
    multiprocessors=148,
    products={
        "bf16": Product(t0_us=3.1, memory=0.847, compute=0.826, p=3.0, tile=0.86, wave=0.25),
        "fp8": Product(t0_us=5.65, memory=1.0, compute=0.485, p=1.75, tile=0.56, wave=0.67),
        "fp8-block": replace(B200_BLOCKS, compute=0.406),
        "nvfp4": Product(t0_us=6.6, memory=1.0, compute=0.557, p=1.29, tile=0.64, wave=0.68),
    },
    experts={
        "bf16": Experts(t0_us=16.5, memory=0.922, compute=0.502, p=1.22, token_ns=7.03, **DRAWN),
        "fp8": Experts(t0_us=18.1, memory=0.859, compute=0.561, p=1.42, token_ns=13.7, **DRAWN),
        "fp8-block": B200_BLOCK_EXPERTS,
        "nvfp4": Experts(t0_us=15.8, memory=0.794, compute=0.762, p=1, token_ns=8.8, **DRAWN),
        "mxfp4": B200_MXFP4_EXPERTS,
        "int4": Experts(t0_us=45.5, memory=0.57, compute=0.142, p=1, token_ns=105, **DRAWN),
    },
    triton_experts=TRITON_EXPERTS,
    attention=Attention(
        decode_us=8.9,
        memory=0.906,
        fp8_rate=6.9e12,
        sequence_us=0.0146,
        compute=0.51,
        prefill_us=22,
    ),
    all_reduce=AllReduce(once_us=(7.0, 7.3, 8.0), ring_us=BLACKWELL_RING_US, ring=BLACKWELL_RING),
    engine=FUSED,
)
GB200 = Kernels(
    multiprocessors=152,
    products={
        "bf16": Product(t0_us=3.4, memory=0.863, compute=0.734, p=3.1, tile=0.97, wave=0.2),
        "fp8": Product(t0_us=6.2, memory=1.0, compute=0.46, p=1.7, tile=0.53, wave=0.73),
        "fp8-block": replace(B200_BLOCKS, compute=0.357),
        "nvfp4": Product(t0_us=7.6, memory=1.0, compute=0.461, p=1.57, tile=0.73, wave=0.64),
    },
    experts={
        "bf16": Experts(t0_us=16.4, memory=0.922, compute=0.435, p=1.24, token_ns=4.59, **DRAWN),
        "fp8": Experts(t0_us=20.4, memory=0.913, compute=0.539, p=1.29, token_ns=13.5, **DRAWN),
        "fp8-block": B200_BLOCK_EXPERTS,
        "nvfp4": Experts(t0_us=18.8, memory=0.846, compute=0.759, p=1, token_ns=12.2, **DRAWN),
        "mxfp4": B200_MXFP4_EXPERTS,
        "int4": Experts(t0_us=44.7, memory=0.579, compute=0.132, p=1, token_ns=104, **DRAWN),
    },
    triton_experts=TRITON_EXPERTS,
    attention=Attention(
        decode_us=10.2,
        memory=0.931,
        fp8_rate=7.3e12,
        sequence_us=0.0153,
        compute=0.378,
        prefill_us=24,
    ),
    # The table has 2 and 4 devices; 8 are in proportion to B200.
    all_reduce=AllReduce(
        once_us=(5.1, 5.3, 5.8),
        once=(5.15, 5.93, 6.7),
        ring_us=(20, 29, 32),
        ring=(1.8, 2.4, 2.5),
    ),
    engine=FUSED,
)
GB300 = Kernels(
    multiprocessors=152,
    products={
        "bf16": Product(t0_us=3.3, memory=0.848, compute=0.82, p=2.7, tile=0.94, wave=0.24),
        "fp8": Product(t0_us=6.1, memory=1.0, compute=0.507, p=1.42, tile=0.48, wave=0.77),
        "fp8-block": replace(B200_BLOCKS, compute=0.362),
        "nvfp4": Product(t0_us=7.5, memory=1.0, compute=0.546, p=1.3, tile=0.64, wave=0.74),
    },
    experts={
        "bf16": Experts(t0_us=16.4, memory=0.919, compute=0.466, p=1.16, token_ns=3.12, **DRAWN),
        "fp8": Experts(t0_us=18.5, memory=0.861, compute=0.535, p=1.46, token_ns=12.8, **DRAWN),
        "fp8-block": B200_BLOCK_EXPERTS,
        "nvfp4": Experts(t0_us=15.8, memory=0.799, compute=0.722, p=1, token_ns=8.16, **DRAWN),
        "mxfp4": B200_MXFP4_EXPERTS,
        "int4": Experts(t0_us=47.1, memory=0.573, compute=0.133, p=1.01, token_ns=100, **DRAWN),
    },
    triton_experts=TRITON_EXPERTS,
    attention=Attention(
        decode_us=9.6,
        memory=0.896,
        fp8_rate=7.0e12,
        sequence_us=0.0153,
        compute=0.505,
        prefill_us=23,
    ),
    all_reduce=AllReduce(once_us=(7.0, 7.3, 13.8), ring_us=BLACKWELL_RING_US, ring=BLACKWELL_RING),
    engine=FUSED,
)
RTX_PRO_6000 = Kernels(
    multiprocessors=188,
    products={
        "bf16": Product(t0_us=1.95, memory=0.986, compute=0.799, p=1.91, tile=0.46, wave=0.07),
        "fp8": Product(t0_us=4.4, memory=0.941, compute=0.723, p=2.08, tile=0.1, wave=0.57),
        "nvfp4": Product(t0_us=7.9, memory=0.802, compute=0.65, p=16, tile=1.0, wave=0.9),
    },
    experts={
        "bf16": Experts(t0_us=26.7, memory=1, compute=0.392, p=1.59, token_ns=70.5),
        "fp8": Experts(t0_us=UNTUNED_FP8_US, memory=1, compute=0.359, p=1.4, token_ns=51.2),
        "nvfp4": Experts(t0_us=52.4, memory=0.976, compute=0.779, p=1.17, token_ns=36.1),
        "mxfp4": Experts(t0_us=21.2, memory=1, compute=0.542, p=1.24, token_ns=64.4),
        "int4": Experts(t0_us=15.6, memory=1, compute=0.54, p=2.55, token_ns=81.8),
    },
    # Small caches stay in the second level cache, faster than memory: not more than it is counted.
    attention=Attention(
        decode_us=11.8,
        memory=0.95,
        fp8_rate=1.52e12,
        sequence_us=0.0133,
        compute=0.477,
        prefill_us=18,
    ),
    # Over PCIe, where one way is better for small and the other for large sums.
    all_reduce=AllReduce(
        once_us=(4.1, 12.4, 24.5),
        once=(3.9, 7.25, 12.7),
        ring_us=(4.5, 43.7, 83.8),
        ring=(1.7, 3.24, 4.6),
    ),
)
