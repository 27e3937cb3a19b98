"""Kernels that unpack weights to 16 bits (Marlin), where a device lacks arithmetic of a format.

No table of operators has them for dense products. Their constants are shares of the 16-bit ones:
the weights that are read have fewer bytes, and unpacking costs arithmetic.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from app.extensions.costs.kernels import (
    EIGHT_BITS,
    AllReduce,
    Experts,
    Format,
    Kernels,
    Product,
)

MEMORY_SHARE = 0.95
"""Bandwidth of a product with unpacked weights, as a share of that of 16 bits."""
COMPUTE_SHARE = 0.6
"""Arithmetic, likewise: Marlin reaches 141 of A100's 312 TFLOPS (vllm-project/vllm#2497)."""
CARD_COMPUTE_SHARE = 0.9
"""The same on cards, whose multiprocessors have half of the tensor cores' rate, so that unpacking
hides behind it. Four servers of Llama 70B in AWQ on L40S, RTX 4090 and RTX PRO 6000 are near it.
"""
UNEVEN_EXPERTS = 1.6
"""Factor of large steps of 8-bit experts, whose rows are uneven among the experts, as on Hopper."""
TILE_WEIGHT = 0.1
"""Weight of the missing rows of a tile: Marlin's tiles have 16 rows, and not 128."""
ALL_DEVICES: tuple[Format, ...] = ("int4", "int8")
WITHOUT_FP8: tuple[Format, ...] = ("fp8", "fp8-block", "nvfp4")
"""Formats that Ampere unpacks."""
WITHOUT_FP4: tuple[Format, ...] = ("nvfp4",)
"""Formats that Hopper and Ada unpack."""
BLOCK_FIXED_US = 14.5
"""Fixed time of fp8 in blocks, that of H100."""
BLOCK_COMPUTE = 0.61
"""Arithmetic of fp8 in blocks as a share of fp8, that of L40S."""


def with_weight_only(
    kernels: Kernels, lacking: tuple[Format, ...], *, is_card: bool = False
) -> Kernels:
    """Returns constants with formats whose weights are unpacked.

    Args:
        kernels: The constants of a device.
        lacking: Formats with fewer bits that the device has no arithmetic for.
        is_card: The device is a card, and not a module of a server.
    """
    unpacking = _unpacking(
        kernels.products["bf16"], CARD_COMPUTE_SHARE if is_card else COMPUTE_SHARE
    )
    products: dict[Format, Product] = dict(kernels.products)
    experts: dict[Format, Experts] = dict(kernels.experts)
    for weights in (*ALL_DEVICES, *lacking):
        products.setdefault(weights, unpacking)
        expert = experts["int4"]
        if weights in EIGHT_BITS:
            expert = replace(expert, prefill=UNEVEN_EXPERTS)
        experts.setdefault(weights, expert)
    if "fp8" not in lacking:
        _add_blocks(products, experts)
    return replace(
        kernels,
        products=products,
        experts=experts,
        unpacked=kernels.unpacked | frozenset(lacking),
        derived=frozenset(products) - frozenset(kernels.products),
        derived_experts=kernels.derived_experts | (frozenset(experts) - frozenset(kernels.experts)),
    )


def _unpacking(product: Product, compute_share: float) -> Product:
    """Returns the constants of a product with unpacked weights, from the 16-bit ones."""
    return replace(
        product,
        memory=MEMORY_SHARE * product.memory,
        compute=compute_share * product.compute,
        tile=TILE_WEIGHT,
        wave=0.0,  # Marlin divides the depth of a product among idle multiprocessors
    )


def _add_blocks(products: dict[Format, Product], experts: dict[Format, Experts]) -> None:
    """Adds fp8 in blocks where a device has tables of fp8 alone."""
    product = products["fp8"]
    products.setdefault(
        "fp8-block",
        replace(product, t0_us=BLOCK_FIXED_US, compute=BLOCK_COMPUTE * product.compute),
    )
    experts.setdefault("fp8-block", experts["fp8"])


def only_formats(kernels: Kernels, formats: tuple[Format, ...]) -> Kernels:
    """Returns constants with some formats alone."""
    products: Mapping[Format, Product] = {
        name: product for name, product in kernels.products.items() if name in formats
    }
    experts: Mapping[Format, Experts] = {
        name: expert for name, expert in kernels.experts.items() if name in formats
    }
    return replace(kernels, products=products, experts=experts)


def with_shares(kernels: Kernels, *, memory: float, compute: float) -> Kernels:
    """Returns constants whose products have other shares of the data sheet.

    Experts keep theirs. Formats keep their ratio to 16 bits, whose shares are `memory` and
    `compute`.
    """
    reference = kernels.products["bf16"]
    memory_ratio = memory / reference.memory
    compute_ratio = compute / reference.compute
    products = {
        name: replace(
            product,
            memory=min(1.0, memory_ratio * product.memory),
            compute=compute_ratio * product.compute,
        )
        for name, product in kernels.products.items()
    }
    return replace(kernels, products=products)


def through_host(all_reduce: AllReduce) -> AllReduce:
    """Returns the constants of sums over cards that cannot read each other's memory.

    GeForce cards have no peer access over PCIe: all bytes cross the bus twice, through the memory
    of the host, and each sum takes two hops.
    """
    return AllReduce(
        once_us=_doubled(all_reduce.once_us),
        ring_us=_doubled(all_reduce.ring_us),
        once=_doubled(all_reduce.once),
        ring=_doubled(all_reduce.ring),
    )


def _doubled(values: tuple[float, float, float]) -> tuple[float, float, float]:
    two, four, eight = values
    return 2 * two, 2 * four, 2 * eight
