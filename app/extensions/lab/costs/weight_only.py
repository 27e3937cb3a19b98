"""Kernels that unpack weights to 16 bits (Marlin), where a device lacks arithmetic of a format.

No table of operators has them for dense products. Their constants are shares of those of 16 bits:
the weights that are read have fewer bytes, and unpacking costs arithmetic.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from app.extensions.lab.costs.kernels import Experts, Format, Kernels, Product

MEMORY_SHARE = 0.95
"""Bandwidth of a product with unpacked weights, as a share of that of 16 bits."""
COMPUTE_SHARE = 0.6
"""Arithmetic, likewise."""
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


def with_weight_only(kernels: Kernels, lacking: tuple[Format, ...]) -> Kernels:
    """Returns constants with formats whose weights are unpacked.

    Args:
        kernels: The constants of a device.
        lacking: Formats with fewer bits that the device has no arithmetic for.
    """
    products: dict[Format, Product] = dict(kernels.products)
    experts: dict[Format, Experts] = dict(kernels.experts)
    for weights in (*ALL_DEVICES, *lacking):
        products.setdefault(weights, _unpacking(products["bf16"]))
        experts.setdefault(weights, experts["int4"])
    if "fp8" not in lacking:
        _add_blocks(products, experts)
    return replace(
        kernels,
        products=products,
        experts=experts,
        unpacked=kernels.unpacked | frozenset(lacking),
    )


def _unpacking(product: Product) -> Product:
    """Returns the constants of a product with unpacked weights, from those of 16 bits."""
    return replace(
        product,
        memory=MEMORY_SHARE * product.memory,
        compute=COMPUTE_SHARE * product.compute,
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
