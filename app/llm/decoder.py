"""The model: a decoder of the family of Llama, over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from app.llm.config import ModelConfig, Weights
from app.llm.errors import ModelLoadError
from app.llm.layers import Linear, Rope, interleave, rms_norm


class Attention(Protocol):
    """How the tokens of a step look back; made anew for each step."""

    def __call__(self, layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Keep [tokens, 2 * kv_heads, head_dim], and answer [tokens, heads, head_dim] with the same."""


class Builder:
    """Takes tensors, checked, in the dtype and on the device of the engine."""

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
        """In the order in which pairs are neighbours."""
        return tensor if self._weights.interleaved else interleave(tensor, heads)

    def _fitted(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._weights.get(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"The tensor {name} is {list(tensor.shape)}, the configuration says {list(shape)}."
            )
        return self._convert(tensor)


class Layer:
    """Attention and a gated MLP, each after a norm and added to what was before."""

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
    """Token ids to hidden states, and those to logits."""

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
        """The last hidden states of all tokens of a step; `on_layer` is called before each layer."""
        x, turns = F.embedding(tokens, self.embedding), self.rope.at(positions)
        for layer in self.layers:
            on_layer()
            x = layer(x, turns, attention)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(rms_norm(hidden, self.norm, self.config.rms_norm_eps)).float()
