"""Linear layers with weights of 8 bits, by FBGEMM's products of integers, on CPUs.

Each output channel of a weight has a scale. Activations are float32; each product rounds them to integers,
row by row. Sums of integers are exact, so that a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F

HAS_VNNI: Final = bool(torch.cpu._is_vnni_supported())
"""Without these instructions FBGEMM adds pairs of products in 16 bits: exact for activations of 7 bits."""
BITS: Final = 8 if HAS_VNNI else 7
STEPS: Final = 2**BITS - 3
"""Steps from the least number of a row to the largest: two fewer than there are, as both are rounded."""
NUM_PARTS: Final = 1 if HAS_VNNI else 2
"""7 bits are too few: the rest of each number, which is below a step, is another row of 7 bits."""
LEAST_STEP: Final = 1e-30
_STEPS, _MIDDLE = torch.tensor(float(STEPS)), torch.tensor(STEPS // 2 + 1.0)
"""Tensors, because torch makes one of a number each time."""


class Int8Matrix(NamedTuple):
    """`values` int8 [out, in] times `scales` float32 [out, 1]."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def quantized(cls, weight: torch.Tensor) -> Int8Matrix:
        """Quantises a float32 weight, which is overwritten."""
        scales = torch.linalg.vector_norm(weight, math.inf, -1, keepdim=True).div_(127).clamp_min_(LEAST_STEP)
        return cls(weight.div_(scales).round_().to(torch.int8), scales)

    @classmethod
    def stacked(cls, matrices: Iterable[Int8Matrix]) -> Int8Matrix:
        values, scales = zip(*matrices, strict=True)
        return cls(torch.cat(values), torch.cat(scales)) if len(values) > 1 else cls(values[0], scales[0])

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.values[numbers] * self.scales[numbers]


class Int8Linear:
    """x W' + b for float32 `x` [rows, in], with W of several matrices, one below the other."""

    def __init__(self, weights: Iterable[Int8Matrix], bias: torch.Tensor | None = None) -> None:
        weight = Int8Matrix.stacked(weights)
        self._packed, self._bias = _pack(weight), bias
        self._sums = weight.values.sum(1, dtype=torch.int64) * weight.scales[:, 0]
        """The sum of each channel's weights [out]."""
        self._ends = torch.zeros(weight.values.shape[1])
        self._ends[0], self._ends[-1] = -(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)  # aminmax takes ten times as long
        step = high.sub_(low).div_(_STEPS).clamp_min_(LEAST_STEP)
        middle = low.div_(step).round_().add_(_MIDDLE)
        rows = x.new_empty(NUM_PARTS * count + 1, x.shape[1])
        rows[-1] = self._ends  # FBGEMM takes the range of all rows: these ends make its step 1
        numbers = torch.div(x, step, out=rows[:count]).sub_(middle).nan_to_num_()
        if NUM_PARTS == 2:
            torch.sub(numbers, numbers.round(), out=rows[count:-1]).mul_(_STEPS)
        products = torch.ops.quantized.linear_dynamic(rows, self._packed, not HAS_VNNI)
        whole: torch.Tensor = products[:count]
        if NUM_PARTS == 2:
            whole.add_(products[count:-1], alpha=1 / STEPS)
        whole.addcmul_(middle, self._sums).mul_(step)
        return whole if self._bias is None else whole.add_(self._bias)

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """Returns x W' + b + other; `operation` is "add"."""
        return self(x).add_(other)


class Int8GatedLinear(Int8Linear):
    """silu(x G') * (x U'), of the weights G and U."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = super().__call__(x).chunk(2, -1)
        return F.silu(gate).mul_(up)


def _pack(weight: Int8Matrix) -> torch.ScriptObject:
    """Returns FBGEMM's form of a weight."""
    scales, zeros = weight.scales[:, 0].double(), torch.zeros(len(weight.scales), dtype=torch.int64)
    backends = torch.backends.quantized
    before, backends.engine = backends.engine, "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces the end of its quantised tensors
            tensor = torch._make_per_channel_quantized_tensor(weight.values, scales, zeros, 0)
            return torch.ops.quantized.linear_prepack(tensor, None)
    finally:
        backends.engine = before


def int8_works() -> bool:
    """Returns True when FBGEMM is there and computes what float32 does."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(24, 40, generator=generator), torch.randn(5, 40, generator=generator)
    try:
        matrix = Int8Matrix.quantized(weight)
        product = Int8Linear([matrix])(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((product - x @ matrix.rows(torch.arange(24)).T).abs().max() < 0.3)
