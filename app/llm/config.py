"""Sizes of a model, from config.json or the head of a GGUF file, and the interface of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from app.llm.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

    from app.llm.gguf_file import GGUFFile

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ROPE_TYPES: Final = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of the rotary frequencies, for texts longer than in training."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def frequency(self, frequency: float) -> float:
        if self.kind == "linear":
            return frequency / self.factor
        if self.kind != "llama3":
            return frequency
        wave = 2 * math.pi / frequency
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = min(1.0, max(0.0, (self.original_length / wave - low) / (high - low)))
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    tied: bool
    """True when the output head is the embedding."""
    dtype: str = "float32"
    """Data type of the stored weights."""
    rope_scaling: RopeScaling = RopeScaling()

    @property
    def qk_norm(self) -> bool:
        return self.architecture == "qwen3"

    @property
    def kv_size(self) -> int:
        """Numbers in the keys of a token in one layer; its values have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without norms and biases, which are few."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        heads = 1 if self.tied else 2
        return self.num_layers * layer + heads * self.vocab_size * self.hidden_size

    def kv_bytes(self, element_bytes: int) -> int:
        """Returns the memory of a token's keys and values in all layers."""
        return 2 * self.num_layers * self.kv_size * element_bytes

    def __post_init__(self) -> None:
        sizes = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        ]
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelLoadError(f"The model's configuration has {name} {getattr(self, name)}.")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"{self.num_heads} heads do not share {self.num_kv_heads} KV heads evenly.")
        if self.head_dim % 2:
            raise ModelLoadError(f"Heads of {self.head_dim} numbers cannot be rotated in pairs.")


class Weights(Protocol):
    """Tensors by the names of Llama's tensors on the hub."""

    interleaved: bool
    """True when rotary pairs of queries and keys are neighbours; False when they are half a head apart."""

    def __contains__(self, name: object) -> bool: ...

    def get(self, name: str) -> torch.Tensor:
        """Returns a tensor. Raises ModelLoadError for a missing one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Configuration and weights of a model; `file` is its GGUF file, whose head holds the tokenizer."""

    config: ModelConfig
    weights: Weights
    eos_token_ids: frozenset[int] = frozenset()
    file: GGUFFile | None = None


def read_config(config: Mapping[str, object]) -> ModelConfig:
    """Reads a config.json of transformers 4 (rope_theta, torch_dtype) or 5 (rope_parameters, dtype)."""
    architecture = _architecture(config)
    if config.get("use_sliding_window"):
        raise ModelLoadError("Sliding window attention is not supported.")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"The activation {config['hidden_act']} is not supported, only silu.")
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    rope = _mapping(config, "rope_parameters") or _mapping(config, "rope_scaling")
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    # Embeddings are not tied by default, in Qwen's configurations and in Llama's.
    return ModelConfig(
        architecture=architecture,
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_integer(config, "intermediate_size"),
        num_layers=_integer(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_integer(config, "num_key_value_heads", heads),
        head_dim=_integer(config, "head_dim", hidden // heads if heads > 0 else 0),
        rms_norm_eps=_number(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_number(theta),
        max_position=_integer(config, "max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=str(dtype).removeprefix("torch."),
        rope_scaling=_rope_scaling(rope),
    )


def _architecture(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else config.get("model_type")
    for full, short in ARCHITECTURES.items():
        if name in (full, short):
            return short
    raise ModelLoadError(f"The architecture {name} is not supported, only {', '.join(ARCHITECTURES)}.")


def _rope_scaling(rope: Mapping[str, object]) -> RopeScaling:
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in ROPE_TYPES:
        raise ModelLoadError(f"Rope of type {kind} is not supported, only {', '.join(ROPE_TYPES)}.")
    return RopeScaling(
        kind=kind,
        factor=_number(rope.get("factor", 1.0)),
        low_freq_factor=_number(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=_number(rope.get("high_freq_factor", 4.0)),
        original_length=int(_number(rope.get("original_max_position_embeddings", 8192))),
    )


def _mapping(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _integer(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int:
        raise ModelLoadError(f"The model's configuration has no number {name}.")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelLoadError(f"The model's configuration has {value!r} where a number should be.")
    return float(value)
