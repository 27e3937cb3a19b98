"""Linear layers and norms of a model, for tensors of floats."""

from __future__ import annotations

from typing import Final

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from app.extensions.llm.kernels import multiply_bfloat16, normalize

LOOP_ROWS: Final = 8
"""Maximum rows of a product for a loop; with more rows, converting the weights is faster."""
CONVERTED_ROWS: Final = 2048
"""Rows of a weight that are float32 at a time, so that they stay in the cache of a CPU."""


class Linear:
    """x W' + b, optionally fused with the next operation. `weight` is [out, in].

    `packed` reorders the weights for oneDNN, which makes products on CPUs two to three times
    faster.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, packed: bool = False) -> None:
        if packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.weight = weight
        self.bias = bias
        self.packed = packed

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x W' + b."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        if len(x) > 1 and x.device.type == "cpu" and x.dtype == torch.bfloat16:
            return _float32_product(x, self.weight, self.bias)
        return functional.linear(x, self.weight, self.bias)

    def fused(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        """Returns (x W' + b) * other for the operation "mul", and with + for "add"."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(
                x, other, self.weight, self.bias, operation
            )
        if operation == "mul":
            return self(x).mul_(other)
        return self(x).add_(other)


class GatedLinear:
    """silu(x G') * (x U')."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self.gate = gate
        self.up = up

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the gated product [rows, out]."""
        return self.up.fused(x, functional.silu(self.gate(x), inplace=True), "mul")


class RmsNorm:
    """Normalizes the last dimension in float32, as in the models' training."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight.float()
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Returns `x`, normalized, in its dtype."""
        if x.device.type != "cpu":
            shape = self._weight.shape
            return functional.rms_norm(x.float(), shape, self._weight, self._eps).to(x.dtype)
        weight = self._weight.numpy()
        numbers = x.float().contiguous().numpy()
        normed = numpy.empty_like(numbers)
        rows = numbers.reshape(-1, len(weight))
        normalize(rows, weight, self._eps, normed.reshape(rows.shape))
        return torch.from_numpy(normed).type_as(x)


def packing_works(dtype: torch.dtype) -> bool:
    """Returns True if oneDNN layers, private to torch, exist and compute as torch does."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((24, 40), generator=generator).to(dtype)
    x = torch.randn((5, 40), generator=generator).to(dtype)
    other = torch.randn((5, 24), generator=generator).to(dtype)
    tolerance = 0.1
    if dtype == torch.float32:
        tolerance = 1e-4
    try:
        packed = Linear(weight, other[0], packed=True)
        plain = Linear(weight, other[0])
        pairs = [
            (packed(x), plain(x)),
            (packed.fused(x, other, "mul"), plain.fused(x, other, "mul")),
            (packed.fused(x, other, "add"), plain.fused(x, other, "add")),
        ]
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    for a, b in pairs:
        if not torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance):
            return False
    return True


def _float32_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies in float32.

    CPUs that cannot pack bfloat16 take four times as long to multiply its rows.
    """
    wide = x.float()
    if len(x) <= LOOP_ROWS:
        product = wide.new_empty(len(x), len(weight))
        multiply_bfloat16(
            wide.contiguous().numpy(), weight.view(torch.uint16).numpy(), product.numpy()
        )
    else:
        parts = [functional.linear(wide, rows.float()) for rows in weight.split(CONVERTED_ROWS)]
        product = torch.cat(parts, -1)
    if bias is not None:
        product.add_(bias)
    return product.to(x.dtype)
