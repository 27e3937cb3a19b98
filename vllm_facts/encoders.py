"""Encoders of images and sounds: the sizes of their layers, by the architecture of their model.

A `config.json` that describes its encoder takes precedence. Start reading at `encoder_of`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from vllm_facts.encoder import GATED, Encoder
from vllm_facts.model_shape import architecture_of, text_fields

SIGLIP: Final = Encoder(layers=27, width=1152, inner_width=4304)
CLIP: Final = Encoder(layers=24, width=1024, inner_width=4096)
SMALL_QWEN3: Final = replace(CLIP, merged_patches=4)
QWEN3: Final = replace(SIGLIP, merged_patches=4)
QWEN2_5: Final = Encoder(
    layers=32,
    width=1280,
    inner_width=3420,
    matrices=GATED,
    merged_patches=4,
    window=64,
    full_layers=4,
)
GLM4: Final = Encoder(layers=24, width=1536, inner_width=4096, matrices=GATED, merged_patches=4)
ENCODERS: Final[Mapping[str, Encoder]] = {
    "DeepseekVLV2ForCausalLM": replace(SIGLIP, merged_patches=4, window=729),
    "Gemma3ForConditionalGeneration": replace(SIGLIP, merged_patches=16, window=4096),
    "Gemma4ForConditionalGeneration": Encoder(
        layers=16, width=768, inner_width=3072, matrices=GATED, merged_patches=9
    ),
    "Glm4vForConditionalGeneration": GLM4,
    "Glm4vMoeForConditionalGeneration": GLM4,
    "Idefics3ForConditionalGeneration": replace(SIGLIP, merged_patches=4, window=676),
    "InternVLChatModel": replace(CLIP, merged_patches=4, window=1025),
    "InternVLForConditionalGeneration": replace(CLIP, merged_patches=4, window=1025),
    "KimiK25ForConditionalGeneration": QWEN3,
    "KimiVLForConditionalGeneration": QWEN3,
    "Llama4ForConditionalGeneration": Encoder(
        layers=34, width=1408, inner_width=5632, merged_patches=4, window=577
    ),
    "LlavaForConditionalGeneration": replace(CLIP, window=577),
    "LlavaNextForConditionalGeneration": replace(CLIP, window=577),
    "LlavaOnevisionForConditionalGeneration": replace(SIGLIP, window=729),
    "MiniCPMO": replace(SIGLIP, merged_patches=16, window=1024),
    "MiniCPMV": replace(SIGLIP, merged_patches=16, window=1024),
    "Mistral3ForConditionalGeneration": replace(CLIP, matrices=GATED, merged_patches=4),
    # Four patches are merged, and a third of all patches is in margins that crops share.
    "MolmoForCausalLM": replace(CLIP, layers=23, merged_patches=6, window=577),
    "Phi3VForCausalLM": replace(CLIP, merged_patches=4, window=577),
    "Phi4MMForCausalLM": replace(SIGLIP, merged_patches=4, window=1024),
    "PixtralForConditionalGeneration": replace(CLIP, matrices=GATED),
    "Qwen2AudioForConditionalGeneration": Encoder(
        layers=32, width=1280, inner_width=5120, merged_patches=2, window=1500
    ),
    "Qwen2VLForConditionalGeneration": Encoder(
        layers=32, width=1280, inner_width=5120, merged_patches=4
    ),
    "Qwen2_5OmniForConditionalGeneration": QWEN2_5,
    "Qwen2_5OmniModel": QWEN2_5,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5,
    "Qwen3OmniMoeForConditionalGeneration": QWEN3,
    "Qwen3VLForConditionalGeneration": QWEN3,
    "Qwen3VLMoeForConditionalGeneration": QWEN3,
    "Qwen3_5ForConditionalGeneration": QWEN3,
    "Qwen3_5MoeForConditionalGeneration": QWEN3,
    "SmolVLMForConditionalGeneration": replace(SIGLIP, merged_patches=9, window=729),
}
"""Architecture -> encoder of its most used models."""
SMALL_ENCODERS: Final[Mapping[str, tuple[int, Encoder]]] = {
    "Qwen3VLForConditionalGeneration": (2560, SMALL_QWEN3),
    "Qwen3_5ForConditionalGeneration": (2560, SMALL_QWEN3),
}
"""Architecture -> greatest width of the text models with a smaller encoder, and this encoder."""
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("depth", "num_hidden_layers"),
    "width": ("embed_dim", "vt_hidden_size", "hidden_size"),
    "inner_width": ("vt_intermediate_size", "intermediate_size"),
}
"""Size -> its names in a `vision_config`, the ones that take precedence first."""


def encoder_of(config: object) -> Encoder | None:
    """Returns the encoder of a model by its `config.json`; None for an unknown one."""
    if not isinstance(config, dict):
        return None
    architecture = architecture_of(config)
    encoder = ENCODERS.get(architecture)
    if encoder is None:
        return None
    small = SMALL_ENCODERS.get(architecture)
    width = text_fields(config).get("hidden_size")
    if small is not None and isinstance(width, int) and width <= small[0]:
        encoder = small[1]
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return encoder
    return _with_fields(encoder, vision)


def _with_fields(encoder: Encoder, vision: Mapping[str, object]) -> Encoder:
    """Returns the encoder with the sizes of a complete `vision_config`."""
    sizes: dict[str, int] = {}
    for size, names in FIELDS.items():
        for name in names:
            value = vision.get(name)
            if isinstance(value, int):
                sizes.setdefault(size, value)
    ratio = vision.get("mlp_ratio")
    if isinstance(ratio, int) and "width" in sizes:
        sizes.setdefault("inner_width", ratio * sizes["width"])
    if len(sizes) < len(FIELDS):
        return encoder
    merge = vision.get("spatial_merge_size")
    if isinstance(merge, int):
        sizes["merged_patches"] = merge * merge
    try:
        return msgspec.convert({**msgspec.structs.asdict(encoder), **sizes}, Encoder)
    except msgspec.ValidationError:  # sizes that no encoder has
        return encoder
