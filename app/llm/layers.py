"""What a decoder is made of: linear layers, packed where that is faster, norms and rotations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from app.llm.config import ModelConfig


class Linear:
    """x W' + b, perhaps with what comes after it in one go. `weight` is [out, in].

    On CPUs oneDNN multiplies by weights in an order of its own two to three times faster (`packed`).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, packed: bool = False) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if packed else weight
        self.bias = bias
        self.packed = packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """silu(x W' + b)."""
        if not self.packed:
            return F.silu(self(x))
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "swish", [], "")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """(x W' + b) * other."""
        return self._with(x, other, "mul") if self.packed else self(x).mul_(other)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """x W' + b + other."""
        return self._with(x, other, "add") if self.packed else self(x).add_(other)

    def _with(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, operation)


def packing_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN's layers, which are private to torch, are there and compute what `F.linear` does."""
    generator = torch.Generator().manual_seed(0)
    weight, x, other = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((24, 40), (5, 40), (5, 24))
    )
    try:
        packed, plain = Linear(weight, other[0], packed=True), Linear(weight, other[0])
        pairs = [
            (packed(x), plain(x)),
            (packed.silu(x), plain.silu(x)),
            (packed.times(x, other), plain.times(x, other)),
            (packed.plus(x, other), plain.plus(x, other)),
        ]
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    return all(torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance) for a, b in pairs)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32 inside, as the models were trained."""
    if x.dtype == torch.float32:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(eps)).mul(weight)
    wide = x.float()
    wide *= torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return wide.to(x.dtype) * weight


class Rope:
    """Rotations by position, of neighbouring pairs, in place."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device) -> None:
        half = range(0, config.head_dim, 2)
        plain = (config.rope_theta ** -(pair / config.head_dim) for pair in half)
        frequencies = torch.tensor([config.rope_scaling.frequency(it) for it in plain], dtype=torch.float32)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        self._turns = torch.polar(torch.ones_like(angles), angles).to(device)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """The turns of some tokens, for all their heads."""
        return self._turns[positions].unsqueeze(1)

    @staticmethod
    def turn(x: torch.Tensor, turns: torch.Tensor) -> None:
        """Rotate x: [tokens, heads, head_dim]."""
        if x.dtype == torch.float32:
            torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)
            return
        wide = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()).mul_(turns)
        x.copy_(torch.view_as_real(wide).flatten(-2))


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head so that pairs are neighbours: (0, half, 1, half + 1, ...)."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)
