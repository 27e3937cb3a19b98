"""The model: a decoder of the Llama family, run over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy
import torch
import torch.nn.functional as F

from app.llm.attention import StepAttention
from app.llm.config import Checkpoint, ModelConfig
from app.llm.errors import ModelLoadError
from app.llm.int8 import Int8GatedLinear, Int8Linear, Int8Matrix
from app.llm.kernels import multiply_bfloat16, normalize


class Linear:
    """x W' + b, optionally fused with the next operation. `weight` is [out, in].

    `packed` reorders the weights for oneDNN, which makes products on CPUs two to three times
    faster.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, packed: bool = False
    ) -> None:
        self.weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if packed else weight
        )
        self.bias, self.packed = bias, packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        is_wide = len(x) > 1 and x.device.type == "cpu" and x.dtype == torch.bfloat16
        return (_wide_product if is_wide else F.linear)(x, self.weight, self.bias)

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """Returns (x W' + b) * other for the operation "mul", and with + for "add"."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(
                x, other, self.weight, self.bias, operation
            )
        return self(x).mul_(other) if operation == "mul" else self(x).add_(other)


FEW_ROWS: Final = 8
"""Most rows of a product for a loop; with more rows, converting the weights is faster."""
WIDE_ROWS: Final = 2048
"""Rows of a weight that are float32 at a time, so that they stay in the cache of a CPU."""


def _wide_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiplies in float32:

    CPUs that cannot pack bfloat16 take four times as long to multiply its rows.
    """
    wide = x.float()
    if len(x) <= FEW_ROWS:
        product = wide.new_empty(len(x), len(weight))
        multiply_bfloat16(
            wide.contiguous().numpy(), weight.view(torch.uint16).numpy(), product.numpy()
        )
    else:
        product = torch.cat([F.linear(wide, part.float()) for part in weight.split(WIDE_ROWS)], -1)
    return (product if bias is None else product.add_(bias)).to(x.dtype)


class GatedLinear:
    """silu(x G') * (x U')."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self.gate, self.up = gate, up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.up.fused(x, F.silu(self.gate(x), inplace=True), "mul")


def packing_works(dtype: torch.dtype) -> bool:
    """Returns True when oneDNN's layers, private to torch, exist and compute the same as
    `F.linear`.
    """
    generator = torch.Generator().manual_seed(0)
    weight, x, other = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((24, 40), (5, 40), (5, 24))
    )
    try:
        packed, plain = Linear(weight, other[0], packed=True), Linear(weight, other[0])
        pairs = [(packed.fused(x, other, it), plain.fused(x, other, it)) for it in ("mul", "add")]
        pairs.append((packed(x), plain(x)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    return all(
        torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance) for a, b in pairs
    )


class RmsNorm:
    """Normalizes the last dimension in float32, as in the models' training."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps = weight.float(), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            return F.rms_norm(x.float(), self._weight.shape, self._weight, self._eps).to(x.dtype)
        weight, numbers = self._weight.numpy(), x.float().contiguous().numpy()
        normed, rows = numpy.empty_like(numbers), (-1, len(weight))
        normalize(numbers.reshape(rows), weight, self._eps, normed.reshape(rows))
        return torch.from_numpy(normed).type_as(x)


class Rope:
    """Rotary embeddings of neighbouring pairs, applied in place."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device) -> None:
        half = range(0, config.head_dim, 2)
        plain = (config.rope_theta ** -(pair / config.head_dim) for pair in half)
        frequencies = torch.tensor(
            [config.rope_scaling.frequency(it) for it in plain], dtype=torch.float32
        )
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        self._turns = torch.polar(torch.ones_like(angles), angles).to(device)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        return self._turns[positions].unsqueeze(1)

    @staticmethod
    def turn(x: torch.Tensor, turns: torch.Tensor) -> None:
        """Rotates `x` [tokens, heads, head_dim] in place."""
        if x.dtype == torch.float32:
            torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)
            return
        wide = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()).mul_(turns)
        x.copy_(torch.view_as_real(wide).flatten(-2))


class Builder:
    """Reads tensors, with a check of their shapes, into the engine's dtype and device, and builds
    layers.

    `int8` layers are made of one float32 tensor after the other.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool,
        int8: bool,
    ) -> None:
        self.config, self._weights, self.int8 = checkpoint.config, checkpoint.weights, int8
        self._interleaved, self._dtype, self._packed = checkpoint.interleaved, dtype, packed
        self.device = device

    def linear(
        self, weights: Iterable[torch.Tensor], bias: torch.Tensor | None = None
    ) -> Linear | Int8Linear:
        """Returns the layer of several weights, one below the other."""
        if self.int8:
            return Int8Linear(map(Int8Matrix.quantized, weights), bias)
        return Linear(torch.cat(list(weights)), bias, self._packed)

    def gated(self, gate: str, up: str, *shape: int) -> GatedLinear | Int8GatedLinear:
        weights = (self.tensor(name, *shape) for name in (gate, up))
        if self.int8:
            return Int8GatedLinear(map(Int8Matrix.quantized, weights))
        return GatedLinear(*(Linear(weight, packed=self._packed) for weight in weights))

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self._weights:
            raise ModelLoadError(f"The weights lack the tensor {name}.")
        tensor = self._weights[name]()
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"The tensor {name} is {list(tensor.shape)}, the configuration says {list(shape)}."
            )
        return tensor.to(device=self.device, dtype=self._dtype)

    def table(self, name: str, *shape: int) -> torch.Tensor | Int8Matrix:
        """Reads an embedding or a head, which may be the same."""
        return (
            Int8Matrix.quantized(self.tensor(name, *shape))
            if self.int8
            else self.tensor(name, *shape)
        )

    def norm(self, name: str, size: int, turned_heads: int = 0) -> RmsNorm:
        weight = self.tensor(name, size)
        weight = self.turned(weight, "norm", turned_heads) if turned_heads else weight
        return RmsNorm(weight, self.config.rms_norm_eps)

    def bias(self, name: str, size: int) -> torch.Tensor | None:
        return self.tensor(name, size) if name in self._weights else None

    def turned(self, tensor: torch.Tensor, part: str, heads: int) -> torch.Tensor:
        """Returns a tensor whose rotary pairs are neighbours:

        (0, half, 1, half + 1, ...) of each head.
        """
        if self._interleaved or part == "v":
            return tensor
        shape = tensor.shape
        return tensor.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)


class Layer:
    """Attention and a gated MLP, each with a norm before and a residual connection."""

    def __init__(self, number: int, build: Builder) -> None:
        self.number, self.config = number, (config := build.config)
        layer, hidden, inner = (
            f"model.layers.{number}",
            config.hidden_size,
            config.intermediate_size,
        )
        name, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        self.attention_norm = build.norm(f"{layer}.input_layernorm.weight", hidden)
        self.mlp_norm = build.norm(f"{layer}.post_attention_layernorm.weight", hidden)
        parts = ("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)
        matrices = (
            build.turned(
                build.tensor(f"{name}.{part}_proj.weight", heads * config.head_dim, hidden),
                part,
                heads,
            )
            for part, heads in parts
        )
        biases = [
            build.turned(bias, part, heads)
            for part, heads in parts
            if (bias := build.bias(f"{name}.{part}_proj.bias", heads * config.head_dim)) is not None
        ]
        self.qkv = build.linear(matrices, torch.cat(biases) if len(biases) == 3 else None)
        self.head_norms: list[RmsNorm] = []
        """Norms of queries and of keys; Qwen3 alone has them."""
        if config.architecture == "qwen3":
            self.head_norms = [
                build.norm(f"{name}.{part}_norm.weight", config.head_dim, 1) for part in "qk"
            ]
        heads, bias = config.num_heads * config.head_dim, build.bias(f"{name}.o_proj.bias", hidden)
        self.output = build.linear([build.tensor(f"{name}.o_proj.weight", hidden, heads)], bias)
        self.gated = build.gated(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight", inner, hidden)
        self.down = build.linear([build.tensor(f"{mlp}.down_proj.weight", hidden, inner)])

    def __call__(
        self, x: torch.Tensor, turns: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        config = self.config
        heads = self.qkv(self.attention_norm(x)).view(len(x), -1, config.head_dim)
        turning = heads[:, : config.num_heads + config.num_kv_heads]
        queries, kv = heads[:, : config.num_heads], heads[:, config.num_heads :]
        if self.head_norms:
            keys = kv[:, : config.num_kv_heads]
            for part, norm in zip((queries, keys), self.head_norms, strict=True):
                part.copy_(norm(part))
        Rope.turn(turning, turns)
        x = self.output.fused(attention(self.number, queries, kv).reshape(len(x), -1), x, "add")
        return self.down.fused(self.gated(self.mlp_norm(x)), x, "add")


class Decoder:
    """Turns token ids into hidden states, and hidden states into logits."""

    def __init__(self, build: Builder, length: int) -> None:
        self.config = config = build.config
        shape = config.vocab_size, config.hidden_size
        self.embedding = build.table("model.embed_tokens.weight", *shape)
        self.layers = [Layer(number, build) for number in range(config.num_layers)]
        self.norm = build.norm("model.norm.weight", config.hidden_size)
        head = self.embedding if config.tied else build.table("lm_head.weight", *shape)
        self.head = Int8Linear([head]) if isinstance(head, Int8Matrix) else build.linear([head])
        self.rope = Rope(config, length, build.device)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        is_late: Callable[[float], bool],
    ) -> torch.Tensor:
        """Returns the last hidden states; drops the last chunk if, after a share of layers, it
        `is_late`.
        """
        table, turns = self.embedding, self.rope.at(positions)
        x = table.rows(tokens) if isinstance(table, Int8Matrix) else F.embedding(tokens, table)
        for layer in self.layers:
            if is_late(layer.number / len(self.layers)):
                count = attention.drop_last()
                x, turns = x[:count], turns[:count]
            x = layer(x, turns, attention)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(hidden)).float()
