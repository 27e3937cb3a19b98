"""Computes rows in fixed tiles, so that a token's numbers do not depend on other tokens of a step.

Kernels choose their order of summation by the shape of a product. Here all shapes are fixed, for
prompts, chunks and decodes alike, so small steps take longer. Each token's attention is computed by
itself.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from app.extensions.llm.decoder import Decoder
from app.extensions.llm.int8 import Int8Linear
from app.extensions.llm.linear import GatedLinear, Linear

TILE_ROWS: Final = 16
"""Rows of each product."""


def tile_linears(model: Decoder) -> None:
    """Replaces the linear layers of `model`; those of int8 are exact already."""
    if isinstance(model.head, Int8Linear):
        return
    for layer in model.layers:
        for name in ("qkv", "output", "down"):
            setattr(layer, name, TiledLinear(getattr(layer, name)))
        if isinstance(layer.gated, GatedLinear):
            layer.gated.gate = TiledLinear(layer.gated.gate)
            layer.gated.up = TiledLinear(layer.gated.up)
    model.head = TiledLinear(model.head)


class TiledLinear(Linear):
    """A linear layer that computes `TILE_ROWS` rows at a time."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x W' + b."""
        products = [self._linear(tile) for tile in _tiles(x)]
        return torch.cat(products)[: len(x)]

    def fused(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        """Returns (x W' + b) * other for the operation "mul", and with + for "add"."""
        products = []
        for tile, other_tile in zip(_tiles(x), _tiles(other), strict=True):
            products.append(self._linear.fused(tile, other_tile, operation))
        return torch.cat(products)[: len(x)]


def _tiles(rows: Tensor) -> list[Tensor]:
    """Returns `rows` in tiles, the last one filled up with zeros."""
    padded = functional.pad(rows, (0, 0, 0, -len(rows) % TILE_ROWS))
    return list(padded.split(TILE_ROWS))
