"""Tokens of images by the rules of models; the numbers are those of vLLM's processors."""

import pytest
from msgspec import ValidationError

from app.extensions.media.architectures import reads_media
from app.extensions.media.facts import facts_of, families
from app.extensions.media.rules import ImageRule, RuleError


def rule_of(model: str) -> ImageRule:
    facts = facts_of(model)
    assert facts is not None
    assert facts.image is not None
    return facts.image


@pytest.mark.parametrize(
    ("model", "size", "length"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", (672, 448), 384),
        ("Qwen/Qwen2.5-VL-7B-Instruct", (100, 3000), 428),
        ("Qwen/Qwen2.5-VL-7B-Instruct", (4000, 3000), 15301),
        ("llava-hf/llava-1.5-7b-hf", (100, 3000), 576),
        ("microsoft/Phi-3.5-vision-instruct", (1000, 1000), 757),
        ("microsoft/Phi-3-vision-128k-instruct", (1000, 1000), 2509),
        ("mistral-community/pixtral-12b", (21, 28), 6),
        ("mistral-community/pixtral-12b", (62, 124), 40),
        ("deepseek-ai/DeepSeek-OCR", (640, 480), 273),
        ("deepseek-ai/DeepSeek-OCR", (1280, 640), 273 + 10 * 21),
        ("google/gemma-3n-E2B-it", (10, 3000), 260),
        ("OpenGVLab/InternVL3-1B-hf", (896, 448), 3 * 256 + 2),
        ("openbmb/MiniCPM-V-2_6", (448, 448), 3 + 66),
        ("openbmb/MiniCPM-V-2_6", (500, 500), 3 + 66 + 2 * 66 + 1),
        ("openbmb/MiniCPM-V-4_5", (1920, 1080), 3 + 66 + 8 * 66 + 1),
        ("openbmb/MiniCPM-o-2_6", (100, 3000), 3 + 66 + 3 * 66 + 2),
        ("openbmb/MiniCPM-Llama3-V-2_5", (448, 448), 98),
        ("openbmb/MiniCPM-Llama3-V-2_5", (1000, 1000), 98 + 4 * 98 + 2 + 1),
        ("allenai/Molmo-7B-D-0924", (112, 500), 158 + 20 * 13 + 2),
        ("allenai/Molmo-7B-D-0924", (448, 448), 158 + 20 * 21 + 2),
        ("allenai/Molmo-7B-O-0924", (1920, 1080), 158 + 28 * 37 + 2),
        ("allenai/Molmo-7B-D-0924", (111, 4000), 158 + 158),
    ],
)
def test_tokens_of_an_image_are_those_of_vllm(
    model: str, size: tuple[int, int], length: int
) -> None:
    assert rule_of(model).tokens(*size).length == length


def test_repack_has_the_rule_of_its_base() -> None:
    assert rule_of("Qwen/Qwen2.5-VL-72B-Instruct-AWQ").tokens(672, 448).length == 384


def test_minicpm_2_5_numbers_no_image_and_reads_no_video() -> None:
    model = "openbmb/MiniCPM-Llama3-V-2_5"
    files = {"version": 2.5, "image_feature_size": 96}
    assert rule_of("openbmb/MiniCPM-V-2_6").with_files(files) == rule_of(model)
    facts = facts_of(model)
    assert facts is not None
    assert facts.limits == {"image": None}


@pytest.mark.parametrize(
    ("model", "arguments", "length"),
    [
        ("openbmb/MiniCPM-V-2_6", {"max_slice_nums": 4}, 69 + 4 * 66 + 1),
        ("openbmb/MiniCPM-V-2_6", {"slice_mode": False}, 69),
        ("allenai/Molmo-7B-D-0924", {"max_crops": 1}, 158 + 158),
    ],
)
def test_arguments_limit_slices_and_crops(
    model: str, arguments: dict[str, object], length: int
) -> None:
    assert rule_of(model).with_arguments(arguments).tokens(1000, 1000).length == length


def test_arguments_of_the_processor_change_the_tokens() -> None:
    rule = rule_of("Qwen/Qwen2.5-VL-7B-Instruct")
    few = 4 * 28 * 28
    for arguments in (
        {"max_pixels": few},
        {"size": {"longest_edge": few}},
        {"images_kwargs": {"max_pixels": few}},
        {"max_pixels": 10**6, "images_kwargs": {"max_pixels": few}},
    ):
        assert rule.with_arguments(arguments).tokens(672, 448).length == 2, arguments
    assert rule.with_arguments({"min_pixels": 10**6}).tokens(672, 448).length > 1000
    assert rule.with_arguments({"fps": 2}).tokens(672, 448).length == 384
    with pytest.raises(ValidationError):
        rule.with_arguments({"max_pixels": "many"})


def test_image_of_extreme_shape_is_rejected() -> None:
    with pytest.raises(RuleError, match="absolute aspect ratio must be smaller than 200, got 300"):
        rule_of("Qwen/Qwen2.5-VL-7B-Instruct").tokens(3000, 10)


IMAGE_RULES = {
    name: family.image for name, family in families().items() if family.image is not None
}


@pytest.mark.parametrize("architecture", IMAGE_RULES)
@pytest.mark.parametrize("size", [(1, 1), (1, 199), (199, 1), (16_000, 11_000), (7, 16_000_000)])
def test_every_rule_has_a_number_or_a_reason_for_every_size(
    architecture: str, size: tuple[int, int]
) -> None:
    try:
        tokens = IMAGE_RULES[architecture].tokens(*size)
    except RuleError:
        return
    assert 0 < tokens.embeddings <= tokens.length < 1_000_000


@pytest.mark.parametrize(
    ("architecture", "arguments"),
    [
        ("LlavaForConditionalGeneration", {"embeddings": 0}),
        ("LlavaForConditionalGeneration", {"marks": -1}),
        ("InternVLChatModel", {"marks": -1}),
        ("Gemma3ForConditionalGeneration", {"words": -1}),
        ("LlavaNextForConditionalGeneration", {"image_grid_pinpoints": []}),
        ("LlavaNextForConditionalGeneration", {"image_grid_pinpoints": [[0, 0]]}),
        ("LlavaNextForConditionalGeneration", {"image_grid_pinpoints": [[335, 336]]}),
        ("LlavaNextForConditionalGeneration", {"patch_size": 337}),
        ("LlavaOnevisionForConditionalGeneration", {"max_tiles": -1}),
        ("DeepseekVLV2ForCausalLM", {"candidate_resolutions": []}),
        ("MiniCPMV", {"max_slice_nums": 0}),
        ("MolmoForCausalLM", {"overlap_margins": [12, 12]}),
    ],
)
def test_argument_that_leaves_an_image_without_tokens_is_rejected(
    architecture: str, arguments: dict[str, object]
) -> None:
    rule = IMAGE_RULES[architecture]
    with pytest.raises(ValidationError):
        rule.with_arguments(arguments)
    with pytest.raises(ValidationError):
        rule.with_files(arguments)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("microsoft/Phi-4-multimodal-instruct", True),
        ("Qwen/Qwen3-0.6B", False),
        ("nobody/unknown", None),
    ],
)
def test_table_tells_which_models_read_media(model: str, expected: bool | None) -> None:
    assert reads_media(model) is expected
