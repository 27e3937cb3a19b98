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
from torch import Tensor
from torch.nn import functional

from app.extensions.llm.kernels import add_products, quantize

MAX_WEIGHT: Final = 127
MIN_SCALE: Final = 1e-30


class Int8Linear:
    """x W' + b for float32 `x` [rows, in], with W of several matrices, one below the other."""

    def __init__(self, weights: Iterable[Int8Matrix], bias: Tensor | None = None) -> None:
        weight = Int8Matrix.stacked(weights)
        self._values = weight.values.numpy()
        self._scales = weight.scales[:, 0].numpy()
        self._channels, input_size = self._values.shape
        self._max_activation = float(max_activation(input_size))
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x W' + b."""
        return self.fused(x, x.new_zeros(len(x), self._channels), "add")

    def fused(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        """Returns x W' + b + other, in the memory of `other`; `operation` is "add"."""
        sums = other
        if self._bias is not None:
            sums.add_(self._bias)
        inputs = x.contiguous().numpy()
        values = numpy.empty(inputs.shape, numpy.int16)
        steps = numpy.empty(len(inputs), numpy.float32)
        quantize(inputs, inputs.view(numpy.int32), self._max_activation, values, steps)
        add_products(values, steps, self._values, self._scales, sums.numpy())
        return sums


class Int8GatedLinear(Int8Linear):
    """silu(x G') * (x U'), of the weights G and U."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the gated product [rows, out]."""
        gate, up = super().__call__(x).chunk(2, -1)
        return functional.silu(gate).mul_(up)


class Int8Matrix(NamedTuple):
    """`values` int8 [out, in] times `scales` float32 [out, 1]."""

    values: Tensor
    scales: Tensor

    @classmethod
    def quantized(cls, weight: Tensor) -> Int8Matrix:
        """Quantizes a float32 weight, which is overwritten."""
        max_weights = torch.linalg.vector_norm(weight, math.inf, -1, keepdim=True)
        scales = max_weights.div_(MAX_WEIGHT).clamp_min_(MIN_SCALE)
        return cls(weight.div_(scales).round_().to(torch.int8), scales)

    @classmethod
    def stacked(cls, matrices: Iterable[Int8Matrix]) -> Int8Matrix:
        """Returns one matrix with the rows of all `matrices`."""
        values, scales = zip(*matrices, strict=True)
        if len(values) == 1:
            return cls(values[0], scales[0])
        return cls(torch.cat(values), torch.cat(scales))

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows of these `ids` as float32."""
        return self.values[ids] * self.scales[ids]


def max_activation(size: int) -> int:
    """Returns the largest integer of activations for which sums of `size` products fit 32 bits."""
    return min(2**15 - 1, (2**31 - 1) // (MAX_WEIGHT * size))
