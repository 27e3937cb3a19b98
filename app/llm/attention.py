"""Keys and values of all tokens, and the attention of a step.

`PagedStore` holds the keys and values, in blocks with the numbers of `KVCache`, which finds blocks by hash.
Decodes are computed together from a dense copy; prefill chunks are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy
import torch
import torch.nn.functional as F

from app.llm.config import ModelConfig

if TYPE_CHECKING:
    from app.llm.sequence import Sequence

MANY_ROWS: Final = 8
"""Rows from which plain matrix products in float32 on a CPU are faster than torch's attention."""
LENGTH_STEP: Final = 256
ROW_STEP: Final = 4
"""Growth of the dense copy, in positions and rows: large steps, so that reallocations are rare."""


class PagedStore:
    """A slot for each token of each block: [layer][slot, keys or values, kv_head, head_dim]."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.group = config.num_heads // config.num_kv_heads
        """Query heads that share the keys of one head."""
        shape = num_blocks * block_size, 2, config.num_kv_heads, config.head_dim
        if device.type == "cpu":  # numpy's zeros take memory only when they are written, torch's at once
            size = math.prod(shape) * dtype.itemsize
            empty = (numpy.zeros(size, numpy.uint8) for _ in range(config.num_layers))
            self.layers = [torch.from_numpy(content).view(dtype).view(shape) for content in empty]
        else:
            self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self._offsets = torch.arange(block_size)

    @property
    def size_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def slots(self, blocks: Listed[int], start: int, end: int) -> torch.Tensor:
        """Returns the slots of a sequence's tokens from `start` to `end` (exclusive)."""
        size = self.block_size
        first, last = start // size, -(-end // size)
        numbers = torch.tensor(blocks[first:last]).unsqueeze(1) * size
        return (numbers + self._offsets).flatten()[start - first * size : end - first * size]

    def places(self, blocks: Listed[int], end: int) -> torch.Tensor | slice:
        """Returns the slots of the first `end` tokens; blocks in order are a slice, which is not copied."""
        first = blocks[0]
        if list(blocks) == list(range(first, first + len(blocks))):
            return slice(first * self.block_size, first * self.block_size + end)
        return self.slots(blocks, 0, end).to(self.layers[0].device)


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive tokens of one sequence; a decode is a chunk of its newest token and its drafts."""

    sequence: Sequence
    tokens: Listed[int]
    start: int
    """Position of the first token."""
    blocks: Listed[int]
    samples: bool = True
    """True to get the logits of the next token."""
    drafts: int = 0
    """Number of drafts at its end; the logits before and after each are needed, too."""
    prompt_logits: bool = False
    """True to get the logits after each token."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class DecodeWorkspace:
    """Dense copy of the store: [layer][keys or values, row, kv_head, position, dim].

    On a CPU it is float32, which is faster than bfloat16; `limit_bytes` counts numbers of the store's dtype.
    Each decoding sequence has a row. The copy may be dropped at any time. The rows of a step are always the
    first ones: the last row moves into the place of a sequence that no longer decodes. New sequences are
    copied from the store.
    """

    def __init__(self, store: PagedStore, limit_bytes: int) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        device = store.layers[0].device
        self.dtype = torch.float32 if device.type == "cpu" else store.layers[0].dtype
        self._rows: list[Sequence] = []
        self._room = (0, 0)
        """Allocated rows and positions."""
        self.layers: list[torch.Tensor] = []

    def arrange(self, decodes: Listed[Chunk]) -> list[Chunk] | None:
        """Returns the decodes in the order of their rows; None when rows exceed the memory limit.

        Called in each step, also without decodes: a sequence that does not decode loses its row, which would
        lack the tokens that are computed meanwhile.
        """
        length = max((row.end for row in decodes), default=0)
        if not self._make_room(len(decodes), length):
            return None
        wanted = {row.sequence: row for row in decodes}
        rows, place = self._rows, 0
        while place < len(rows):  # the last row takes the place of one that no longer decodes
            if rows[place] in wanted:
                place += 1
                continue
            last = rows.pop()
            if place < len(rows):
                rows[place] = last
                for layer in self.layers:
                    layer[:, place] = layer[:, len(rows)]
        held = set(rows)
        for row in decodes:
            if row.sequence in held:
                continue
            if row.start:
                slots = self._store.places(row.blocks, row.start)
                for stored, layer in zip(self._store.layers, self.layers, strict=True):
                    layer[:, len(rows), :, : row.start] = stored[slots].permute(1, 2, 0, 3)
            rows.append(row.sequence)
        return [wanted[sequence] for sequence in rows]

    def forget(self) -> None:
        self._rows, self._room, self.layers = [], (0, 0), []

    def _make_room(self, rows: int, length: int) -> bool:
        """Returns True when the copy has room; growing starts an empty copy."""
        have_rows, have_length = self._room
        if rows <= have_rows and length <= have_length:
            return True
        rows = max(have_rows, -(-rows // ROW_STEP) * ROW_STEP)
        length = max(have_length, -(-length // LENGTH_STEP) * LENGTH_STEP)
        layer = self._store.layers[0]
        shape = 2, rows, layer.shape[2], length, layer.shape[3]
        needed = 2 * len(self._store.layers) * rows * length * layer[0, 0].nbytes
        self.forget()
        if needed > self._limit_bytes:
            return False
        self._room = rows, length
        self.layers = [layer.new_zeros(shape, dtype=self.dtype) for layer in self._store.layers]
        return True


class StepAttention:
    """The attention of one step.

    Each layer stores the keys and values of all tokens before any attention is computed. So a prompt may
    begin with blocks that another prompt computes in the same step.
    """

    def __init__(
        self, store: PagedStore, workspace: DecodeWorkspace, decodes: Listed[Chunk], chunks: Listed[Chunk]
    ) -> None:
        """`decodes` are in the order of rows in `workspace`."""
        self._store, self._workspace = store, workspace
        self._device = store.layers[0].device
        self._count = sum(len(it.tokens) for it in decodes)
        parts = [store.slots(it.blocks, it.start, it.end) for it in (*decodes, *chunks)]
        self._slots = torch.cat(parts).to(self._device)
        self._chunks = [self._chunk(chunk) for chunk in chunks]
        if not decodes:
            return
        sizes = [len(it.tokens) for it in decodes]
        self._rows, self._width, self._length = len(decodes), max(sizes), max(it.end for it in decodes)
        self._is_padded = min(sizes) < self._width
        places = [(row, offset) for row, size in enumerate(sizes) for offset in range(size)]
        self._places, self._offsets = torch.tensor(places, device=self._device).unbind(1)
        starts = torch.tensor([it.start for it in decodes], device=self._device)
        self._positions = starts[self._places] + self._offsets
        ends = starts.unsqueeze(1) + torch.arange(self._width, device=self._device)
        hidden = torch.arange(self._length, device=self._device) > ends.unsqueeze(2)
        mask = torch.zeros(hidden.shape, dtype=workspace.dtype, device=self._device)
        mask = mask.masked_fill_(hidden, -math.inf)[:, None, None]
        group = store.group if self._width > 1 else 1
        self._mask = mask.expand(-1, -1, group, -1, -1).flatten(2, 3)
        self._plain = self._device.type == "cpu" and self._rows >= MANY_ROWS

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Stores `kv` [tokens, 2 * kv_heads, head_dim], and returns [tokens, heads, head_dim]."""
        kv = kv.unflatten(1, (2, -1))
        self._store.layers[layer].index_copy_(0, self._slots, kv)
        if not self._chunks:
            return self._decode(layer, queries, kv).to(queries.dtype)
        seen = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self._count:
            seen[: self._count] = self._decode(layer, queries[: self._count], kv[: self._count])
        first = self._count
        for count, slots, mask in self._chunks:
            last = first + count
            past = kv[first:last] if slots is None else self._store.layers[layer][slots]
            seen[first:last] = _look_back(queries[first:last], past, mask)
            first = last
        return seen

    def _chunk(self, chunk: Chunk) -> tuple[int, torch.Tensor | slice | None, torch.Tensor | None]:
        """Returns the number of tokens; for later chunks also the slots of all tokens so far, and a mask."""
        count = len(chunk.tokens)
        if not chunk.start:
            return count, None, None
        slots = self._store.places(chunk.blocks, chunk.end)
        mask = torch.ones(count, chunk.end, dtype=torch.bool, device=self._device)
        return count, slots, mask.tril(chunk.start).repeat(self._store.group, 1)

    def _decode(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Computes the attention of decodes; rows with fewer drafts than others are padded."""
        rows = self._workspace.layers[layer]
        rows[:, self._places, :, self._positions] = kv.to(rows.dtype)
        keys, values = rows[:, : self._rows, :, : self._length]
        wide = queries.to(rows.dtype)
        if self._is_padded:
            narrow, wide = wide, wide.new_zeros(self._rows, self._width, *wide.shape[1:])
            wide[self._places, self._offsets] = narrow
        else:
            wide = wide.unflatten(0, (self._rows, -1))
        seen = _attend(wide, keys, values, self._mask, self._plain)
        return seen[self._places, self._offsets] if self._is_padded else seen.flatten(0, 1)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, plain: bool = False
) -> torch.Tensor:
    """Returns [rows, tokens, heads, dim], the shape of `queries`. The heads of a group share a product.

    Keys and values are [rows, kv_heads, places, dim], the mask is [..., group * tokens, places].
    """
    grouped = queries.unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    if plain:
        scores = torch.matmul(grouped * grouped.shape[-1] ** -0.5, keys.transpose(-1, -2))
        seen = torch.matmul(scores.add_(mask).softmax(-1), values)
    else:
        seen = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return seen.unflatten(2, (-1, queries.shape[1])).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _look_back(queries: torch.Tensor, past: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Computes the attention of one chunk; without a mask it is causal, for the start of a prompt."""
    keys, values = past.permute(1, 2, 0, 3).unsqueeze(1)
    if mask is not None:
        return _attend(queries.unsqueeze(0), keys, values, mask)[0]
    heads, shared = queries.transpose(0, 1).unsqueeze(0), queries.shape[1] != keys.shape[1]
    seen = F.scaled_dot_product_attention(heads, keys, values, is_causal=True, enable_gqa=shared)
    return seen[0].transpose(0, 1)
