"""The model: a decoder of the Llama family, run over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from app.llm.config import ModelConfig, Weights
from app.llm.errors import ModelLoadError


class Linear:
    """x W' + b, optionally fused with the next operation. `weight` is [out, in].

    `packed` reorders the weights for oneDNN, which makes products on CPUs two to three times faster.
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
    """Returns True when oneDNN's layers, private to torch, exist and compute the same as `F.linear`."""
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
    """Normalizes in float32, as in the models' training."""
    if x.dtype == torch.float32:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(eps)).mul(weight)
    wide = x.float()
    wide *= torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return wide.to(x.dtype) * weight


class Rope:
    """Rotary embeddings of neighbouring pairs, applied in place."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device) -> None:
        half = range(0, config.head_dim, 2)
        plain = (config.rope_theta ** -(pair / config.head_dim) for pair in half)
        frequencies = torch.tensor([config.rope_scaling.frequency(it) for it in plain], dtype=torch.float32)
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


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of each head so that pairs are neighbours: (0, half, 1, half + 1, ...)."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)


class Attention(Protocol):
    """Attention of the tokens of one step to earlier tokens."""

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Stores `kv` [tokens, 2 * kv_heads, head_dim], and returns [tokens, heads, head_dim]."""


class Builder:
    """Reads tensors, with a check of their shapes, into the engine's dtype and device."""

    def __init__(
        self, config: ModelConfig, weights: Weights, convert: Callable[[torch.Tensor], torch.Tensor]
    ):
        self._config, self._weights, self._convert = config, weights, convert

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._fitted(name, (size,))

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        return self._fitted(name, (rows, columns))

    def bias(self, name: str, size: int) -> torch.Tensor | None:
        return self.vector(name, size) if name in self._weights else None

    def turned(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Returns a tensor whose rotary pairs are neighbours."""
        return tensor if self._weights.interleaved else interleave(tensor, heads)

    def _fitted(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._weights.get(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"The tensor {name} is {list(tensor.shape)}, the configuration says {list(shape)}."
            )
        return self._convert(tensor)


class Layer:
    """Attention and a gated MLP, each with a norm before and a residual connection."""

    def __init__(self, number: int, config: ModelConfig, build: Builder, packed: bool) -> None:
        self.number, self.config = number, config
        name, hidden, inner = f"model.layers.{number}", config.hidden_size, config.intermediate_size
        self.attention_norm = build.vector(f"{name}.input_layernorm.weight", hidden)
        self.mlp_norm = build.vector(f"{name}.post_attention_layernorm.weight", hidden)
        self.qkv = _fused_qkv(f"{name}.self_attn", config, build, packed)
        self.q_norm, self.k_norm = _head_norms(f"{name}.self_attn", config, build)
        attended = config.num_heads * config.head_dim
        self.output = Linear(
            build.matrix(f"{name}.self_attn.o_proj.weight", hidden, attended),
            build.bias(f"{name}.self_attn.o_proj.bias", hidden),
            packed,
        )
        self.gate = Linear(build.matrix(f"{name}.mlp.gate_proj.weight", inner, hidden), packed=packed)
        self.up = Linear(build.matrix(f"{name}.mlp.up_proj.weight", inner, hidden), packed=packed)
        self.down = Linear(build.matrix(f"{name}.mlp.down_proj.weight", hidden, inner), packed=packed)

    def __call__(self, x: torch.Tensor, turns: torch.Tensor, attention: Attention) -> torch.Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        heads = self.qkv(rms_norm(x, self.attention_norm, eps)).view(len(x), -1, config.head_dim)
        turning = heads[:, : config.num_heads + config.num_kv_heads]
        queries, kv = heads[:, : config.num_heads], heads[:, config.num_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            keys = kv[:, : config.num_kv_heads]
            queries.copy_(rms_norm(queries, self.q_norm, eps))
            keys.copy_(rms_norm(keys, self.k_norm, eps))
        Rope.turn(turning, turns)
        x = self.output.plus(attention(self.number, queries, kv).reshape(len(x), -1), x)
        y = rms_norm(x, self.mlp_norm, eps)
        return self.down.plus(self.up.times(y, self.gate.silu(y)), x)


def _fused_qkv(name: str, config: ModelConfig, build: Builder, packed: bool) -> Linear:
    matrices, biases = [], []
    for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
        rows = heads * config.head_dim
        matrix = build.matrix(f"{name}.{part}_proj.weight", rows, config.hidden_size)
        bias = build.bias(f"{name}.{part}_proj.bias", rows)
        matrices.append(matrix if part == "v" else build.turned(matrix, heads))
        if bias is not None:
            biases.append(bias if part == "v" else build.turned(bias, heads))
    return Linear(torch.cat(matrices), torch.cat(biases) if len(biases) == 3 else None, packed)


def _head_norms(
    name: str, config: ModelConfig, build: Builder
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if not config.qk_norm:
        return None, None
    q, k = (build.vector(f"{name}.{part}_norm.weight", config.head_dim) for part in "qk")
    return build.turned(q, 1), build.turned(k, 1)


class Decoder:
    """Turns token ids into hidden states, and hidden states into logits."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool = False,
    ) -> None:
        self.config = config
        build = Builder(config, weights, lambda tensor: tensor.to(device=device, dtype=dtype))
        shape = config.vocab_size, config.hidden_size
        self.embedding = build.matrix("model.embed_tokens.weight", *shape)
        self.layers = [Layer(number, config, build, packed) for number in range(config.num_layers)]
        self.norm = build.vector("model.norm.weight", config.hidden_size)
        head = self.embedding if config.tied else build.matrix("lm_head.weight", *shape)
        self.head = Linear(head, packed=packed)
        self.rope = Rope(config, length, device)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        on_layer: Callable[[], object],
    ) -> torch.Tensor:
        """Returns the last hidden states of all tokens of a step; calls `on_layer` before each layer."""
        x, turns = F.embedding(tokens, self.embedding), self.rope.at(positions)
        for layer in self.layers:
            on_layer()
            x = layer(x, turns, attention)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(rms_norm(hidden, self.norm, self.config.rms_norm_eps)).float()
