"""Shapes of models: the facts of a `config.json` that a computed profile is made of."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError

UNKNOWN_PARTS: Mapping[str, str] = {
    "kv_lora_rank": "latent attention",
    "vision_config": "an encoder of images",
    "audio_config": "an encoder of audio",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "mamba_expand": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
}
"""Field of a `config.json` -> part of the model whose cost is not known."""
KNOWN_LAYERS = frozenset(("full_attention", "sliding_attention"))
GATED_NETWORKS = (
    "Llama",
    "Mistral",
    "Mixtral",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "Gemma",
    "Gemma2",
    "Gemma3",
    "GptOss",
    "Granite",
    "GraniteMoe",
    "MiniMaxM2",
    "Olmo2",
    "Olmoe",
    "Phi3",
    "SmolLM3",
)
"""Architectures whose feed-forward network has three matrices in each layer."""
PLAIN_NETWORKS = ("GPTNeoX", "Phi", "Starcoder2")
"""Architectures whose feed-forward network has two matrices in each layer."""
MATRICES: Mapping[str, int] = {
    **{f"{name}ForCausalLM": 3 for name in GATED_NETWORKS},
    **{f"{name}ForCausalLM": 2 for name in PLAIN_NETWORKS},
}
"""Architecture -> matrices of a layer's feed-forward network."""

Size: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 24)]


class _Scheme(Struct):
    num_bits: Annotated[int, Meta(ge=1, le=16)] = 8
    group_size: int | None = None


class _Group(Struct):
    weights: _Scheme
    input_activations: _Scheme | None = None


class Quantization(Struct):
    """Fields of `quantization_config` in use."""

    quant_method: str
    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    group_size: int = 0
    quant_algo: str = ""
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: _Scheme | str | None = None
    kv_cache_quant_algo: str | None = None
    weight_block_size: list[int] | None = None

    @property
    def has_8bit_cache(self) -> bool:
        """True if the checkpoint declares keys and values in fp8, as vLLM reads it."""
        scheme = self.kv_cache_scheme
        if isinstance(scheme, _Scheme):
            return scheme.num_bits == 8
        return "fp8" in (scheme or self.kv_cache_quant_algo or "").lower()


class ModelShape(Struct, kw_only=True):
    """Fields of `config.json` in use, by their names."""

    architectures: Annotated[list[str], Meta(min_length=1)]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)]
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Size
    max_position_embeddings: Size
    intermediate_size: Size
    num_key_value_heads: Annotated[int, Meta(ge=1, le=1024)] = 0
    head_dim: Annotated[int, Meta(ge=1, le=1024)] = 0
    tie_word_embeddings: bool = False
    num_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_local_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_experts_per_tok: Annotated[int, Meta(ge=1, le=4096)] = 1
    moe_intermediate_size: Size = 0
    shared_expert_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1
    mlp_only_layers: list[int] = []
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    layer_types: list[str] = []
    quantization_config: Quantization | None = None

    def __post_init__(self) -> None:
        """Fills in absent fields.

        Raises:
            ValueError: Fields contradict each other.
        """
        heads = self.num_attention_heads
        if not self.head_dim and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads"
                f" ({heads}), or head_dim must be given"
            )
        if self.num_key_value_heads > heads:
            raise ValueError(
                f"num_key_value_heads ({self.num_key_value_heads}) must not exceed"
                " num_attention_heads"
            )
        self.head_dim = self.head_dim or self.hidden_size // heads
        self.num_key_value_heads = self.num_key_value_heads or heads
        self.num_experts = self.num_experts or self.num_local_experts
        self.moe_intermediate_size = self.moe_intermediate_size or self.intermediate_size
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) must not exceed the"
                " number of experts"
            )

    def cached_numbers(self, devices: int) -> int:
        """Returns the keys and values of a token in a layer, on one of `devices`.

        Heads are replicated if there are fewer than devices.
        """
        return 2 * -(-self.num_key_value_heads // devices) * self.head_dim

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        if not self.num_experts:
            return 0
        return sum(
            (layer + 1) % self.decoder_sparse_step == 0
            for layer in range(self.num_hidden_layers)
            if layer not in self.mlp_only_layers
        )

    @property
    def sliding_share(self) -> float:
        """Share of the layers whose attention sees `sliding_window` tokens."""
        if not self.sliding_window:
            return 0.0
        return self.layer_types.count("sliding_attention") / max(1, len(self.layer_types))

    @property
    def window(self) -> int:
        """Sliding window of `sliding_share` of the layers, in tokens; 0 without a window."""
        return self.sliding_window if self.sliding_share else 0

    @property
    def matrices(self) -> int:
        """Matrices of a layer's feed-forward network."""
        return MATRICES[self.architectures[0]]

    @property
    def table_weights(self) -> int:
        """Weights of the embedding and of the output, which may share one table."""
        table = self.vocab_size * self.hidden_size
        if self.tie_word_embeddings:
            return table
        return 2 * table

    def weights(self) -> tuple[int, int]:
        """Returns the weights that every token needs, and the weights of one expert.

        Both are summed over all layers.
        """
        width = self.hidden_size
        query_width = self.num_attention_heads * self.head_dim
        key_value_width = 2 * self.num_key_value_heads * self.head_dim
        attention = width * (query_width + key_value_width) + query_width * width
        dense_network = self.matrices * width * self.intermediate_size
        router = width * self.num_experts
        shared_expert = self.matrices * width * self.shared_expert_intermediate_size
        expert = self.matrices * width * self.moe_intermediate_size
        sparse_layers = self.sparse_layers
        dense_layers = self.num_hidden_layers - sparse_layers
        shared = self.num_hidden_layers * attention + dense_layers * dense_network
        return shared + sparse_layers * (router + shared_expert), sparse_layers * expert


def model_shape(document: object, origin: str = "model config") -> ModelShape:
    """Converts the content of a `config.json`.

    Raises:
        ConfigError: The model is unknown, or a field is wrong; the message begins with `origin`.
    """
    if isinstance(document, dict):
        document = {field: value for field, value in document.items() if value is not None}
        architectures = document.get("architectures")
        architecture = None
        if isinstance(architectures, list) and architectures:
            architecture = architectures[0]
        _check_parts(document, origin, architecture)
        # Checked before other fields, whose names may differ in an unknown architecture.
        _check_architecture(architecture, origin)
    try:
        return msgspec.convert(document, ModelShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _check_architecture(architecture: object, origin: str) -> None:
    if not isinstance(architecture, str) or architecture in MATRICES:
        return
    kinds = ", ".join(name.removesuffix("ForCausalLM") for name in MATRICES)
    hint = f"; known are {kinds}, each with ForCausalLM"
    for name in MATRICES:
        if name.lower() == architecture.lower():
            hint = f"; did you mean {name}?"
    raise ConfigError(
        f"{origin}: architectures: {architecture} is not supported by profile auto{hint}"
    )


def _check_parts(document: Mapping[str, object], origin: str, architecture: object) -> None:
    """Raises ConfigError for a part of a model whose cost is not known."""
    text_config = document.get("text_config")
    parts = [document]
    if isinstance(text_config, dict):
        parts.append(text_config)
    for fields in parts:
        for field, part in UNKNOWN_PARTS.items():
            if fields.get(field):
                raise _unknown_part(field, part, origin, architecture)
        layer_types = fields.get("layer_types")
        if not isinstance(layer_types, list):
            continue
        for kind in layer_types:
            if isinstance(kind, str) and kind not in KNOWN_LAYERS:
                raise _unknown_part("layer_types", f"layers of {kind}", origin, architecture)
    if text_config:
        part = "an encoder beside its text model"
        raise _unknown_part("text_config", part, origin, architecture)


def _unknown_part(field: str, part: str, origin: str, architecture: object) -> ConfigError:
    return ConfigError(
        f"{origin}: {field}: {architecture} has {part}, and the cost of its kernels is not known"
    )
