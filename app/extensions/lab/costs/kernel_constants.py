"""Constants of kernels and of engines.

The constants of kernels were fitted to public tables of single operators (aiconfigurator,
Apache-2.0); what the engine adds was fitted to measured servers. No constant belongs to a model.
"""

from collections.abc import Mapping

from app.extensions.lab.costs.kernels import (
    AllReduce,
    Attention,
    EngineOverhead,
    Experts,
    Kernels,
    Product,
)

ASYNCHRONOUS = EngineOverhead(base=0.6e-3, sequence=12e-6)
SYNCHRONOUS = EngineOverhead(base=1.2e-3, sequence=40e-6)
"""vLLM up to 0.13, which schedules a step when the one before has ended."""
FUSED = EngineOverhead(
    base=0.16e-3, sequence=28e-6, front=25e-3, layer_us=5.2, casts=0, slowdown=0.09
)
HOPPER = {"prefill": 1.6, "routed_ns": 120.0}
"""Prefill with experts at measured servers; the tables of operators load all experts alike."""
HOPPER_RING_US = (7.0, 10.2, 16.3)
KERNELS: Mapping[str, Kernels] = {
    "h100": Kernels(
        multiprocessors=132,
        products={
            "bf16": Product(t0_us=3.6, memory=0.85, compute=0.81, p=3.9, tile=0.18, wave=0.16),
            "fp8": Product(t0_us=5.3, memory=0.836, compute=0.6, p=14, tile=0.49, wave=0.6),
            "fp8-block": Product(t0_us=14.5, memory=0.77, compute=0.52, p=8, tile=1.0, wave=0.7),
        },
        experts={
            "bf16": Experts(t0_us=31, memory=0.8, compute=0.55, p=1.8, token_ns=9, **HOPPER),
            "mxfp4": Experts(t0_us=33, memory=0.99, compute=0.46, p=1.03, **HOPPER),
            "fp8-block": Experts(t0_us=80, memory=0.99, compute=0.25, p=1.25, **HOPPER),
        },
        attention=Attention(
            decode_us=10,
            memory=0.9,
            fp8_rate=2.6e12,
            sequence_us=0.045,
            compute=0.66,
            prefill_us=15,
        ),
        all_reduce=AllReduce(once_us=(4.3, 4.7, 5.4), ring_us=HOPPER_RING_US),
    ),
    "h200": Kernels(
        multiprocessors=132,
        products={
            "bf16": Product(t0_us=4.0, memory=0.835, compute=0.79, p=3.9, tile=0.12, wave=0.12),
            "fp8": Product(t0_us=5.3, memory=0.8, compute=0.64, p=8, tile=0.34, wave=0.7),
            "fp8-block": Product(t0_us=14.2, memory=0.68, compute=0.515, p=8, tile=1.0, wave=0.66),
        },
        experts={
            "bf16": Experts(t0_us=34, memory=0.8, compute=0.59, p=1.6, token_ns=9, **HOPPER),
            "mxfp4": Experts(t0_us=33, memory=0.69, compute=0.46, p=1.03, **HOPPER),
            "fp8-block": Experts(t0_us=80, memory=0.99, compute=0.25, p=1.25, **HOPPER),
        },
        attention=Attention(
            decode_us=10,
            memory=0.87,
            fp8_rate=2.7e12,
            sequence_us=0.045,
            compute=0.66,
            prefill_us=15,
        ),
        all_reduce=AllReduce(once_us=(4.4, 4.7, 5.2), ring_us=HOPPER_RING_US),
    ),
    "b200": Kernels(
        multiprocessors=148,
        products={
            "bf16": Product(t0_us=3.2, memory=0.83, compute=0.756, p=3.3, tile=0.9, wave=0.3),
            "fp8": Product(t0_us=6.0, memory=0.7, compute=0.45, p=8, tile=0.3, wave=0.4),
            "fp8-block": Product(t0_us=10.4, memory=0.66, compute=0.37, p=8, tile=0.64, wave=0.84),
            "nvfp4": Product(t0_us=6.1, memory=0.61, compute=0.55, p=2.3, tile=1.0, wave=0.69),
        },
        experts={
            "mxfp4": Experts(
                t0_us=23.8, memory=1.0, compute=0.59, p=1.06, prefill=0.3, routed_ns=60
            ),
            "fp8-block": Experts(
                t0_us=56, memory=0.94, compute=0.35, p=1.9, prefill=1.2, routed_ns=60
            ),
            # No table of operators has them: as fp8 in blocks, of a format half as wide.
            "nvfp4": Experts(t0_us=56, memory=0.7, compute=0.3, p=1.9, prefill=1.2, routed_ns=60),
        },
        attention=Attention(
            decode_us=9,
            memory=0.9,
            fp8_rate=6.9e12,
            sequence_us=0.018,
            compute=0.4,
            prefill_us=15,
        ),
        all_reduce=AllReduce(
            once_us=(7.0, 7.3, 8.0), ring_us=(11.2, 16.3, 26.1), ring=(1.8, 2.3, 2.5)
        ),
        engine=FUSED,
    ),
    "a100": Kernels(
        multiprocessors=108,
        products={
            "bf16": Product(t0_us=5.4, memory=0.794, compute=0.83, p=2.1, tile=0.36, wave=0.13)
        },
        experts={},
        attention=Attention(
            decode_us=18, memory=0.72, fp8_rate=0, sequence_us=0.06, compute=0.52, prefill_us=20
        ),
        all_reduce=AllReduce(
            once_us=(5.1, 5.6, 6.6), ring_us=(10.5, 15.3, 24.5), ring=(1.61, 2.07, 2.36)
        ),
    ),
    "l40s": Kernels(
        multiprocessors=142,
        products={
            "bf16": Product(t0_us=0, memory=0.789, compute=0.645, p=2.5, tile=0.46, wave=0.01),
            "fp8": Product(t0_us=2.2, memory=0.884, compute=0.613, p=1.0, tile=0.37, wave=0),
        },
        experts={},
        attention=Attention(
            decode_us=9.6, memory=0.91, fp8_rate=0, sequence_us=0.021, compute=0.42, prefill_us=15
        ),
        # Over PCIe, where neither way is faster than the other.
        all_reduce=AllReduce(
            once_us=(5.2, 12.6, 23),
            ring_us=(5.2, 12.6, 23),
            once=(2.0, 12.5, 27.3),
            ring=(1.67, 12.5, 27.3),
        ),
    ),
}
