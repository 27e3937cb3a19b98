"""Computes rows in fixed tiles, so that a token's numbers do not depend on the other tokens of its
step.

Kernels choose their order of summation by the shape of a product. Here all shapes are fixed, for
prompts, chunks and decodes alike, so small steps take longer. Each token's attention is computed by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F

from app.llm.decoder import Decoder, Linear
from app.llm.int8 import Int8Linear

TILE: Final = 16
"""Rows of each product."""


def tile_linears(model: Decoder) -> None:
    """Replaces the linear layers of `model`; those of int8 are exact as they are."""
    if isinstance(model.head, Int8Linear):
        return
    for layer in model.layers:
        for part, names in ((layer, ("qkv", "output", "down")), (layer.gated, ("gate", "up"))):
            for name in names:
                setattr(part, name, TiledLinear(getattr(part, name)))
    model.head = TiledLinear(model.head)


class TiledLinear(Linear):
    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _tiled(self._linear, x)

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        return _tiled(lambda rows, more: self._linear.fused(rows, more, operation), x, other)


def _tiled(compute: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    count = len(rows[0])
    padded = [F.pad(part, (0, 0, 0, -count % TILE)).split(TILE) for part in rows]
    return torch.cat([compute(*tiles) for tiles in zip(*padded, strict=True)])[:count]
