"""Computes rows in fixed tiles, so that a token's numbers do not depend on the other tokens of its step.

Kernels choose their order of summation by the shape of a product. Here all shapes are fixed, or follow from
a token's position alone, for prompts, chunks and decodes alike. So small steps take longer.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Final

import torch
import torch.nn.functional as F

from app.llm.attention import Chunk, PagedStore, StepAttention
from app.llm.decoder import Decoder, Linear
from app.llm.int8 import Int8Linear

TILE: Final = 16
"""Rows of each product; tiles of queries begin at positions that are multiples."""
KEY_TILE: Final = 256
"""Keys of a product are padded to a multiple, with weights of zero."""


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

    def __call__(self, x: torch.Tensor, operation: str = "none") -> torch.Tensor:
        return _tiled(lambda rows: self._linear(rows, operation), x)

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        return _tiled(lambda rows, more: self._linear.fused(rows, more, operation), x, other)


def _tiled(compute: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    count = len(rows[0])
    padded = [F.pad(part, (0, 0, 0, -count % TILE)).split(TILE) for part in rows]
    return torch.cat([compute(*tiles) for tiles in zip(*padded, strict=True)])[:count]


class TiledAttention(StepAttention):
    """The attention of a step in float32, tile by tile; decodes are chunks of one token."""

    def __init__(self, store: PagedStore, chunks: Listed[Chunk]) -> None:
        self._store = store
        self._device = store.layers[0].device
        self._past = [(it.start, store.slots(it.blocks, 0, it.end).to(self._device)) for it in chunks]
        self._slots = torch.cat([slots[start:] for start, slots in self._past])

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        stored = self._store.layers[layer]
        stored[self._slots] = kv.unflatten(1, (2, -1))
        seen, row = [], 0
        for start, slots in self._past:
            past, position = stored[slots].float(), start
            while position < len(slots):
                end = min(position - position % TILE + TILE, len(slots))
                seen.append(self._tile(queries[row : row + end - position], past[:end], position))
                row, position = row + end - position, end
        return torch.cat(seen).to(queries.dtype)

    def _tile(self, queries: torch.Tensor, past: torch.Tensor, position: int) -> torch.Tensor:
        """Returns [tokens, heads, head_dim] for queries from `position` to the end of `past`."""
        count, heads = queries.shape[:2]
        before = position % TILE
        rows = F.pad(queries.float(), (0, 0, 0, 0, before, TILE - before - count))
        keys, values = F.pad(past, (0, 0, 0, 0, 0, 0, 0, -len(past) % KEY_TILE)).permute(1, 2, 0, 3)
        grouped = rows.transpose(0, 1).reshape(len(keys), -1, rows.shape[-1])
        scores = torch.matmul(grouped * grouped.shape[-1] ** -0.5, keys.transpose(1, 2))
        places = torch.arange(keys.shape[1], device=self._device)
        hidden = places > (position - before + places[:TILE]).unsqueeze(1)
        shares = scores.masked_fill_(hidden.repeat(heads // len(keys), 1), -torch.inf).softmax(-1)
        mixed = torch.matmul(shares, values).view(heads, TILE, -1)
        return mixed[:, before : before + count].transpose(0, 1)
