"""Weights as GGUF files hold them, to float32: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Quantised weights come in blocks of 32 of a row, each with its own scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Encoding:
    """`decode` takes bytes as [blocks, block_bytes] and gives float32 as [blocks, block_size], a copy."""

    name: str
    block_size: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor]


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda blocks: blocks.view(dtype).to(torch.float32, copy=True)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """A scale and 32 signed bytes."""
    return blocks[:, 2:].view(torch.int8) * _halves(blocks, 1)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """A scale and 32 half bytes, of which 8 is zero."""
    return (_half_bytes(blocks[:, 2:]) - 8).mul_(_halves(blocks, 1))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """A scale, a least value and 32 half bytes above it."""
    scale, least = _halves(blocks, 2).split(1, dim=1)
    return _half_bytes(blocks[:, 4:]).mul_(scale).add_(least)


def _halves(blocks: torch.Tensor, count: int) -> torch.Tensor:
    """The float16 numbers with which blocks begin."""
    return blocks[:, : 2 * count].contiguous().view(torch.float16).float()


def _half_bytes(packed: torch.Tensor) -> torch.Tensor:
    """The lower halves of all bytes of a block, then the upper ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1).float()


ENCODINGS: Final[Mapping[int, Encoding]] = {
    0: Encoding("F32", 1, 4, _plain(torch.float32)),
    1: Encoding("F16", 1, 2, _plain(torch.float16)),
    2: Encoding("Q4_0", 32, 18, _q4_0),
    3: Encoding("Q4_1", 32, 20, _q4_1),
    8: Encoding("Q8_0", 32, 34, _q8_0),
    30: Encoding("BF16", 1, 2, _plain(torch.bfloat16)),
}
"""By their numbers in the files."""
