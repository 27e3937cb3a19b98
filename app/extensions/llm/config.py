"""Sizes of a model, from config.json or the head of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from app.extensions.llm.errors import ModelLoadError
from vllm_facts.model_shape import ModelShape, architecture_of, text_fields

if TYPE_CHECKING:
    from torch import Tensor

    from app.extensions.llm.gguf_file import GGUFFile

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Supported architectures: the names of transformers, and the short ones."""
ROPE_TYPES: Final = ("default", "linear", "llama3")
Size: TypeAlias = Annotated[int, Meta(ge=1)]


class RopeScaling(Struct, frozen=True, kw_only=True):
    """Scaling of the rotary frequencies, for texts longer than in training."""

    kind: str = field(default="default", name="rope_type")
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = field(default=8192, name="original_max_position_embeddings")

    def frequency(self, frequency: float) -> float:
        """Returns the scaled `frequency`."""
        if self.kind == "linear":
            return frequency / self.factor
        if self.kind != "llama3":
            return frequency
        wavelength = 2 * math.pi / frequency
        ratio = self.original_length / wavelength - self.low_freq_factor
        smooth = min(1.0, max(0.0, ratio / (self.high_freq_factor - self.low_freq_factor)))
        return (1 - smooth) * frequency / self.factor + smooth * frequency


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder of the Llama family.

    `field` has the hub's name where it differs.

    Raises:
        ModelLoadError: The heads cannot be shared or rotated.
    """

    architecture: str
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_layers: Size = field(name="num_hidden_layers")
    num_heads: Size = field(name="num_attention_heads")
    num_kv_heads: Size = field(name="num_key_value_heads")
    head_dim: Size
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_position: int = field(default=2048, name="max_position_embeddings")
    tied: bool = field(default=False, name="tie_word_embeddings")
    """True when the output head is the embedding; by default not, for Qwen and for Llama."""
    rope_scaling: RopeScaling = RopeScaling()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"The number of heads ({self.num_heads}) must be a multiple of the number of KV "
                f"heads ({self.num_kv_heads})."
            )
        if self.head_dim % 2:
            raise ModelLoadError(f"The head size must be even, got {self.head_dim}.")

    @property
    def kv_size(self) -> int:
        """Numbers in the keys of a token in one layer; its values have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without norms and biases, which are few."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        tables = 2
        if self.tied:
            tables = 1
        return self.num_layers * layer + tables * self.vocab_size * self.hidden_size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Configuration and weights of a model.

    `file` is its GGUF file, whose head holds the tokenizer. `weights` read each tensor, by the
    hub's names for Llama's. With `interleaved`, rotary pairs of queries and keys are neighbors,
    else they are half a head apart.
    """

    config: ModelConfig
    weights: Mapping[str, Callable[[], Tensor]]
    interleaved: bool = False
    eos_token_ids: frozenset[int] = frozenset()
    file: GGUFFile | None = None


def read_config(document: Mapping[str, object]) -> ModelConfig:
    """Reads a config.json of transformers 4 or 5.

    Version 4 has rope_theta and torch_dtype, version 5 rope_parameters and dtype.

    Raises:
        ModelLoadError: The model is not supported, or a size is impossible.
    """
    fields = text_fields(document)
    architecture = _architecture(fields)
    if fields.get("use_sliding_window"):
        raise ModelLoadError("Sliding-window attention is not supported.")
    if fields.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(
            f"The activation {fields['hidden_act']} is not supported; it must be silu."
        )
    rope = _rope_parameters(fields)
    if "rope_theta" in rope:
        fields["rope_theta"] = rope["rope_theta"]
    fields |= {"architecture": architecture, "rope_scaling": rope}
    try:
        shape = msgspec.convert(fields, ModelShape)
        fields |= {"num_key_value_heads": shape.num_key_value_heads, "head_dim": shape.head_dim}
        return msgspec.convert(fields, ModelConfig)
    except msgspec.ValidationError as error:
        raise ModelLoadError(f"The model's configuration is invalid: {error}.") from error


def _architecture(fields: Mapping[str, object]) -> str:
    """Returns the short name of the architecture. Raises ModelLoadError for an unsupported one."""
    name = architecture_of(fields) or fields.get("model_type")
    for full_name, short_name in ARCHITECTURES.items():
        if name in (full_name, short_name):
            return short_name
    raise ModelLoadError(
        f"The architecture {name} is not supported; use one of {', '.join(ARCHITECTURES)}."
    )


def _rope_parameters(fields: Mapping[str, object]) -> dict[str, object]:
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling")
    rope: dict[str, object] = {}
    if isinstance(parameters, dict):
        rope.update(parameters)
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelLoadError(
            f"RoPE of type {kind} is not supported; use one of {', '.join(ROPE_TYPES)}."
        )
    return rope
