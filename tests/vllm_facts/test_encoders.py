"""Encoders of images by architecture, and by the `config.json` of a model."""

from typing import Any

import pytest

from vllm_facts.encoder import Encoder
from vllm_facts.encoders import CLIP, ENCODERS, QWEN2_5, QWEN3, SMALL_QWEN3, encoder_of

QWEN = "Qwen3VLForConditionalGeneration"


def config(architecture: str, width: int = 4096, **vision: object) -> dict[str, Any]:
    document: dict[str, Any] = {"architectures": [architecture]}
    document["text_config"] = {"hidden_size": width}
    if vision:
        document["vision_config"] = vision
    return document


def test_architecture_decides_the_encoder() -> None:
    assert encoder_of(config("Qwen2_5_VLForConditionalGeneration")) == QWEN2_5
    assert encoder_of(config("LlamaForCausalLM")) is None
    assert encoder_of([]) is None


@pytest.mark.parametrize(("width", "encoder"), [(2560, SMALL_QWEN3), (4096, QWEN3)])
def test_small_models_have_small_encoders(width: int, encoder: Encoder) -> None:
    assert encoder_of(config(QWEN, width)) == encoder


def test_sizes_in_the_file_take_precedence() -> None:
    vision = {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "spatial_merge_size": 3}
    encoder = encoder_of(config(QWEN, **vision))
    assert encoder == Encoder(layers=12, width=768, inner_width=3072, merged_patches=9)
    ratio = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 8192}
    encoder = encoder_of(config("Qwen2VLForConditionalGeneration", **ratio))
    assert encoder == ENCODERS["Qwen2VLForConditionalGeneration"]


@pytest.mark.parametrize(
    "vision",
    [{"depth": 32}, {"num_hidden_layers": -1, "hidden_size": 1, "intermediate_size": 1}],
    ids=["few", "negative"],
)
def test_incomplete_or_wrong_sizes_are_ignored(vision: dict[str, int]) -> None:
    encoder = encoder_of(config("PixtralForConditionalGeneration", **vision))
    assert encoder is not None
    assert (encoder.layers, encoder.width) == (CLIP.layers, CLIP.width)
