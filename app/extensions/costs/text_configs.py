"""Checks that the cost of a text model is known: its architecture, and the parts of its layers."""

from collections.abc import Iterator, Mapping

from config.declaration import ConfigError
from config.untrusted import UntrustedDataError
from vllm_facts.model_shape import (
    CHUNKED,
    FULL,
    HYBRID_PATTERN,
    LINEAR,
    SLIDING,
    Fields,
    architecture_of,
    text_fields,
)

UNKNOWN_PARTS: Mapping[str, str] = {
    "audio_config": "an encoder of audio",
    "moe_latent_size": "experts of a compressed vector",
    "mamba_d_state": "state-space layers of another kind",
    "mamba_expand": "state-space layers of another kind",
    "state_size": "state-space layers of another kind",
}
"""Field of a `config.json` -> part of the model whose cost is not known."""
SHARED_INDEX = "index_topk_freq"
"""Layers that share an index; 1 if each has its own."""
KNOWN_LAYERS = frozenset((FULL, SLIDING, CHUNKED))
GATED_NETWORKS = (
    "Llama",
    "Mistral",
    "Mixtral",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "Qwen3Next",
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
    "Glm4",
    "Glm4Moe",
    "GlmMoeDsa",
    "DeepseekV2",
    "DeepseekV3",
    "DeepseekV32",
)
"""Architectures whose feed-forward network has three matrices in each layer."""
PLAIN_NETWORKS = ("GPTNeoX", "Phi", "Starcoder2", "NemotronH")
"""Architectures whose feed-forward network has two matrices in each layer."""
ENCODER_NETWORKS = (
    "Gemma3",
    "KimiK25",
    "Llama4",
    "Mistral3",
    "Qwen2_5_VL",
    "Qwen3VL",
    "Qwen3VLMoe",
    "Qwen3_5",
    "Qwen3_5Moe",
)
"""Architectures with an encoder of images beside a text model of three matrices in each layer."""
MATRICES: Mapping[str, int] = {
    **{f"{name}ForCausalLM": 3 for name in GATED_NETWORKS},
    **{f"{name}ForCausalLM": 2 for name in PLAIN_NETWORKS},
    **{f"{name}ForConditionalGeneration": 3 for name in ENCODER_NETWORKS},
    "NemotronH_Omni_Reasoning_V3": 2,
}
"""Architecture -> matrices of a layer's feed-forward network."""
MATRICES_OF_OTHERS: Mapping[str, int] = dict.fromkeys(
    (
        "ApertusForCausalLM",
        "BloomForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTJForCausalLM",
        "GPTNeoXForCausalLM",
        "MPTForCausalLM",
        "OPTForCausalLM",
        "PersimmonForCausalLM",
        "PhiForCausalLM",
        "Starcoder2ForCausalLM",
    ),
    2,
)
"""The same for architectures whose memory alone is computed; others have three."""
GATED_MATRICES = 3
FLOAT32_ROUTERS = frozenset(("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"))
"""Architectures whose router vLLM computes in float32."""
MIXTRAL = "MixtralForCausalLM"
MAX_MIXTRAL_EXPERTS = 16
"""Most experts of a Mixtral. Files that declare MiniMax-M2 as Mixtral, whose layers have the same
shape, have 256.
"""


def checked_text_fields(document: object, origin: str) -> dict[str, object]:
    """Returns the fields of the text model of a `config.json`.

    Raises:
        ConfigError: The architecture, or a part of the model, is unknown.
    """
    fields = text_fields_of(document, origin)
    architecture = architecture_of(fields)
    _check_parts(fields, origin, architecture)
    # Checked before other fields, whose names may differ in an unknown architecture.
    _check_architecture(architecture, origin)
    return fields


def text_fields_of(document: object, origin: str) -> dict[str, object]:
    """Returns the fields of the text model of a `config.json`, whatever its architecture.

    Raises:
        ConfigError: The document is not an object.
    """
    try:
        return text_fields(document)
    except UntrustedDataError as error:
        raise ConfigError(f"{origin}: {error}") from None


def has_known_cost(document: object) -> bool:
    """Returns whether the cost of a model is known, and not its memory alone."""
    try:
        checked_text_fields(document, "")
    except ConfigError:
        return False
    return True


def has_encoder(document: object) -> bool:
    """Returns whether a `config.json` describes an encoder of images, too."""
    return isinstance(document, dict) and bool(document.get("vision_config"))


def _check_architecture(architecture: str, origin: str) -> None:
    if not architecture or architecture in MATRICES:
        return
    hint = f"; use one of {', '.join(_kinds())}"
    for name in MATRICES:
        if name.lower() == architecture.lower():
            hint = f"; did you mean {name}?"
    raise ConfigError(
        f"{origin}: architectures: {architecture} is not supported by the auto profile{hint}"
    )


def _kinds() -> Iterator[str]:
    """Yields the families, and how their names end."""
    for suffix in ("ForCausalLM", "ForConditionalGeneration"):
        names = [name.removesuffix(suffix) for name in MATRICES if name.endswith(suffix)]
        yield f"{', '.join(names)}, each with {suffix}"


def _check_parts(fields: Fields, origin: str, architecture: str) -> None:
    """Raises ConfigError for a part of a model whose cost is not known."""
    for field, part in UNKNOWN_PARTS.items():
        if fields.get(field):
            raise _unknown_part(field, part, origin, architecture)
    if fields.get("ssm_state_size") and not fields.get(HYBRID_PATTERN):
        raise _unknown_part("ssm_state_size", "state-space layers", origin, architecture)
    if fields.get(SHARED_INDEX, 1) != 1:
        raise _unknown_part(
            SHARED_INDEX, "an index that several layers share", origin, architecture
        )
    layer_types = fields.get("layer_types")
    if not isinstance(layer_types, list):
        return
    kinds = KNOWN_LAYERS
    if fields.get("linear_num_value_heads"):
        kinds |= {LINEAR}
    if fields.get("index_topk"):
        kinds |= {"deepseek_sparse_attention"}
    for kind in layer_types:
        if isinstance(kind, str) and kind not in kinds:
            raise _unknown_part("layer_types", f"layers of {kind}", origin, architecture)


def _unknown_part(field: str, part: str, origin: str, architecture: str) -> ConfigError:
    return ConfigError(
        f"{origin}: {field}: {architecture} has {part}, and the cost of its kernels is not known"
    )
