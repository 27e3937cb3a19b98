"""The model: a decoder of the Llama family, run over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from app.extensions.llm.attention import StepAttention
from app.extensions.llm.builder import Builder
from app.extensions.llm.config import ModelConfig
from app.extensions.llm.int8 import Int8Linear, Int8Matrix
from app.extensions.llm.linear import Linear, RmsNorm


class Decoder:
    """Turns token ids into hidden states, and hidden states into logits."""

    def __init__(self, builder: Builder, length: int) -> None:
        config = builder.config
        self.config = config
        self.embedding = builder.table(
            "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self.layers = [Layer(number, builder) for number in range(config.num_layers)]
        self.norm = builder.norm("model.norm.weight", config.hidden_size)
        self.head: Linear | Int8Linear
        head = self.embedding
        if not config.tied:
            head = builder.table("lm_head.weight", config.vocab_size, config.hidden_size)
        if isinstance(head, Int8Matrix):
            self.head = Int8Linear([head])
        else:
            self.head = builder.linear([head])
        self.rope = Rope(config, length, builder.device)

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: StepAttention,
        is_late: Callable[[float], bool],
    ) -> Tensor:
        """Returns the last hidden states.

        Drops the last chunk if `is_late` returns True after a share of the layers.
        """
        table = self.embedding
        rotations = self.rope.rotations(positions)
        if isinstance(table, Int8Matrix):
            x = table.rows(tokens)
        else:
            x = functional.embedding(tokens, table)
        for layer in self.layers:
            if is_late(layer.number / len(self.layers)):
                count = attention.drop_last()
                x = x[:count]
                rotations = rotations[:count]
            x = layer(x, rotations, attention)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [tokens, vocabulary] of hidden states."""
        return self.head(self.norm(hidden)).float()


class Layer:
    """Attention and a gated MLP, each with a norm before and a residual connection."""

    def __init__(self, number: int, builder: Builder) -> None:
        config = builder.config
        self.number = number
        self.config = config
        prefix = f"model.layers.{number}"
        attention = f"{prefix}.self_attn"
        mlp = f"{prefix}.mlp"
        hidden_size = config.hidden_size
        inner_size = config.intermediate_size
        query_size = config.num_heads * config.head_dim
        self.attention_norm = builder.norm(f"{prefix}.input_layernorm.weight", hidden_size)
        self.mlp_norm = builder.norm(f"{prefix}.post_attention_layernorm.weight", hidden_size)
        self.qkv = builder.qkv(attention)
        self.head_norms: list[RmsNorm] = []
        """Norms of queries and of keys; only Qwen3 has them."""
        if config.architecture == "qwen3":
            for part in "qk":
                self.head_norms.append(builder.head_norm(f"{attention}.{part}_norm.weight"))
        self.output = builder.linear(
            [builder.tensor(f"{attention}.o_proj.weight", hidden_size, query_size)],
            builder.bias(f"{attention}.o_proj.bias", hidden_size),
        )
        self.gated = builder.gated(
            f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight", inner_size, hidden_size
        )
        self.down = builder.linear(
            [builder.tensor(f"{mlp}.down_proj.weight", hidden_size, inner_size)]
        )

    def __call__(self, x: Tensor, rotations: Tensor, attention: StepAttention) -> Tensor:
        """Returns the hidden states after this layer."""
        config = self.config
        heads = self.qkv(self.attention_norm(x)).view(len(x), -1, config.head_dim)
        queries = heads[:, : config.num_heads]
        kv = heads[:, config.num_heads :]
        if self.head_norms:
            keys = kv[:, : config.num_kv_heads]
            for part, norm in zip((queries, keys), self.head_norms, strict=True):
                part.copy_(norm(part))
        Rope.rotate(heads[:, : config.num_heads + config.num_kv_heads], rotations)
        attended = attention(self.number, queries, kv).reshape(len(x), -1)
        x = self.output.fused(attended, x, "add")
        return self.down.fused(self.gated(self.mlp_norm(x)), x, "add")


class Rope:
    """Rotary embeddings of neighboring pairs, applied in place."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device) -> None:
        frequencies = []
        for pair in range(0, config.head_dim, 2):
            frequency = config.rope_theta ** -(pair / config.head_dim)
            frequencies.append(config.rope_scaling.frequency(frequency))
        angles = torch.outer(
            torch.arange(length, dtype=torch.float32),
            torch.tensor(frequencies, dtype=torch.float32),
        )
        self._rotations = torch.polar(torch.ones_like(angles), angles).to(device)

    def rotations(self, positions: Tensor) -> Tensor:
        """Returns the rotations [tokens, 1, pairs] for tokens at `positions`."""
        return self._rotations[positions].unsqueeze(1)

    @staticmethod
    def rotate(x: Tensor, rotations: Tensor) -> None:
        """Rotates `x` [tokens, heads, head_dim] in place."""
        if x.dtype == torch.float32:
            torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotations)
            return
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        x.copy_(torch.view_as_real(pairs.mul_(rotations)).flatten(-2))
