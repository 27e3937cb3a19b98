"""A storage format of weights, with the bytes that a model then has."""

from msgspec import Struct

from app.extensions.costs.engine_options import BF16_BYTES
from app.extensions.costs.kernels import Format
from app.extensions.costs.shapes import CostShape

MXFP4_ROWS = 256
"""Experts in MXFP4 are padded to a multiple of this number of rows."""
MARLIN_ROWS = 128
"""The same with Marlin's kernels."""
MARLIN_COLUMNS = 256
"""Numbers of a token are padded to a multiple of this with Marlin's kernels."""


class StorageFormat(Struct, frozen=True, kw_only=True):
    """Storage format of weights, and precision of products."""

    weight_bytes: float
    """Bytes of one weight of the projections, with its share of scales."""
    mixing_bytes: float = 0.0
    """The same for attention and states; 0 for `weight_bytes`."""
    in_8bit: bool = False
    """Products are in 8 bits, if the device supports them."""
    kind: str = "bf16"
    kernels: Format | None = None
    """Format of the kernels that compute with these weights; None without constants for them."""
    for_marlin: bool = False
    """Experts in MXFP4 have the layout of Marlin's kernels."""
    keeps_attention: bool = False
    """The projections of attention are in 16 bits."""
    keeps_networks: bool = False
    """Dense networks and shared experts are in 16 bits."""

    @property
    def attention_kernels(self) -> Format | None:
        """Format of the kernels of attention's projections.

        In a model in MXFP4 only the experts have this format.
        """
        if self.keeps_attention or self.kernels == "mxfp4":
            return "bf16"
        return self.kernels

    @property
    def network_kernels(self) -> Format | None:
        """Format of the kernels of dense networks and shared experts."""
        if self.keeps_networks or self.kernels == "mxfp4":
            return "bf16"
        return self.kernels

    def model_bytes(self, shape: CostShape) -> float:
        """Returns the bytes of all weights."""
        return self.shared_bytes(shape) + self.expert_bytes(shape) + self.other_bytes(shape)

    def other_bytes(self, shape: CostShape) -> float:
        """Returns the bytes of weights that no field of a model describes.

        These are mostly encoders, in 16 bits. A negative number corrects computed weights.
        """
        if shape.other_weights < 0:
            return self.weight_bytes * shape.other_weights
        return BF16_BYTES * shape.other_weights

    def shared_bytes(self, shape: CostShape) -> float:
        """Returns the bytes of the weights that every token needs.

        In a model in MXFP4 only the experts have 4 bits.
        """
        mixing_bytes = self.mixing_bytes or self.weight_bytes
        network_bytes = self.weight_bytes
        if self.keeps_attention:
            mixing_bytes = BF16_BYTES
        if self.keeps_networks:
            network_bytes = BF16_BYTES
        if self.kernels == "mxfp4" and shape.num_experts:
            mixing_bytes = BF16_BYTES
            network_bytes = BF16_BYTES
        return (
            BF16_BYTES * shape.table_weights
            + mixing_bytes * shape.mixing_weights
            + network_bytes * shape.network_weights
        )

    def expert_bytes(self, shape: CostShape) -> float:
        """Returns the bytes of all experts, 0 for a dense model."""
        if not shape.num_experts:
            return 0.0
        _, expert = shape.weights()
        padding = 1.0
        if self.kernels == "mxfp4":
            padding = _padding(shape.moe_intermediate_size, MXFP4_ROWS)
            if self.for_marlin:
                padding = _padding(shape.moe_intermediate_size, MARLIN_ROWS)
                padding *= _padding(shape.hidden_size, MARLIN_COLUMNS)
        return self.weight_bytes * expert * padding * shape.num_experts


def _padding(size: int, multiple: int) -> float:
    """Returns the growth factor of a size that is rounded up to a multiple."""
    return -(-size // multiple) * multiple / size
