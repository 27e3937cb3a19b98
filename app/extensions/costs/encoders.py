"""Cost of the encoder of images and sounds: its products and its attention, without CUDA graphs.

The formula is the sum over the kernels of text models (`kernel_sum`), with the encoder's sizes. Its
parts are not measured: no server with images was compared.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from app.extensions.costs.kernels import US
from app.shared.step_policies.encoder_budget import EncoderSeconds
from vllm_facts.encoder import Encoder

LAYER_LAUNCH_US = 250
"""Estimated time to launch the kernels of a layer: it has about half of a text layer's kernels."""
REFERENCE_PATCHES = 4096
"""Patches for which the products are computed: an image of about 900 x 900 pixels."""
QUERY_MATRICES = 3
"""Queries, keys and values."""


class EncoderRates(Protocol):
    """Rates of the devices that share an encoder."""

    def product_s(self, rows: float, columns: float, depth: float) -> float:
        """Returns the seconds of a product of matrices in 16 bits."""

    def attention_s(self, operations: float) -> float:
        """Returns the seconds of operations in attention."""


class SheetRates(Struct, frozen=True):
    """Shares of the data sheet's figures."""

    flops: float
    """Operations per second of products."""
    attention_flops: float
    """The same of attention."""

    def product_s(self, rows: float, columns: float, depth: float) -> float:
        """Returns the seconds of a product of matrices in 16 bits."""
        return 2 * rows * columns * depth / self.flops

    def attention_s(self, operations: float) -> float:
        """Returns the seconds of operations in attention."""
        return operations / self.attention_flops


def encoder_seconds(encoder: Encoder, rates: EncoderRates, devices: int) -> EncoderSeconds:
    """Returns the costs of an encoder whose layers `devices` devices share."""
    width = encoder.width
    rows = REFERENCE_PATCHES
    shared_width = width / devices
    inner_width = encoder.inner_width / devices
    layer_s = (
        rates.product_s(rows, QUERY_MATRICES * shared_width, width)
        + rates.product_s(rows, width, shared_width)
        + rates.product_s(rows, (encoder.matrices - 1) * inner_width, width)
        + rates.product_s(rows, width, inner_width)
    )
    patch_s = encoder.layers * layer_s / rows
    # A pair takes a product of a query by a key, and one of a weight by a value.
    pair_s = rates.attention_s(4 * width / devices)
    full_layers = encoder.layers
    if encoder.window:
        full_layers = encoder.full_layers
        patch_s += (encoder.layers - full_layers) * encoder.window * pair_s
    patches = encoder.merged_patches
    return EncoderSeconds(
        step=encoder.layers * LAYER_LAUNCH_US * US,
        embedding=patches * patch_s,
        embedding_pair=patches**2 * full_layers * pair_s,
    )
