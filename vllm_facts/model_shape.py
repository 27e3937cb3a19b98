"""The shape of a model, from its `config.json`: `read_model_config`, `text_fields`, `ModelShape`.

All readers of a `config.json` use this module, so that costs, cache groups, the real engine, and
the context length of `serve` agree.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

Fields: TypeAlias = Mapping[str, object]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 24)]

MAX_CONFIG_BYTES: Final = 4 << 20
"""Largest `config.json`; those of real models have some KB."""
MAX_LAYERS: Final = 1024
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"
LINEAR: Final = "linear_attention"
CONVOLUTION: Final = "conv"
"""Layers of LFM2, whose state is that of a short convolution."""
HYBRID_PATTERN: Final = "hybrid_override_pattern"
"""Field of Nemotron-H, whose layers each have one part."""
HYBRID_LAYERS: Final = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
"""Layers of Nemotron-H in `layers_block_type`, which newer files have in place of the pattern."""
RENAMED: Final[Mapping[str, Sequence[str]]] = {
    "num_key_value_heads": ("num_attention_groups",),
    "max_position_embeddings": ("max_seq_len", "max_target_positions"),
    "num_experts": ("moe_num_experts",),
    "num_experts_per_tok": (
        *("moe_k", "moe_topk", "moe_top_k", "top_k_experts"),
        *("num_experts_per_token", "num_experts_per_topk"),
    ),
    "n_shared_experts": ("moe_num_shared_experts", "num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        *("share_expert_dim", "shared_intermediate_size", "shared_experts_intermediate_size"),
    ),
    "conv_cache": ("conv_L_cache",),
    "first_k_dense_replace": ("num_dense_layers", "moe_layer_start_index"),
    "sliding_window": ("sliding_window_size",),
    "sliding_window_pattern": ("global_attn_every_n_layers",),
    "intermediate_size_mlp": ("dense_intermediate_size",),
    "moe_latent_size": ("routed_expert_hidden_size",),
}
"""Field -> its names in files of some families, which have one instead."""
DENSE_LAYERS: Final = ("mlp_layer_types", "moe_layer_freq")
"""Lists with a name or a 0 for each layer whose network has no experts."""
WINDOWED_LAYERS: Final = "hybrid_layer_pattern"
"""List of MiMo with a 1 for each layer that has a window."""
KIMI_LAYERS: Final = "linear_attn_config"
"""Object of Kimi Linear with the numbers of the layers that have attention, from 1."""
LATENT_VALUES: Final = 128
"""Numbers of a head's value in latent attention, if a file lacks it."""
FAMILY_DEFAULTS: Final[Mapping[str, Fields]] = {
    "Gemma3": {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "Qwen3Next": {"attn_output_gate": True, "full_attention_interval": 4},
    "Qwen3_5": {"attn_output_gate": True, "full_attention_interval": 4},
    "Qwen3_5Moe": {
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "intermediate_size": 1,  # all layers have experts
    },
    "Llama4": {"sliding_window_pattern": 4},
}
"""Family -> fields that its `config.json` may leave out, from its class in transformers."""


class ModelShape(Struct, kw_only=True):
    """Sizes and layers of a text model, by their names in `config.json`; 0 stands for absent."""

    hidden_size: Count = 0
    intermediate_size: Count = 0
    num_hidden_layers: Annotated[int, Meta(ge=0, le=MAX_LAYERS)] = 0
    num_attention_heads: Annotated[int, Meta(ge=0, le=1024)] = 0
    num_key_value_heads: Annotated[int, Meta(ge=0, le=1024)] = 0
    head_dim: Annotated[int, Meta(ge=0, le=1024)] = 0
    vocab_size: Count = 0
    max_position_embeddings: Count = 0
    layer_types: list[str] = []
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    sliding_window_pattern: Count = 0
    """One in so many layers has no window, where `layer_types` is absent."""
    attention_chunk_size: Count = 0
    """Window of Llama 4."""
    full_attention_interval: Count = 0
    """One in so many layers has no linear attention, where `layer_types` is absent."""
    hybrid_override_pattern: Annotated[str, Meta(pattern=r"^[ME*-]*$")] = ""
    """Layers of Nemotron-H: M has a state, * attention, E experts and - a network."""

    def __post_init__(self) -> None:
        """Fills in the sizes that are derived from others.

        Raises:
            ValueError: The heads do not divide the hidden size.
        """
        heads = self.num_attention_heads
        if heads and not self.head_dim:
            if self.hidden_size % heads:
                raise ValueError(
                    f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads"
                    f" ({heads}), or head_dim must be specified"
                )
            self.head_dim = self.hidden_size // heads
        self.num_key_value_heads = self.num_key_value_heads or heads
        self.sliding_window = self.attention_chunk_size or self.sliding_window

    @property
    def layer_kinds(self) -> Sequence[str]:
        """Kind of each layer, as `layer_types` names them; all have full attention by default.

        A hybrid pattern has layers without attention, too.
        """
        if self.layer_types:
            return self.layer_types
        if self.hybrid_override_pattern:
            names = {letter: name for name, letter in HYBRID_LAYERS.items()} | {"*": FULL}
            return [names[letter] for letter in self.hybrid_override_pattern]
        pattern = self.sliding_window_pattern
        local = SLIDING
        if self.attention_chunk_size:
            local = CHUNKED
        if not pattern:
            pattern = self.full_attention_interval or 1
            local = LINEAR
        kinds = [local] * self.num_hidden_layers
        for layer in range(pattern - 1, self.num_hidden_layers, pattern):
            kinds[layer] = FULL
        return kinds


def read_model_config(path: Path) -> object:
    """Returns the content of a `config.json`; `path` is the file, or its folder.

    Raises:
        OSError: The file cannot be read, or is too large.
        UntrustedDataError: It is not JSON. Files of real models may contain infinities.
    """
    if path.is_dir():
        path /= "config.json"
    content = read_whole(path, MAX_CONFIG_BYTES, accepts_pipes=False)
    return decode_untrusted(content, decoder=python_json)


def text_fields(document: object) -> dict[str, object]:
    """Returns the fields of the text model of a `config.json`, without null values.

    Fields in `text_config` take precedence, then come those of the file, then the defaults of the
    architecture's family.

    Raises:
        UntrustedDataError: The document is not an object.
    """
    if not isinstance(document, dict):
        raise UntrustedDataError(f"Expected `object`, got `{type(document).__name__}`")
    fields = _present(document)
    architectures = fields.get("architectures")
    text_config = fields.get("text_config")
    if isinstance(text_config, dict):
        fields |= _present(text_config)
        fields["architectures"] = architectures
    hybrid_layers = fields.get("layers_block_type")
    if isinstance(hybrid_layers, list):
        names = [str(layer) for layer in hybrid_layers]
        fields[HYBRID_PATTERN] = "".join(HYBRID_LAYERS.get(name, "?") for name in names)
        fields.setdefault("num_hidden_layers", len(names))
    if fields.get("kv_lora_rank"):
        fields.setdefault("head_dim", fields.get("v_head_dim", LATENT_VALUES))
    _rename(fields)
    _read_layer_lists(fields)
    return {**FAMILY_DEFAULTS.get(family_of(architecture_of(fields)), {}), **fields}


def _rename(fields: dict[str, object]) -> None:
    """Adds fields under their common names."""
    for field, names in RENAMED.items():
        for name in names:
            if isinstance(fields.get(name), int):
                fields.setdefault(field, fields[name])


def _read_layer_lists(fields: dict[str, object]) -> None:
    """Adds the fields that lists with an item for each layer stand for."""
    for name in DENSE_LAYERS:
        layers = fields.get(name)
        if isinstance(layers, list):
            dense_layers = sum(layer in ("dense", 0) for layer in layers[:MAX_LAYERS])
            fields.setdefault("first_k_dense_replace", dense_layers)
    windowed = fields.get(WINDOWED_LAYERS)
    if isinstance(windowed, list):
        kinds = [SLIDING if layer else FULL for layer in windowed[:MAX_LAYERS]]
        fields.setdefault("layer_types", kinds)
        fields.pop("attention_chunk_size", None)  # MiMo repeats its window there
    kimi = fields.get(KIMI_LAYERS)
    layer_count = fields.get("num_hidden_layers")
    if not isinstance(kimi, dict) or not isinstance(layer_count, int):
        return
    full_layers = kimi.get("full_attn_layers")
    if isinstance(full_layers, list):
        count = max(0, min(layer_count, MAX_LAYERS))
        kinds = [FULL if layer in full_layers else LINEAR for layer in range(1, count + 1)]
        fields.setdefault("layer_types", kinds)
    for name, source in (
        ("linear_num_heads", "num_heads"),
        ("linear_head_dim", "head_dim"),
        ("linear_conv_kernel_dim", "short_conv_kernel_size"),
    ):
        if source in kimi:
            fields.setdefault(name, kimi[source])


def architecture_of(document: Fields) -> str:
    """Returns the first of `architectures`; empty if there is none."""
    architectures = document.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    return ""


def family_of(architecture: str) -> str:
    """Returns the name of an architecture without its suffix."""
    return architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")


def _present(fields: Fields) -> dict[str, object]:
    return {field: value for field, value in fields.items() if value is not None}
