"""How the tokens of one step look back: decodes all at once in dense rows, chunks of prompts one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from app.llm.kv_store import DecodeRow, DecodeWorkspace, PagedStore

MANY_ROWS: Final = 8
"""From so many rows on plain products of matrices are faster in float32 than torch's attention on a CPU."""


class ChunkRows:
    """A part of a prompt in this step: `tokens` from position `start` on."""

    __slots__ = ("blocks", "start", "tokens")

    def __init__(self, tokens: Sequence[int], start: int, blocks: Sequence[int]) -> None:
        self.tokens, self.start, self.blocks = tokens, start, blocks

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class StepAttention:
    """The attention of one step. All its tokens are in the store before any of them looks back, so a prompt
    may begin with blocks that another one computes in the same step."""

    def __init__(
        self,
        store: PagedStore,
        workspace: DecodeWorkspace,
        decodes: Sequence[DecodeRow],
        chunks: Sequence[ChunkRows],
    ) -> None:
        """`decodes` are in the order of their rows in `workspace`."""
        self._store, self._workspace = store, workspace
        self._device = store.layers[0].device
        self._count = len(decodes)
        parts = [store.slots(it.blocks, it.position, it.position + 1) for it in decodes]
        parts += [store.slots(it.blocks, it.start, it.end) for it in chunks]
        self._slots = torch.cat(parts).to(self._device)
        self._chunks = [self._chunk(chunk) for chunk in chunks]
        if decodes:
            self._see_rows(decodes)

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kv = kv.unflatten(1, (2, -1))
        self._store.layers[layer][self._slots] = kv
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

    def _chunk(self, chunk: ChunkRows) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
        """Its tokens, and where it starts within a prompt the slots of all so far and who sees whom."""
        count = len(chunk.tokens)
        if not chunk.start:
            return count, None, None
        slots = self._store.slots(chunk.blocks, 0, chunk.end).to(self._device)
        if count == 1:
            return count, slots, torch.ones(1, chunk.end, dtype=torch.bool, device=self._device)
        mask = torch.ones(count, chunk.end, dtype=torch.bool, device=self._device).tril(chunk.start)
        return count, slots, mask

    def _see_rows(self, decodes: Sequence[DecodeRow]) -> None:
        self._places = torch.arange(len(decodes), device=self._device)
        self._positions = torch.tensor([it.position for it in decodes], device=self._device)
        self._length = max(it.position for it in decodes) + 1
        hidden = torch.arange(self._length, device=self._device) > self._positions.unsqueeze(1)
        dtype = self._store.layers[0].dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, -math.inf)
        self._mask = mask[:, None, None]
        on_cpu = self._device.type == "cpu"
        self._plain = on_cpu and dtype == torch.float32 and len(decodes) >= MANY_ROWS

    def _decode(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Heads that share keys stand side by side, as if they were several queries."""
        rows = self._workspace.layers[layer]
        rows[:, self._places, :, self._positions] = kv
        keys, values = rows[:, : self._count, :, : self._length]
        grouped = queries.unflatten(1, (keys.shape[1], -1))
        if self._plain:
            scores = torch.matmul(grouped * grouped.shape[-1] ** -0.5, keys.transpose(-1, -2))
            seen = torch.matmul(scores.add_(self._mask).softmax(-1), values)
        else:
            seen = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)
        return seen.flatten(1, 2)


def _look_back(queries: torch.Tensor, past: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One prompt; without a mask it is at its beginning."""
    keys, values = past.permute(1, 2, 0, 3).unsqueeze(1)
    seen = F.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return seen[0].transpose(0, 1)
