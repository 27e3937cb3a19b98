"""Constants of kernels and of engines.

The constants of kernels were fitted to public tables of single operators (aiconfigurator,
Apache-2.0); what the engine adds was fitted to measured servers. No constant belongs to a model.
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
from app.extensions.costs.layer_constants import LATENT, RECURRENCE, SPARSE_LATENT
from app.extensions.costs.newer_constants import (
    B200_BLOCK_EXPERTS,
    B200_BLOCKS,
    B200_MXFP4_EXPERTS,
    B300,
    BLACKWELL_RING,
    BLACKWELL_RING_US,
    DRAWN,
    FUSED,
    GB200,
    GB300,
    ROUTED_NS,
    RTX_PRO_6000,
    TRITON_EXPERTS,
)
from app.extensions.costs.weight_only import (
    WITHOUT_FP4,
    WITHOUT_FP8,
    only_formats,
    through_host,
    with_shares,
    with_weight_only,
)
from vllm_facts.devices import GENERATIONS

ASYNCHRONOUS = EngineOverhead(base=0.6e-3, sequence=12e-6)
SYNCHRONOUS = EngineOverhead(base=1.2e-3, sequence=40e-6)
"""vLLM up to 0.13, which schedules a step when the one before has ended."""
HOPPER = {"prefill": 1.6, "routed_ns": ROUTED_NS}
"""Prefill with experts at measured servers; the tables of operators load all experts alike."""
HOPPER_MXFP4 = {"prefill": 1.6, "routed_ns": 22.5}
"""The same for gpt-oss, which has 4 experts for each token and other kernels."""
HOPPER_FP8_EXPERTS = Experts(t0_us=80, memory=0.99, compute=0.25, p=1.25, **HOPPER)
"""Fitted to fp8 in blocks: the table of fp8 has a slow kernel that few checkpoints get."""
AMPERE_UNEVEN = {"prefill": 1.3, "routed_ns": ROUTED_NS}
"""Prefill with experts in 16 bits on A100, by GLM-4.5-Air on four devices."""
AMPERE_MARLIN_EXPERTS = Experts(t0_us=40, memory=0.9, compute=0.4, p=1.2)
"""Marlin's kernels read weights of 4 bits and compute in 16 bits, as Ampere has no smaller format.

The fixed time is that of 16 bits. The other constants come from gpt-oss on A100 with 16 to 128
sequences (vllm-project/vllm#22428), whose steps do not wait for the host.
"""
HOPPER_RING_US = (7.0, 10.2, 16.3)
_FITTED: Mapping[str, Kernels] = {
    "h100": Kernels(
        multiprocessors=132,
        products={
            "bf16": Product(t0_us=3.6, memory=0.85, compute=0.81, p=3.9, tile=0.18, wave=0.16),
            "fp8": Product(t0_us=5.3, memory=0.836, compute=0.6, p=14, tile=0.49, wave=0.6),
            "fp8-block": Product(t0_us=14.5, memory=0.77, compute=0.52, p=8, tile=1.0, wave=0.7),
        },
        experts={
            "bf16": Experts(t0_us=31, memory=0.8, compute=0.55, p=1.8, token_ns=9, **HOPPER),
            "mxfp4": Experts(t0_us=33, memory=0.99, compute=0.46, p=1.03, **HOPPER_MXFP4),
            "fp8-block": HOPPER_FP8_EXPERTS,
            "fp8": HOPPER_FP8_EXPERTS,
            "int4": Experts(t0_us=48.1, memory=0.877, compute=0.278, p=1.26, token_ns=125, **DRAWN),
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
            "mxfp4": Experts(t0_us=33, memory=0.69, compute=0.46, p=1.03, **HOPPER_MXFP4),
            "fp8-block": HOPPER_FP8_EXPERTS,
            "fp8": HOPPER_FP8_EXPERTS,
            "int4": Experts(t0_us=46.6, memory=0.732, compute=0.293, p=1, token_ns=118, **DRAWN),
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
            "fp8-block": B200_BLOCKS,
            "nvfp4": Product(t0_us=6.1, memory=0.61, compute=0.55, p=2.3, tile=1.0, wave=0.69),
        },
        experts={
            "mxfp4": B200_MXFP4_EXPERTS,
            "fp8-block": B200_BLOCK_EXPERTS,
            "nvfp4": Experts(t0_us=19.6, memory=0.807, compute=0.707, p=1, token_ns=11.8, **DRAWN),
            "bf16": Experts(
                t0_us=17.5, memory=0.889, compute=0.457, p=1.23, token_ns=3.28, **DRAWN
            ),
            "fp8": Experts(t0_us=21.5, memory=0.865, compute=0.593, p=1.41, token_ns=17.8, **DRAWN),
            "int4": Experts(t0_us=46.9, memory=0.532, compute=0.135, p=1, token_ns=109, **DRAWN),
        },
        triton_experts=TRITON_EXPERTS,
        attention=Attention(
            decode_us=9,
            memory=0.9,
            fp8_rate=6.9e12,
            sequence_us=0.018,
            compute=0.4,
            prefill_us=15,
        ),
        all_reduce=AllReduce(
            once_us=(7.0, 7.3, 8.0), ring_us=BLACKWELL_RING_US, ring=BLACKWELL_RING
        ),
        engine=FUSED,
    ),
    "a100": Kernels(
        multiprocessors=108,
        derived_experts=frozenset(("mxfp4", "int4")),
        products={
            "bf16": Product(t0_us=5.4, memory=0.794, compute=0.83, p=2.1, tile=0.36, wave=0.13)
        },
        experts={
            "bf16": Experts(
                t0_us=40, memory=0.901, compute=0.394, p=1.0, token_ns=38.5, **AMPERE_UNEVEN
            ),
            "mxfp4": AMPERE_MARLIN_EXPERTS,
            "int4": AMPERE_MARLIN_EXPERTS,
        },
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
            # The table times products with their launch: the fixed time is that of H100.
            "fp8-block": Product(t0_us=14.5, memory=0.884, compute=0.374, p=8, tile=1.0, wave=0.7),
        },
        experts={
            "bf16": Experts(t0_us=12.9, memory=0.9, compute=0.921, p=1, token_ns=67.1),
            "fp8": Experts(t0_us=12.1, memory=0.892, compute=0.851, p=1, token_ns=70.1),
            "fp8-block": Experts(t0_us=4.66, memory=0.887, compute=0.598, p=1.27, token_ns=55.9),
            "mxfp4": Experts(t0_us=14.6, memory=0.884, compute=0.547, p=1.39, token_ns=79.6),
            "int4": Experts(t0_us=8.94, memory=1, compute=0.582, p=1.91, token_ns=121),
        },
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
    "b300": B300,
    "gb200": GB200,
    "gb300": GB300,
    "rtx-pro-6000": RTX_PRO_6000,
}
RELATIVES: Mapping[str, tuple[str, int]] = {
    "l4": ("l40s", 58),
    "rtx4090": ("l40s", 128),
    "rtx6000-ada": ("l40s", 142),
    "rtx3090": ("l40s", 82),
    "a10g": ("l40s", 80),
    "a40": ("l40s", 84),
    "a6000": ("l40s", 84),
    "a100-40gb": ("a100", 108),
    "h20": ("h100", 78),
    "h20-141gb": ("h200", 78),
    "rtx5090": ("rtx-pro-6000", 170),
    "gb10": ("rtx-pro-6000", 48),
    "thor": ("rtx-pro-6000", 20),
}
"""Device without tables -> the device whose shares of the data sheet it has, and its number of
multiprocessors.
"""
GEFORCE = frozenset(("rtx3090", "rtx4090", "rtx5090"))
GEFORCE_MEMORY = 0.93
"""Share of the bandwidth of GeForce cards, whose memory has no error correction."""
GEFORCE_COMPUTE = 0.8
"""Share of their arithmetic: they sum in 32 bits at half of the rate of the same chip elsewhere, so
that power limits their products less.
"""
CARD_TABLES = frozenset(("l40s", "rtx-pro-6000"))
"""Devices with tables that are cards."""
SIXTEEN_BITS: tuple[Format, ...] = ("bf16", "mxfp4", "int4")
"""Formats whose constants hold without 8-bit arithmetic."""
AMPERE = "ampere"
LACKING: Mapping[str, tuple[Format, ...]] = {
    AMPERE: WITHOUT_FP8,
    "ada": WITHOUT_FP4,
    "hopper": WITHOUT_FP4,
}
"""Generation -> formats that its devices have no arithmetic for."""


def _scaled(device: str) -> Kernels:
    """Returns the constants of a device without tables."""
    relative, multiprocessors = RELATIVES[device]
    kernels = _FITTED[relative]
    if GENERATIONS[device] == AMPERE and GENERATIONS[relative] != AMPERE:
        kernels = only_formats(kernels, SIXTEEN_BITS)
    if device in GEFORCE:
        kernels = with_shares(kernels, memory=GEFORCE_MEMORY, compute=GEFORCE_COMPUTE)
        kernels = replace(kernels, all_reduce=through_host(kernels.all_reduce))
    return replace(kernels, multiprocessors=multiprocessors, scaled=relative)


def _with_layers(device: str, kernels: Kernels) -> Kernels:
    """Returns the constants of a device, including its latent attention and states."""
    table = kernels.scaled or device
    lacking = LACKING.get(GENERATIONS[device], ())
    kernels = with_weight_only(kernels, lacking, is_card=table in CARD_TABLES)
    return replace(
        kernels,
        latent=LATENT.get(table),
        sparse_latent=SPARSE_LATENT.get(table),
        recurrence=RECURRENCE.get(table),
    )


KERNELS: Mapping[str, Kernels] = {
    device: _with_layers(device, kernels)
    for device, kernels in {**_FITTED, **{name: _scaled(name) for name in RELATIVES}}.items()
}
"""Device -> its constants."""
