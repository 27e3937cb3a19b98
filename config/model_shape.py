"""What a model's `config.json` (of Hugging Face) says of its size: weights, heads, experts, bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError
from config.validation import suggestion

Size: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 24)]

MATRICES: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "GemmaForCausalLM",
            "Gemma2ForCausalLM",
            "Gemma3ForCausalLM",
            "GptOssForCausalLM",
            "GraniteForCausalLM",
            "GraniteMoeForCausalLM",
            "Olmo2ForCausalLM",
            "OlmoeForCausalLM",
            "Phi3ForCausalLM",
            "SmolLM3ForCausalLM",
        ),
        3,
    ),
    **dict.fromkeys(("GPTNeoXForCausalLM", "PhiForCausalLM", "Starcoder2ForCausalLM"), 2),
}
"""Architectures whose layers are attention over keys and values and a network of so many matrices."""


class _Scheme(Struct):
    num_bits: Annotated[int, Meta(ge=1, le=16)] = 8
    group_size: int | None = None


class _Group(Struct):
    weights: _Scheme | None = None
    input_activations: _Scheme | None = None


class Quantization(Struct):
    """`quantization_config`, as far as it is looked at."""

    quant_method: str
    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    group_size: int = 0
    load_in_8bit: bool = False
    quant_algo: str = ""
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: _Scheme | None = None


class ModelShape(Struct, kw_only=True):
    """The fields that are looked at, with their names."""

    architectures: Annotated[list[str], Meta(min_length=1)]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)]
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Size
    max_position_embeddings: Size
    intermediate_size: Size
    num_key_value_heads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    head_dim: Annotated[int, Meta(ge=1, le=1024)] | None = None
    tie_word_embeddings: bool = False
    num_experts: Annotated[int, Meta(ge=0, le=4096)] | None = None
    num_local_experts: Annotated[int, Meta(ge=0, le=4096)] | None = None
    num_experts_per_tok: Annotated[int, Meta(ge=1, le=4096)] | None = None
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1
    mlp_only_layers: list[int] = []
    quantization_config: Quantization | None = None

    @property
    def heads_kv(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def matrices(self) -> int:
        """Of a layer's network, or of an expert."""
        return MATRICES[self.architectures[0]]

    @property
    def experts(self) -> int:
        return self.num_experts or self.num_local_experts or 0

    @property
    def experts_a_token(self) -> int:
        return self.num_experts_per_tok or 1

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        if not self.experts:
            return 0
        step, dense = self.decoder_sparse_step, set(self.mlp_only_layers)
        return sum((layer + 1) % step == 0 for layer in range(self.num_hidden_layers) if layer not in dense)

    @property
    def expert_weights(self) -> int:
        """Of one expert."""
        return self.matrices * self.hidden_size * (self.moe_intermediate_size or self.intermediate_size)

    @property
    def shared_weights(self) -> int:
        """Those of the projections that every token needs, experts apart."""
        width, sparse = self.hidden_size, self.sparse_layers
        projected = self.num_attention_heads * self.head_size
        attention = width * (projected + 2 * self.heads_kv * self.head_size) + projected * width
        dense = self.matrices * width * self.intermediate_size
        beside = width * self.experts + self.matrices * width * self.shared_expert_intermediate_size
        layers = self.num_hidden_layers
        return layers * attention + (layers - sparse) * dense + sparse * beside


def read_model_shape(path: str) -> ModelShape:
    """The shape in a file, or in a model's folder. ConfigError names it and what is wrong with it."""
    try:
        file = Path(path)
        document = msgspec.json.decode((file / "config.json" if file.is_dir() else file).read_bytes())
    except OSError as error:
        raise ConfigError(f"model config {path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"model config {path}: is not JSON: {error}") from None
    return model_shape(document, f"model config {path}")


def model_shape(document: object, named: str = "model config") -> ModelShape:
    """The shape in what a `config.json` holds; `named` begins the line of a ConfigError."""
    if isinstance(document, dict):
        _check_architecture(document.get("architectures"), named)
    try:
        shape = msgspec.convert(document, ModelShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{named}: {error}") from None
    if shape.head_dim is None and shape.hidden_size % shape.num_attention_heads:
        raise ConfigError(
            f"{named}: hidden_size ({shape.hidden_size}) must be a multiple of num_attention_heads"
            f" ({shape.num_attention_heads}), or head_dim be given"
        )
    if shape.heads_kv > shape.num_attention_heads:
        raise ConfigError(
            f"{named}: num_key_value_heads ({shape.heads_kv}) must not be more than num_attention_heads"
        )
    if shape.experts and shape.experts_a_token > shape.experts:
        raise ConfigError(f"{named}: num_experts_per_tok ({shape.experts_a_token}) is more than the experts")
    return shape


def _check_architecture(given: object, named: str) -> None:
    """Before all else: the fields of another architecture may have other names."""
    name = given[0] if isinstance(given, list) and given else None
    if isinstance(name, str) and name not in MATRICES:
        hint = suggestion(name, names=MATRICES) or f"; known are {', '.join(MATRICES)}"
        raise ConfigError(f"{named}: architectures: {name} is none that a data sheet can tell of{hint}")
