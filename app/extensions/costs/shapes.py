"""Shapes of models: the facts of a `config.json` that a computed profile is made of."""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from app.extensions.costs.layer_shapes import LatentShape, RecurrentShape
from app.extensions.costs.text_configs import (
    FLOAT32_ROUTERS,
    GATED_MATRICES,
    MATRICES,
    MATRICES_OF_OTHERS,
    MAX_MIXTRAL_EXPERTS,
    MIXTRAL,
    checked_text_fields,
    text_fields_of,
)
from config.declaration import ConfigError
from vllm_facts.model_shape import CHUNKED, FULL, MAX_LAYERS, SLIDING, Count, ModelShape
from vllm_facts.step_defaults import has_whole_items

Size: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 24)]

ANY_SIZE_ENCODERS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3_5")
"""Begin of architectures whose encoder takes images of any size."""
NEEDED_SIZES: Mapping[str, Sequence[str]] = {
    "kv_lora_rank": ("qk_nope_head_dim", "v_head_dim"),
    "index_topk": ("kv_lora_rank", "q_lora_rank", "index_n_heads", "index_head_dim"),
    "linear_num_value_heads": (
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    "mamba_num_heads": ("mamba_head_dim", "ssm_state_size", "conv_kernel"),
}
"""Field -> fields that must not be 0 beside it."""


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
    ignore: list[str] = []
    modules_to_not_convert: list[str] = []

    @property
    def keeps_attention(self) -> bool:
        """True if the projections of attention are in 16 bits."""
        return self._keeps("self_attn", "self_attn.q_proj", "self_attn.q_b_proj")

    @property
    def keeps_networks(self) -> bool:
        """True if dense networks and shared experts are in 16 bits."""
        return self._keeps("shared_experts")

    def _keeps(self, *modules: str) -> bool:
        """Returns whether one of the modules of all layers is in the unquantized list.

        A list names a module with a pattern, or once for each layer; a single layer does not count.
        """
        names = [
            name.removeprefix("re:").rstrip("*.$")
            for name in (*self.ignore, *self.modules_to_not_convert)
        ]
        matches = [name for name in names if name.endswith(modules)]
        return len(matches) > 1 or any("*" in name for name in matches)

    @property
    def has_8bit_cache(self) -> bool:
        """True if the checkpoint declares keys and values in fp8, as vLLM reads it."""
        scheme = self.kv_cache_scheme
        if isinstance(scheme, _Scheme):
            return scheme.num_bits == 8
        return "fp8" in (scheme or self.kv_cache_quant_algo or "").lower()


class CostShape(ModelShape, kw_only=True):
    """The fields of `config.json` that decide costs, by their names."""

    architectures: Annotated[list[str], Meta(min_length=1)]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Size
    max_position_embeddings: Size
    intermediate_size: Size
    tie_word_embeddings: bool = False
    num_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_local_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_experts_per_tok: Annotated[int, Meta(ge=1, le=4096)] = 1
    moe_intermediate_size: Size = 0
    shared_expert_intermediate_size: Count = 0
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1
    mlp_only_layers: list[int] = []
    quantization_config: Quantization | None = None
    attn_output_gate: bool = False
    n_routed_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    n_shared_experts: Annotated[int, Meta(ge=0, le=64)] = 0
    moe_shared_expert_intermediate_size: Count = 0
    first_k_dense_replace: Count = 0
    interleave_moe_layer_step: Count = 0
    intermediate_size_mlp: Count = 0
    kv_lora_rank: Count = 0
    q_lora_rank: Count = 0
    qk_nope_head_dim: Count = 128
    qk_rope_head_dim: Count = 64
    v_head_dim: Count = 128
    index_topk: Count = 0
    index_n_heads: Count = 0
    index_head_dim: Count = 0
    index_topk_freq: Size = 1
    linear_num_key_heads: Count = 0
    linear_num_value_heads: Count = 0
    linear_key_head_dim: Count = 0
    linear_value_head_dim: Count = 0
    linear_conv_kernel_dim: Count = 4
    mamba_ssm_dtype: str = ""
    mamba_num_heads: Count = 0
    mamba_head_dim: Count = 0
    mamba_ssm_cache_dtype: str = ""
    n_groups: Count = 1
    ssm_state_size: Count = 0
    conv_kernel: Count = 4
    linear_num_heads: Count = 0
    linear_head_dim: Count = 0
    conv_cache: Count = 0
    moe_latent_size: Count = 0
    """Numbers of a token that its experts see, instead of `hidden_size`."""
    global_head_dim: Count = 0
    num_global_key_value_heads: Count = 0
    swa_head_dim: Count = 0
    swa_v_head_dim: Count = 0
    swa_num_key_value_heads: Count = 0
    num_kv_shared_layers: Count = 0
    """Last layers, which read the keys and values of earlier ones."""
    parameters: Annotated[float, Meta(ge=0, le=1e5)] = 0.0
    """Published number of parameters in billions, with encoders; 0 if the fields suffice."""

    def __post_init__(self) -> None:
        """Fills in absent fields.

        Raises:
            ValueError: Fields contradict each other.
        """
        super().__post_init__()
        if self.num_key_value_heads > self.num_attention_heads:
            raise ValueError(
                f"num_key_value_heads ({self.num_key_value_heads}) must not exceed"
                " num_attention_heads"
            )
        for field, names in NEEDED_SIZES.items():
            for name in names:
                if getattr(self, field) and not getattr(self, name):
                    raise ValueError(f"{name} must not be 0 if {field} is set")
        if len(self.hybrid_override_pattern) not in (0, self.num_hidden_layers):
            raise ValueError("hybrid_override_pattern must have a letter for each hidden layer")
        self.num_experts = self.num_experts or self.num_local_experts or self.n_routed_experts
        self.moe_intermediate_size = self.moe_intermediate_size or self.intermediate_size
        self._fill_in_networks()
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) must not exceed the"
                " number of experts"
            )

    def _fill_in_networks(self) -> None:
        """Fills in the widths of shared experts and of dense layers, whose names differ."""
        shared_width = self.n_shared_experts * self.moe_intermediate_size
        if self.moe_shared_expert_intermediate_size:
            shared_width = self.moe_shared_expert_intermediate_size
        if self.intermediate_size_mlp:  # Llama 4, whose dense layers are wider than its experts
            shared_width = self.intermediate_size
            self.intermediate_size = self.intermediate_size_mlp
        self.shared_expert_intermediate_size = self.shared_expert_intermediate_size or shared_width

    @property
    def reads_whole_items(self) -> bool:
        """True if images and videos must be in one step."""
        return has_whole_items(self.architectures[0], self.num_kv_shared_layers)

    @property
    def latent(self) -> LatentShape | None:
        """Sizes of latent attention; None for keys and values of each head."""
        if not self.kv_lora_rank:
            return None
        return LatentShape(
            rank=self.kv_lora_rank,
            rope=self.qk_rope_head_dim,
            query_rank=self.q_lora_rank,
            key=self.qk_nope_head_dim,
            value=self.v_head_dim,
            top_tokens=self.index_topk,
            index_heads=self.index_n_heads,
            index_width=self.index_head_dim,
            index_layers=self.index_topk_freq,
        )

    @property
    def recurrent(self) -> RecurrentShape | None:
        """Sizes of layers with a state; None without such layers."""
        if self.linear_num_value_heads:
            keys = self.linear_num_key_heads * self.linear_key_head_dim
            heads = self.linear_num_value_heads
            values = heads * self.linear_value_head_dim
            return RecurrentShape(
                columns=2 * keys + 2 * values + 2 * heads,
                inner_width=values,
                state=values * self.linear_key_head_dim,
                state_format=self.mamba_ssm_dtype,
                convolved=(2 * keys + values) * (self.linear_conv_kernel_dim - 1),
            )
        if self.mamba_num_heads:
            inner = self.mamba_num_heads * self.mamba_head_dim
            groups = 2 * self.n_groups * self.ssm_state_size
            return RecurrentShape(
                columns=2 * inner + groups + self.mamba_num_heads,
                inner_width=inner,
                state=inner * self.ssm_state_size,
                state_format=self.mamba_ssm_cache_dtype,
                convolved=(inner + groups) * (self.conv_kernel - 1),
            )
        if self.linear_num_heads:
            width = self.linear_num_heads * self.linear_head_dim
            return RecurrentShape(
                columns=3 * width + self.linear_num_heads + 2 * self.linear_head_dim,
                inner_width=width,
                state=width * self.linear_head_dim,
                state_format="float32",
                convolved=3 * width * max(0, self.linear_conv_kernel_dim - 1),
            )
        if self.conv_cache:
            return RecurrentShape(
                columns=3 * self.hidden_size,
                inner_width=self.hidden_size,
                state=0,
                state_format="",
                convolved=self.hidden_size * (self.conv_cache - 1),
            )
        return None

    @property
    def layers(self) -> float:
        """Pairs of a layer's two parts: the one that mixes tokens, and the network."""
        if self.hybrid_override_pattern:
            return self.num_hidden_layers / 2
        return self.num_hidden_layers

    @property
    def attention_layers(self) -> int:
        """Number of layers with attention."""
        if self.hybrid_override_pattern or self.recurrent is not None:
            return self.layer_kinds.count(FULL)
        return self.num_hidden_layers

    @property
    def recurrent_layers(self) -> int:
        """Number of layers with a state."""
        if self.hybrid_override_pattern:
            return self.hybrid_override_pattern.count("M")
        return self.num_hidden_layers - self.attention_layers

    @property
    def dense_layers(self) -> int:
        """Number of layers with a network without experts."""
        if self.hybrid_override_pattern:
            return self.hybrid_override_pattern.count("-")
        return self.num_hidden_layers - self.sparse_layers

    def cached_numbers(self, devices: int) -> int:
        """Returns the numbers of a token in the cache of a layer, on one of `devices`.

        Heads are replicated if there are fewer than devices, and a latent vector always.
        """
        if self.latent is not None:
            return self.latent.cached
        return 2 * -(-self.num_key_value_heads // devices) * self.head_dim

    def cached_bytes(self, devices: int, number_bytes: float) -> float:
        """Returns the bytes of a token in the cache of a layer, on one of `devices`."""
        if self.latent is not None:
            return self.latent.token_bytes(number_bytes)
        return number_bytes * self.cached_numbers(devices)

    @property
    def pair_operations(self) -> int:
        """Operations of a layer's attention for each pair of tokens in a prompt."""
        if self.latent is not None:
            latent = self.latent
            return 2 * self.num_attention_heads * (latent.key + latent.rope + latent.value)
        return 4 * self.num_attention_heads * self.head_dim

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        if not self.num_experts:
            return 0
        if self.hybrid_override_pattern:
            return self.hybrid_override_pattern.count("E")
        if self.interleave_moe_layer_step:
            return self.num_hidden_layers // self.interleave_moe_layer_step
        if self.first_k_dense_replace:
            return self.num_hidden_layers - self.first_k_dense_replace
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
        kinds = self.layer_kinds
        return sum(kind in (SLIDING, CHUNKED) for kind in kinds) / max(1, len(kinds))

    @property
    def window(self) -> int:
        """Sliding window of `sliding_share` of the layers, in tokens; 0 without a window."""
        return self.sliding_window if self.sliding_share else 0

    @property
    def matrices(self) -> int:
        """Matrices of a layer's feed-forward network."""
        architecture = self.architectures[0]
        others = MATRICES_OF_OTHERS.get(architecture, GATED_MATRICES)
        return MATRICES.get(architecture, others)

    @property
    def has_float32_router(self) -> bool:
        """True if the logits of experts are computed in float32."""
        architecture = self.architectures[0]
        is_minimax = architecture == MIXTRAL and self.num_experts > MAX_MIXTRAL_EXPERTS
        return is_minimax or architecture in FLOAT32_ROUTERS

    @property
    def computed_parameters(self) -> int:
        """Weights that follow from the fields, without encoders."""
        shared, expert = self.weights()
        return self.table_weights + shared + self.num_experts * expert

    @property
    def has_any_size_encoder(self) -> bool:
        """True if an encoder takes images of any size, so that its step is long."""
        architecture = self.architectures[0]
        is_whole = architecture.endswith("ForConditionalGeneration")
        return is_whole and architecture.startswith(ANY_SIZE_ENCODERS)

    @property
    def other_weights(self) -> float:
        """Published weights that no field describes, such as encoders; less than 0 for fewer."""
        if not self.parameters:
            return 0.0
        return self.parameters * 1e9 - self.computed_parameters

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
        width = self.moe_latent_size or self.hidden_size
        expert = self.matrices * width * self.moe_intermediate_size
        return self.mixing_weights + self.network_weights, self.sparse_layers * expert

    @property
    def mixing_weights(self) -> int:
        """Weights of all layers' attention and states."""
        width = self.hidden_size
        query_width = self.num_attention_heads * self.head_dim
        key_value_width = 2 * self.num_key_value_heads * self.head_dim
        attention = width * (query_width + key_value_width) + query_width * width
        if self.attn_output_gate:
            attention += width * query_width
        if self.latent is not None:
            attention = self.latent.weights(width, self.num_attention_heads)
        weights = self.attention_layers * attention
        if self.recurrent is not None:
            weights += self.recurrent_layers * self.recurrent.weights(width)
        return weights

    @property
    def network_weights(self) -> int:
        """Weights of all layers' networks, without experts that a token chooses."""
        width = self.hidden_size
        dense_network = self.matrices * width * self.intermediate_size
        router = width * self.num_experts
        shared_expert = self.matrices * width * self.shared_expert_intermediate_size
        return self.dense_layers * dense_network + self.sparse_layers * (router + shared_expert)


def cost_shape(document: object, origin: str = "model config") -> CostShape:
    """Converts the content of a `config.json`, whose text model counts.

    Raises:
        ConfigError: The model is unknown, or a field is wrong; the message begins with `origin`.
    """
    try:
        return msgspec.convert(checked_text_fields(document, origin), CostShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}") from None


def memory_shape(document: object, origin: str = "model config") -> CostShape:
    """Converts the content of a `config.json` of a model whose memory alone matters.

    The model can have parts whose cost is not known.

    Raises:
        ConfigError: A field is wrong or missing; the message begins with `origin`.
    """
    try:
        return msgspec.convert(text_fields_of(document, origin), CostShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}") from None
