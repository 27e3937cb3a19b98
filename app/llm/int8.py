"""Linear layers with weights of 8 bits, on CPUs.

Each output channel of a weight has a scale. Activations are float32; each product rounds them to
integers of 16 bits, row by row. Sums of integers are exact, so that a row's result does not depend
on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy
import torch
import torch.nn.functional as F

from app.llm.kernels import add_products, quantise

LARGEST_WEIGHT: Final = 127
LEAST_SCALE: Final = 1e-30


def largest_activation(size: int) -> int:
    """Returns the largest integer that activations become:

    sums of `size` products fit into 32 bits.
    """
    return min(2**15 - 1, (2**31 - 1) // (LARGEST_WEIGHT * size))


class Int8Matrix(NamedTuple):
    """`values` int8 [out, in] times `scales` float32 [out, 1]."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def quantized(cls, weight: torch.Tensor) -> Int8Matrix:
        """Quantises a float32 weight, which is overwritten."""
        largest = torch.linalg.vector_norm(weight, math.inf, -1, keepdim=True)
        scales = largest.div_(LARGEST_WEIGHT).clamp_min_(LEAST_SCALE)
        return cls(weight.div_(scales).round_().to(torch.int8), scales)

    @classmethod
    def stacked(cls, matrices: Iterable[Int8Matrix]) -> Int8Matrix:
        values, scales = zip(*matrices, strict=True)
        return (
            cls(torch.cat(values), torch.cat(scales))
            if len(values) > 1
            else cls(values[0], scales[0])
        )

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.values[numbers] * self.scales[numbers]


class Int8Linear:
    """x W' + b for float32 `x` [rows, in], with W of several matrices, one below the other."""

    def __init__(self, weights: Iterable[Int8Matrix], bias: torch.Tensor | None = None) -> None:
        weight = Int8Matrix.stacked(weights)
        self._values, self._scales = weight.values.numpy(), weight.scales[:, 0].numpy()
        self._channels, size = self._values.shape
        self._largest, self._bias = float(largest_activation(size)), bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.fused(x, x.new_zeros(len(x), self._channels), "add")

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """Returns x W' + b + other, in the memory of `other`; `operation` is "add"."""
        sums = other if self._bias is None else other.add_(self._bias)
        numbers = x.contiguous().numpy()
        values, steps = (
            numpy.empty(numbers.shape, numpy.int16),
            numpy.empty(len(numbers), numpy.float32),
        )
        quantise(numbers, numbers.view(numpy.int32), self._largest, values, steps)
        add_products(values, steps, self._values, self._scales, sums.numpy())
        return sums


class Int8GatedLinear(Int8Linear):
    """silu(x G') * (x U'), of the weights G and U."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = super().__call__(x).chunk(2, -1)
        return F.silu(gate).mul_(up)
