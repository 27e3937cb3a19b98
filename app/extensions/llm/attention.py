"""The attention of a step, over the keys and values of all tokens.

`PagedStore` holds the keys and values, in blocks with the numbers of `KVCache`, which finds blocks
by hash. Decodes are computed together; prefill chunks are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Listed
from typing import NamedTuple

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from app.extensions.llm.config import ModelConfig
from app.extensions.llm.kernels import attend
from app.extensions.llm.step import Chunk


class PagedStore:
    """A slot for each token of each block.

    `layers` has a tensor [slots, keys or values, kv_heads, head_dim] for each layer.
    """

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
        shape = (num_blocks * block_size, 2, config.num_kv_heads, config.head_dim)
        self.layers: list[Tensor] = []
        for _ in range(config.num_layers):
            self.layers.append(_zeros(shape, dtype, device))
        self._offsets = torch.arange(block_size)

    def slots(self, blocks: Listed[int], start: int, end: int) -> Tensor:
        """Returns the slots of a sequence's tokens from `start` to `end` (exclusive)."""
        size = self.block_size
        first = start // size
        last = -(-end // size)
        block_starts = torch.tensor(blocks[first:last]).unsqueeze(1) * size
        slots = (block_starts + self._offsets).flatten()
        skipped = first * size
        return slots[start - skipped : end - skipped]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The zeros of numpy take memory only when they are written, those of torch at once.
    content = numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)
    return torch.from_numpy(content).view(dtype).view(shape)


class _ChunkView(NamedTuple):
    """The tokens that a chunk looks back at."""

    size: int
    """Number of tokens of the chunk."""
    slots: Tensor | None
    """Slots of all tokens so far; None at the start of a prompt."""
    mask: Tensor | None


class StepAttention:
    """The attention of one step.

    Each layer stores the keys and values of all tokens before any attention is computed. So a
    prompt may begin with blocks that another prompt computes in the same step. Each token of
    `decodes` looks back alone, the tokens of a chunk together.
    """

    def __init__(self, store: PagedStore, decodes: Listed[Chunk], chunks: list[Chunk]) -> None:
        self._store = store
        self._chunks = chunks
        device = store.layers[0].device
        parts = [store.slots(part.blocks, part.start, part.end) for part in (*decodes, *chunks)]
        self._slots = torch.cat(parts).to(device)
        self._views = [self._view(chunk) for chunk in chunks]
        self._decode_count = sum(len(decode.tokens) for decode in decodes)
        if decodes:
            decode_class = Decodes if device.type == "cpu" else GatheredDecodes
            self._decode = decode_class(store, decodes)

    def drop_last(self) -> int:
        """Removes a last chunk without a sample from the chunks if decodes wait.

        Returns the number of tokens left.
        """
        if self._decode_count and self._chunks and not self._chunks[-1].samples:
            dropped = self._chunks.pop()
            self._slots = self._slots[: -len(dropped.tokens)]
            self._views.pop()
        return len(self._slots)

    def __call__(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """Stores `kv` [tokens, 2 * kv_heads, head_dim], and returns [tokens, heads, head_dim]."""
        stored = self._store.layers[layer]
        kv = kv.unflatten(1, (2, -1))
        stored.index_copy_(0, self._slots, kv.to(stored.dtype))
        if not self._views:
            return self._decode(queries, stored)
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        first = self._decode_count
        if first:
            output[:first] = self._decode(queries[:first], stored)
        for size, slots, mask in self._views:
            last = first + size
            if slots is None:
                past = kv[first:last]
            else:
                past = stored.index_select(0, slots)
            chunk_queries = queries[first:last].to(past.dtype)
            output[first:last] = _attend_chunk(chunk_queries, past, mask)
            first = last
        return output

    def _view(self, chunk: Chunk) -> _ChunkView:
        size = len(chunk.tokens)
        if not chunk.start:
            return _ChunkView(size, slots=None, mask=None)
        device = self._slots.device
        slots = self._store.slots(chunk.blocks, 0, chunk.end).to(device)
        dtype = self._store.layers[0].dtype
        mask = torch.full((size, chunk.end), -torch.inf, dtype=dtype, device=device)
        mask = mask.triu(chunk.start + 1).repeat(self._store.group, 1)
        return _ChunkView(size, slots=slots, mask=mask)


class Decodes:
    """Attention of single tokens on a CPU.

    Each is computed by itself, the same whatever is beside it.
    """

    def __init__(self, store: PagedStore, decodes: Listed[Chunk]) -> None:
        max_blocks = max(len(decode.blocks) for decode in decodes)
        self._block_size = store.block_size
        self._tables = numpy.zeros((len(decodes), max_blocks), numpy.int32)
        rows: list[int] = []
        ends: list[int] = []
        for row, decode in enumerate(decodes):
            self._tables[row, : len(decode.blocks)] = decode.blocks
            rows += [row] * len(decode.tokens)
            ends += range(decode.start + 1, decode.end + 1)
        self._rows = numpy.array(rows, numpy.int32)
        self._ends = numpy.array(ends, numpy.int32)

    def __call__(self, queries: Tensor, stored: Tensor) -> Tensor:
        """Returns [tokens, heads, dim], the shape of `queries`."""
        wide = queries.float().contiguous()
        blocks = stored.unflatten(0, (-1, self._block_size))
        output = torch.empty_like(wide)
        attend(  # numba takes no names
            wide.numpy(), blocks.numpy(), self._tables, self._rows, self._ends, output.numpy()
        )
        return output.to(queries.dtype)


class GatheredDecodes:
    """Attention of single tokens on other devices: over copies of their keys and values."""

    def __init__(self, store: PagedStore, decodes: Listed[Chunk]) -> None:
        device = store.layers[0].device
        slots = []
        for decode in decodes:
            for end in range(decode.start + 1, decode.end + 1):
                slots.append(store.slots(decode.blocks, 0, end))
        ends = torch.tensor([len(token_slots) for token_slots in slots], device=device)
        self._slots = torch.nn.utils.rnn.pad_sequence(slots, batch_first=True).to(device)
        positions = torch.arange(self._slots.shape[1], device=device)
        self._mask = (positions < ends.unsqueeze(1))[:, None, None]

    def __call__(self, queries: Tensor, stored: Tensor) -> Tensor:
        """Returns [tokens, heads, dim], the shape of `queries`."""
        keys, values = stored[self._slots].permute((2, 0, 3, 1, 4))
        return _attend(queries.unsqueeze(1), keys, values, self._mask).squeeze(1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Returns [rows, tokens, heads, dim], the shape of `queries`.

    Keys and values are [rows, kv_heads, positions, dim], the mask is [..., group * tokens,
    positions]. The heads of a group share a product.
    """
    groups = queries.unflatten(2, (keys.shape[1], -1))
    grouped = groups.permute((0, 2, 3, 1, 4)).flatten(2, 3)
    output = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    groups = output.unflatten(2, (-1, queries.shape[1]))
    return groups.permute((0, 3, 1, 2, 4)).flatten(2, 3)


def _attend_chunk(queries: Tensor, past: Tensor, mask: Tensor | None) -> Tensor:
    """Computes the attention of one chunk.

    Without a mask the attention is causal, for the start of a prompt.
    """
    keys, values = past.permute(1, 2, 0, 3).unsqueeze(1)
    if mask is not None:
        return _attend(queries.unsqueeze(0), keys, values, mask)[0]
    output = functional.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        is_causal=True,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return output[0].transpose(0, 1)
