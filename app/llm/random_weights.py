"""A tiny model with random weights, made on the fly: what it says is noise, and how it runs is real."""

from __future__ import annotations

from typing import Final

import torch

from app.llm.config import Checkpoint, ModelConfig
from app.llm.errors import ModelLoadError

TINY: Final = ModelConfig(
    architecture="llama",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position=4096,
    tied=True,
)


class RandomWeights:
    """The tensors of a Llama with tied embeddings; the same ones each time."""

    interleaved = False

    def __init__(self, config: ModelConfig, seed: int = 1) -> None:
        self._shapes = _shapes(config)
        self._seed = seed

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def get(self, name: str) -> torch.Tensor:
        if name not in self._shapes:
            raise ModelLoadError(f"The weights lack the tensor {name}.")
        place = list(self._shapes).index(name)
        generator = torch.Generator().manual_seed(self._seed + place)
        return torch.randn(self._shapes[name], generator=generator) * 0.2


def tiny_checkpoint() -> Checkpoint:
    return Checkpoint(TINY, RandomWeights(TINY))


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    attended = config.num_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (attended, hidden),
        "self_attn.k_proj": (config.kv_size, hidden),
        "self_attn.v_proj": (config.kv_size, hidden),
        "self_attn.o_proj": (hidden, attended),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(config.num_layers)
        for name, shape in layer.items()
    }
    return shapes | {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
