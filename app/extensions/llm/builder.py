"""Builds the layers of a model from the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from app.extensions.llm.config import Checkpoint
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.int8 import Int8GatedLinear, Int8Linear, Int8Matrix
from app.extensions.llm.linear import GatedLinear, Linear, RmsNorm


class Builder:
    """Reads tensors, with a check of their shapes, into the engine's dtype and device.

    With `packed`, linear layers are packed for oneDNN. With `int8`, they are made of one float32
    tensor after the other. All methods raise ModelLoadError for a missing or misshapen tensor.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
        int8: bool,
    ) -> None:
        self.config = checkpoint.config
        self.device = device
        self.int8 = int8
        self._weights = checkpoint.weights
        self._interleaved = checkpoint.interleaved
        self._dtype = dtype
        self._packed = packed

    def linear(self, weights: Iterable[Tensor], bias: Tensor | None = None) -> Linear | Int8Linear:
        """Returns the layer of several weights, one below the other."""
        if self.int8:
            return Int8Linear(map(Int8Matrix.quantized, weights), bias)
        return Linear(torch.cat(list(weights)), bias, self._packed)

    def gated(self, gate: str, up: str, *shape: int) -> GatedLinear | Int8GatedLinear:
        """Returns the gated layer of the tensors called `gate` and `up`."""
        weights = (self.tensor(name, *shape) for name in (gate, up))
        if self.int8:
            return Int8GatedLinear(map(Int8Matrix.quantized, weights))
        return GatedLinear(*(Linear(weight, packed=self._packed) for weight in weights))

    def qkv(self, prefix: str) -> Linear | Int8Linear:
        """Returns the layer of queries, keys and values of the attention called `prefix`."""
        weights = (self._projection(prefix, part) for part in "qkv")
        biases = []
        for part in "qkv":
            heads = self._heads(part)
            bias = self.bias(f"{prefix}.{part}_proj.bias", heads * self.config.head_dim)
            if bias is not None:
                biases.append(self.interleave(bias, part, heads))
        if len(biases) < 3:
            return self.linear(weights)
        return self.linear(weights, torch.cat(biases))

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Returns the tensor `name`."""
        if name not in self._weights:
            raise ModelLoadError(f"The weights do not contain the tensor {name}.")
        tensor = self._weights[name]()
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"The tensor {name} has the shape {list(tensor.shape)}, "
                f"but the configuration requires {list(shape)}."
            )
        return tensor.to(device=self.device, dtype=self._dtype)

    def table(self, name: str, *shape: int) -> Tensor | Int8Matrix:
        """Returns an embedding or a head, which may be the same."""
        tensor = self.tensor(name, *shape)
        if self.int8:
            return Int8Matrix.quantized(tensor)
        return tensor

    def norm(self, name: str, size: int) -> RmsNorm:
        """Returns the norm of vectors of `size` numbers."""
        return RmsNorm(self.tensor(name, size), self.config.rms_norm_eps)

    def head_norm(self, name: str) -> RmsNorm:
        """Returns the norm of a rotated head."""
        weight = self.interleave(self.tensor(name, self.config.head_dim), "norm", 1)
        return RmsNorm(weight, self.config.rms_norm_eps)

    def bias(self, name: str, size: int) -> Tensor | None:
        """Returns the bias `name`; None if the model has none."""
        if name in self._weights:
            return self.tensor(name, size)
        return None

    def interleave(self, tensor: Tensor, part: str, heads: int) -> Tensor:
        """Returns a tensor whose rotary pairs are neighbors.

        Each head has the order (0, half, 1, half + 1, ...). Values, the `part` "v", are not
        rotated.
        """
        if self._interleaved or part == "v":
            return tensor
        shape = tensor.shape
        return tensor.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)

    def _projection(self, prefix: str, part: str) -> Tensor:
        heads = self._heads(part)
        weight = self.tensor(
            f"{prefix}.{part}_proj.weight", heads * self.config.head_dim, self.config.hidden_size
        )
        return self.interleave(weight, part, heads)

    def _heads(self, part: str) -> int:
        if part == "q":
            return self.config.num_heads
        return self.config.num_kv_heads
