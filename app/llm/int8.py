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

LARGEST: Final = 127 if torch.cpu._is_vnni_supported() else 63
"""Greatest activation: without VNNI, FBGEMM adds pairs of products in 16 bits, exact for 7 bits each."""
ZERO: Final = LARGEST + 1
"""Zero point of activations, which have no sign in FBGEMM."""
LEAST_STEP: Final = 1e-30
_LARGEST, _TWICE = torch.tensor(float(LARGEST)), torch.tensor(2.0 * LARGEST)
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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(-1, keepdim=True).div_(_LARGEST).clamp_min_(LEAST_STEP)
        numbers = x / step
        rounded = numbers.round()  # FBGEMM would round some numbers in the middle the other way
        # One number of 8 bits is too coarse, so a second row has the rest of each.
        rest = numbers.sub_(rounded).mul_(_TWICE)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        whole, part = multiply(torch.stack((rounded, rest)), 1.0, ZERO, self._packed)
        product: torch.Tensor = whole.add_(part, alpha=0.5 / LARGEST).mul_(step)
        return product if self._bias is None else product.add_(self._bias)

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
    weight, x = torch.eye(24, 40), torch.linspace(-1, 1, 200).view(5, 40)
    try:
        product = Int8Linear([Int8Matrix.quantized(weight.clone())])(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((product - x @ weight.T).abs().max() < 0.01)
