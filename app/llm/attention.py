"""Keys and values of all tokens, and the attention of a step.

`PagedStore` holds the keys and values, in blocks with the numbers of `KVCache`, which finds blocks
by hash. Decodes are computed together; prefill chunks are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import torch
import torch.nn.functional as F

from app.llm.config import ModelConfig
from app.llm.kernels import attend

if TYPE_CHECKING:
    from app.llm.sequence import Sequence


class PagedStore:
    """A slot for each token of each block: [layer][slot, keys or values, kv_head, head_dim]."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.group = config.num_heads // config.num_kv_heads
        """Query heads that share the keys of one head."""
        shape = num_blocks * block_size, 2, config.num_kv_heads, config.head_dim
        if (
            device.type == "cpu"
        ):  # numpy's zeros take memory only when they are written, torch's at once
            size = math.prod(shape) * dtype.itemsize
            empty = (numpy.zeros(size, numpy.uint8) for _ in range(config.num_layers))
            self.layers = [torch.from_numpy(content).view(dtype).view(shape) for content in empty]
        else:
            self.layers = [
                torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)
            ]
        self._offsets = torch.arange(block_size)

    def slots(self, blocks: Listed[int], start: int, end: int) -> torch.Tensor:
        """Returns the slots of a sequence's tokens from `start` to `end` (exclusive)."""
        size = self.block_size
        first, last = start // size, -(-end // size)
        numbers = torch.tensor(blocks[first:last]).unsqueeze(1) * size
        return (numbers + self._offsets).flatten()[start - first * size : end - first * size]


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


class StepAttention:
    """The attention of one step.

    Each layer stores the keys and values of all tokens before any attention is computed. So a
    prompt may begin with blocks that another prompt computes in the same step.
    """

    def __init__(self, store: PagedStore, decodes: Listed[Chunk], chunks: list[Chunk]) -> None:
        """Each token of `decodes` looks back alone, the tokens of a chunk together."""
        self._store, self._given, device = store, chunks, store.layers[0].device
        parts = [store.slots(it.blocks, it.start, it.end) for it in (*decodes, *chunks)]
        self._slots = torch.cat(parts).to(device)
        self._chunks = [self._chunk(chunk) for chunk in chunks]
        self._count = sum(len(it.tokens) for it in decodes)
        if decodes:
            self._decode = (Decodes if device.type == "cpu" else GatheredDecodes)(store, decodes)

    def drop_last(self) -> int:
        """Removes a last chunk without a sample from `chunks` if decodes wait; returns the tokens
        left.
        """
        if self._count and self._given and not self._given[-1].samples:
            self._slots = self._slots[: -len(self._given.pop().tokens)]
            self._chunks.pop()
        return len(self._slots)

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Stores `kv` [tokens, 2 * kv_heads, head_dim], and returns [tokens, heads, head_dim]."""
        stored, kv = self._store.layers[layer], kv.unflatten(1, (2, -1))
        stored.index_copy_(0, self._slots, kv.to(stored.dtype))
        if not self._chunks:
            return self._decode(queries, stored)
        seen = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self._count:
            seen[: self._count] = self._decode(queries[: self._count], stored)
        first = self._count
        for count, slots, mask in self._chunks:
            last = first + count
            past = kv[first:last] if slots is None else stored.index_select(0, slots)
            seen[first:last] = _look_back(queries[first:last].to(past.dtype), past, mask)
            first = last
        return seen

    def _chunk(self, chunk: Chunk) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
        """Returns the number of tokens; for later chunks also the slots of all tokens so far, and a
        mask.
        """
        count, device = len(chunk.tokens), self._slots.device
        if not chunk.start:
            return count, None, None
        slots = self._store.slots(chunk.blocks, 0, chunk.end).to(device)
        dtype = self._store.layers[0].dtype
        mask = torch.full((count, chunk.end), -torch.inf, dtype=dtype, device=device).triu(
            chunk.start + 1
        )
        return count, slots, mask.repeat(self._store.group, 1)


class Decodes:
    """Attention of single tokens on a CPU:

    each is computed by itself, the same whatever is beside it.
    """

    def __init__(self, store: PagedStore, decodes: Listed[Chunk]) -> None:
        tables = numpy.zeros((len(decodes), max(len(it.blocks) for it in decodes)), numpy.int32)
        for row, it in enumerate(decodes):
            tables[row, : len(it.blocks)] = it.blocks
        tokens = [
            (row, end + 1) for row, it in enumerate(decodes) for end in range(it.start, it.end)
        ]
        rows, ends = numpy.array(tokens, numpy.int32).T.copy()
        self._where, self._block_size = (tables, rows, ends), store.block_size

    def __call__(self, queries: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        """Returns [tokens, heads, dim], the shape of `queries`."""
        numbers, blocks = queries.float().contiguous(), stored.unflatten(0, (-1, self._block_size))
        seen = torch.empty_like(numbers)
        attend(numbers.numpy(), blocks.numpy(), *self._where, seen.numpy())
        return seen.to(queries.dtype)


class GatheredDecodes:
    """Attention of single tokens on other devices: over copies of their keys and values."""

    def __init__(self, store: PagedStore, decodes: Listed[Chunk]) -> None:
        device = store.layers[0].device
        slots = [
            store.slots(it.blocks, 0, end + 1) for it in decodes for end in range(it.start, it.end)
        ]
        ends = torch.tensor([len(it) for it in slots], device=device)
        self._slots = torch.nn.utils.rnn.pad_sequence(slots, batch_first=True).to(device)
        places = torch.arange(self._slots.shape[1], device=device)
        self._mask = (places < ends.unsqueeze(1))[:, None, None]

    def __call__(self, queries: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        keys, values = stored[self._slots].permute(2, 0, 3, 1, 4)
        return _attend(queries.unsqueeze(1), keys, values, self._mask).squeeze(1)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Returns [rows, tokens, heads, dim], the shape of `queries`. The heads of a group share a
    product.

    Keys and values are [rows, kv_heads, places, dim], the mask is [..., group * tokens, places].
    """
    grouped = queries.unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return seen.unflatten(2, (-1, queries.shape[1])).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _look_back(
    queries: torch.Tensor, past: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Computes the attention of one chunk; without a mask it is causal, for the start of a prompt."""
    keys, values = past.permute(1, 2, 0, 3).unsqueeze(1)
    if mask is not None:
        return _attend(queries.unsqueeze(0), keys, values, mask)[0]
    heads, shared = queries.transpose(0, 1).unsqueeze(0), queries.shape[1] != keys.shape[1]
    seen = F.scaled_dot_product_attention(heads, keys, values, is_causal=True, enable_gqa=shared)
    return seen[0].transpose(0, 1)
