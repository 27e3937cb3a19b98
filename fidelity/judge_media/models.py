"""Files of models for the judge, written from facts: configurations and tiny vocabularies.

No file has weights, and layers are as small as vLLM accepts: what counts are the sizes of patches,
tiles, and images. Each model is one of the table of models of the same name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fidelity.judge_media.remote_code import MINICPM, MOLMO

Json = dict[str, Any]
TEXT: Json = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}
"""The smallest text model."""
LLAMA = {"model_type": "llama", **TEXT}
MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}
CLIP_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "crop_size": {"height": 336, "width": 336},
    "size": {"shortest_edge": 336},
}
NEXT_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ONEVISION_PINPOINTS = [[384 * row, 384 * column] for row in range(1, 7) for column in range(1, 7)]
CANDIDATES = [
    *([384, 384], [384, 768], [768, 384], [384, 1152], [1152, 384], [384, 1536], [1536, 384]),
    *([768, 768], [384, 1920], [1920, 384], [384, 2304], [2304, 384], [768, 1152], [1152, 768]),
    *([384, 2688], [2688, 384], [384, 3072], [3072, 384], [768, 1536], [1536, 768], [384, 3456]),
    *([3456, 384], [1152, 1152]),
]
INTERNVL_CONFIGURATION = """
from transformers import AutoConfig, PretrainedConfig


class InternVLChatConfig(PretrainedConfig):
    model_type = "internvl_chat"

    def __init__(self, vision_config=None, llm_config=None, **values):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        fields = dict(llm_config or {"model_type": "qwen2"})
        self.llm_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        self.text_config = self.llm_config
        super().__init__(**values)
"""
"""The class of a configuration that transformers lacks."""


FILMS = {
    "Qwen/Qwen2-VL-7B-Instruct": "<|video_pad|>",
    "Qwen/Qwen2.5-VL-7B-Instruct": "<|video_pad|>",
    "Qwen/Qwen3-VL-4B-Instruct": "<|video_pad|>",
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": "<video>",
    "OpenGVLab/InternVL3-8B": "<video>",
    "openbmb/MiniCPM-V-2_6": "(<video>./</video>)",
}
"""Special tokens that the chat templates write for a film."""
SOUNDS = {
    "google/gemma-3n-E2B-it": "<audio_soft_token>",
    "google/gemma-4-31B-it": "<|audio|>",
}
"""The same for a sound."""
QWEN3_FILMS = {
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"longest_edge": 25_165_824, "shortest_edge": 4_096},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


class JudgedModel(NamedTuple):
    """A model, and its files."""

    name: str
    """Name on the Hugging Face hub."""
    prompt: str
    """Special token that the chat template writes for an image."""
    config: Json
    preprocessor: Json
    tokens: tuple[str, ...]
    """Special tokens of the vocabulary, numbered from 1 on."""
    processor: Json = {}
    """Content of `processor_config.json`."""
    attributes: Json = {}
    """Fields of `tokenizer_config.json`."""
    modality: str = "image"
    """``audio`` for a model of sounds, of which the width is the number of samples."""
    video: Json = {}
    """Content of `video_preprocessor_config.json`."""
    code: dict[str, str] = {}
    """Python files that the configuration names."""

    @property
    def key(self) -> str:
        """The name, with the modality: a model of several modalities is drawn for each."""
        return self.name if self.modality == "image" else f"{self.name} ({self.modality})"


def _qwen(name: str, model_type: str, architecture: str, preprocessor: Json) -> JudgedModel:
    """Returns a model of Qwen's: patches, and limits of the area."""
    patch = preprocessor["patch_size"]
    text = {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": 64,
        "num_heads": 4,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "intermediate_size": 64,
    }
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        **text,
        "vision_start_token_id": 1,
        "vision_end_token_id": 2,
        "image_token_id": 3,
        "video_token_id": 4,
        "vision_config": vision,
    }
    if model_type == "qwen3_vl":
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
        config["text_config"] = {"model_type": "qwen3_vl_text", **text, "head_dim": 16}
    processor = {"merge_size": 2, "temporal_patch_size": 2, **MEAN, **preprocessor}
    video = QWEN3_FILMS if model_type == "qwen3_vl" else {}
    return JudgedModel(name, "<|image_pad|>", config, processor, QWEN_MARKS, video=video)


def _llava(
    name: str, architecture: str, model_type: str, *, vision: Json, more: Json, preprocessor: Json
) -> JudgedModel:
    """Returns a model of LLaVA's family."""
    strategy = more.get("vision_feature_select_strategy", "default")
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": LLAMA,
        "vision_config": {**TEXT, "vocab_size": 0, **vision},
        "image_token_index": 1,
        "image_token_id": 1,
        "video_token_index": 2,
        "vision_feature_select_strategy": strategy,
        "vision_feature_layer": -1,
        **more,
    }
    processor = {
        "patch_size": vision["patch_size"],
        "vision_feature_select_strategy": strategy,
        "image_token": "<image>",
        "num_additional_image_tokens": 1 if strategy == "default" else 0,
        "num_image_tokens": 729,
        "vision_aspect_ratio": "anyres_max_9",
    }
    tokens = ("<image>", "<video>")
    return JudgedModel(name, "<image>", config, {**MEAN, **preprocessor}, tokens, processor)


def _pixtral(
    name: str, architecture: str, model_type: str, *, side: int, patch: int, merge: int
) -> JudgedModel:
    """Returns a model with Pixtral's encoder."""
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": {**LLAMA, "model_type": "mistral"},
        "vision_config": {
            "model_type": "pixtral",
            **TEXT,
            "head_dim": 16,
            "image_size": side,
            "patch_size": patch,
        },
        "image_token_index": 1,
        "spatial_merge_size": merge,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }
    preprocessor = {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": side},
        "patch_size": {"height": patch, "width": patch},
        **MEAN,
    }
    processor = {
        "patch_size": patch,
        "spatial_merge_size": merge,
        "processor_class": "PixtralProcessor",
    }
    tokens = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    return JudgedModel(name, "[IMG]", config, preprocessor, tokens, processor)


def _split(name: str, kind: str, *, side: int, tile: int, scale: int, patch: int) -> JudgedModel:
    """Returns Idefics3 or SmolVLM, whose tiles have marks."""
    grid = [f"<row_{row}_col_{column}>" for row in range(1, 21) for column in range(1, 21)]
    tokens = (
        *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
        *("\n", "\n\n"),
    )
    config = {
        "architectures": [f"{kind}ForConditionalGeneration"],
        "model_type": kind.lower(),
        "text_config": LLAMA,
        "vision_config": {**TEXT, "image_size": tile, "patch_size": patch},
        "scale_factor": scale,
        "image_token_id": 1,
    }
    preprocessor = {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": {"longest_edge": side},
        "max_image_size": {"longest_edge": tile},
        "do_image_splitting": True,
        **MEAN,
    }
    length = (tile // patch) ** 2 // scale**2
    return JudgedModel(
        name,
        "<image>",
        config,
        preprocessor,
        (*tokens, *grid),
        {"image_seq_len": length, "processor_class": f"{kind}Processor"},
        {
            "extra_special_tokens": {
                "image_token": "<image>",
                "fake_image_token": "<fake_token_around_image>",
                "global_image_token": "<global-img>",
                "end_of_utterance_token": "<end_of_utterance>",
            }
        },
    )


def _minicpm(name: str, version: float, feature_size: int) -> JudgedModel:
    """Returns a model that cuts images into slices."""
    config = {
        "architectures": ["MiniCPMV"],
        "auto_map": {"AutoConfig": "remote_code.MiniCPMVConfig"},
        "model_type": "minicpmv",
        **TEXT,
        "version": version,
        "query_num": feature_size,
        "vision_config": {**TEXT, "image_size": 980, "patch_size": 14},
    }
    preprocessor = {
        "auto_map": {
            "AutoImageProcessor": "remote_code.MiniCPMVImageProcessor",
            "AutoProcessor": "remote_code.MiniCPMVProcessor",
        },
        "image_processor_type": "MiniCPMVImageProcessor",
        "processor_class": "MiniCPMVProcessor",
        "version": version,
        "image_feature_size": feature_size,
        "max_slice_nums": 9,
        "scale_resolution": 448,
    }
    marks = ("image", "slice", "image_id")
    return JudgedModel(
        name,
        "(<image>./</image>)",
        config,
        preprocessor,
        (
            *("(<image>./</image>)", "(<video>./</video>)", "<s>", "0", "\n"),
            *(f"<{mark}>" for mark in marks),
            *(f"</{mark}>" for mark in marks),
        ),
        attributes={"bos_token": "<s>"},
        code={"remote_code.py": MINICPM},
    )


def judged_models() -> tuple[JudgedModel, ...]:
    """Returns all models; those of films and sounds twice."""
    models = _models()
    others: list[JudgedModel] = []
    for model in models:
        if model.name in FILMS:
            others.append(model._replace(modality="video", prompt=FILMS[model.name]))
        if model.name in SOUNDS:
            others.append(model._replace(modality="audio", prompt=SOUNDS[model.name]))
    return (*models, *others)


def _models() -> tuple[JudgedModel, ...]:
    return (
        _qwen(
            "Qwen/Qwen2-VL-7B-Instruct",
            "qwen2_vl",
            "Qwen2VLForConditionalGeneration",
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2VLProcessor",
                "patch_size": 14,
                "min_pixels": 3136,
                "max_pixels": 12845056,
            },
        ),
        _qwen(
            "Qwen/Qwen2.5-VL-7B-Instruct",
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2_5_VLProcessor",
                "patch_size": 14,
                "min_pixels": 3136,
                "max_pixels": 12845056,
            },
        ),
        _qwen(
            "Qwen/Qwen3-VL-4B-Instruct",
            "qwen3_vl",
            "Qwen3VLForConditionalGeneration",
            {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "processor_class": "Qwen3VLProcessor",
                "patch_size": 16,
                "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            },
        ),
        _llava(
            "llava-hf/llava-1.5-7b-hf",
            "LlavaForConditionalGeneration",
            "llava",
            vision=CLIP,
            more={"image_seq_length": 576},
            preprocessor={**CLIP_PROCESSOR, "processor_class": "LlavaProcessor"},
        ),
        _llava(
            "llava-hf/llava-v1.6-mistral-7b-hf",
            "LlavaNextForConditionalGeneration",
            "llava_next",
            vision=CLIP,
            more={"image_grid_pinpoints": NEXT_PINPOINTS},
            preprocessor={
                **CLIP_PROCESSOR,
                "image_processor_type": "LlavaNextImageProcessor",
                "processor_class": "LlavaNextProcessor",
                "image_grid_pinpoints": NEXT_PINPOINTS,
            },
        ),
        _llava(
            "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
            "LlavaOnevisionForConditionalGeneration",
            "llava_onevision",
            vision=SIGLIP,
            more={
                "image_grid_pinpoints": ONEVISION_PINPOINTS,
                "vision_feature_select_strategy": "full",
                "vision_aspect_ratio": "anyres_max_9",
                "text_config": {**TEXT, "model_type": "qwen2"},
            },
            preprocessor={
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "processor_class": "LlavaOnevisionProcessor",
                "size": {"height": 384, "width": 384},
                "image_grid_pinpoints": ONEVISION_PINPOINTS,
            },
        ),
        _pixtral(
            "mistral-community/pixtral-12b",
            "LlavaForConditionalGeneration",
            "llava",
            side=1024,
            patch=16,
            merge=1,
        ),
        _pixtral(
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "Mistral3ForConditionalGeneration",
            "mistral3",
            side=1540,
            patch=14,
            merge=2,
        ),
        _split(
            "HuggingFaceM4/Idefics3-8B-Llama3", "Idefics3", side=1456, tile=364, scale=2, patch=14
        ),
        _split(
            "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
            "SmolVLM",
            side=1536,
            tile=384,
            scale=3,
            patch=14,
        ),
        JudgedModel(
            "OpenGVLab/InternVL3-8B",
            "<image>",
            {
                "architectures": ["InternVLChatModel"],
                "auto_map": {"AutoConfig": "configuration_internvl.InternVLChatConfig"},
                "model_type": "internvl_chat",
                "llm_config": {
                    **TEXT,
                    "model_type": "qwen2",
                    "architectures": ["Qwen2ForCausalLM"],
                },
                "vision_config": {
                    "model_type": "intern_vit_6b",
                    **TEXT,
                    "image_size": 448,
                    "patch_size": 14,
                },
                "downsample_ratio": 0.5,
                "dynamic_image_size": True,
                "force_image_size": 448,
                "max_dynamic_patch": 12,
                "min_dynamic_patch": 1,
                "use_thumbnail": True,
                "ps_version": "v2",
                "select_layer": -1,
                "template": "internvl2_5",
            },
            {},
            ("<image>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>", "<|video_pad|>"),
            code={"configuration_internvl.py": INTERNVL_CONFIGURATION},
        ),
        JudgedModel(
            "OpenGVLab/InternVL3-1B-hf",
            "<IMG_CONTEXT>",
            {
                "architectures": ["InternVLForConditionalGeneration"],
                "model_type": "internvl",
                "text_config": {**TEXT, "model_type": "qwen2"},
                "vision_config": {
                    "model_type": "internvl_vision",
                    "hidden_size": 64,
                    "intermediate_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "image_size": [448, 448],
                    "patch_size": [14, 14],
                },
                "image_token_id": 1,
                "image_seq_length": 256,
                "downsample_ratio": 0.5,
            },
            {
                "image_processor_type": "GotOcr2ImageProcessor",
                "processor_class": "InternVLProcessor",
                "size": {"height": 448, "width": 448},
                "min_patches": 1,
                "max_patches": 12,
                "crop_to_patches": False,
                **MEAN,
            },
            ("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
            {"image_seq_length": 256, "processor_class": "InternVLProcessor"},
            {
                "extra_special_tokens": {
                    "context_image_token": "<IMG_CONTEXT>",
                    "start_image_token": "<img>",
                    "end_image_token": "</img>",
                    "video_token": "<video>",
                }
            },
            video={"video_processor_type": "InternVLVideoProcessor"},
        ),
        JudgedModel(
            "deepseek-ai/DeepSeek-OCR",
            "<image>",
            {
                "architectures": ["DeepseekOCRForCausalLM"],
                "model_type": "deepseek_vl_v2",
                "language_config": {**TEXT, "model_type": "deepseek_v2"},
                "projector_config": {"projector_type": "linear", "n_embed": 64},
                "vision_config": {"image_size": 1024, "width": {}},
                "candidate_resolutions": [[1024, 1024]],
            },
            {},
            ("<image>", "<｜▁pad▁｜>", "<s>", "</s>"),
            {
                "patch_size": 16,
                "downsample_ratio": 4,
                "image_token": "<image>",
                "pad_token": "<｜▁pad▁｜>",
                "processor_class": "DeepseekVLV2Processor",
            },
            {"pad_token": "<｜▁pad▁｜>", "bos_token": "<s>", "eos_token": "</s>"},
        ),
        JudgedModel(
            "google/gemma-3n-E2B-it",
            "<image_soft_token>",
            {
                "architectures": ["Gemma3nForConditionalGeneration"],
                "model_type": "gemma3n",
                "text_config": {**TEXT, "model_type": "gemma3n_text", "head_dim": 16},
                "vision_config": {"model_type": "gemma3n_vision", "hidden_size": 64},
                "audio_config": {"model_type": "gemma3n_audio", "hidden_size": 64},
                "image_token_id": 1,
                "boi_token_id": 2,
                "eoi_token_id": 3,
                "audio_token_id": 4,
                "boa_token_id": 5,
                "eoa_token_id": 6,
            },
            {
                "image_processor_type": "SiglipImageProcessor",
                "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
                "processor_class": "Gemma3nProcessor",
                "size": {"height": 768, "width": 768},
                **MEAN,
            },
            (
                *("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
                *("<audio_soft_token>", "<start_of_audio>", "<end_of_audio>"),
                *("\n\n", "\n", "\n\n\n", "\n\n\n\n"),
            ),
            {"processor_class": "Gemma3nProcessor"},
            {
                "extra_special_tokens": {
                    "image_token": "<image_soft_token>",
                    "boi_token": "<start_of_image>",
                    "eoi_token": "<end_of_image>",
                    "audio_token": "<audio_soft_token>",
                    "boa_token": "<start_of_audio>",
                    "eoa_token": "<end_of_audio>",
                }
            },
        ),
        JudgedModel(
            "google/gemma-3-4b-it",
            "<start_of_image>",
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "model_type": "gemma3",
                "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 16},
                "vision_config": {**TEXT, **SIGLIP, "image_size": 896},
                "mm_tokens_per_image": 256,
                "boi_token_index": 1,
                "eoi_token_index": 2,
                "image_token_index": 3,
            },
            {
                "image_processor_type": "Gemma3ImageProcessor",
                "processor_class": "Gemma3Processor",
                "size": {"height": 896, "width": 896},
                "image_seq_length": 256,
                **MEAN,
            },
            (
                "<start_of_image>",
                "<end_of_image>",
                "<image_soft_token>",
                "\n\n",
                "\n",
                "\n\n\n",
                "\n\n\n\n",
            ),
            {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
            {
                "extra_special_tokens": {
                    "image_token": "<image_soft_token>",
                    "boi_token": "<start_of_image>",
                    "eoi_token": "<end_of_image>",
                }
            },
        ),
        JudgedModel(
            "google/gemma-4-31B-it",
            "<|image|>",
            {
                "architectures": ["Gemma4ForConditionalGeneration"],
                "model_type": "gemma4",
                "text_config": {**TEXT, "model_type": "gemma4_text", "head_dim": 16},
                "vision_config": {
                    "model_type": "gemma4_vision",
                    **TEXT,
                    "patch_size": 16,
                    "pooling_kernel_size": 3,
                    "default_output_length": 280,
                },
                "audio_config": {"model_type": "gemma4_audio", "hidden_size": 64},
                "image_token_id": 1,
                "boi_token_id": 2,
                "eoi_token_id": 3,
                "audio_token_id": 4,
                "video_token_id": 5,
                "boa_token_id": 6,
                "eoa_token_id": 7,
                "eoa_token_index": 7,
            },
            {
                "image_processor_type": "Gemma4ImageProcessor",
                "processor_class": "Gemma4Processor",
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "max_soft_tokens": 280,
            },
            ("<|image|>", "<|image>", "<image|>", "<|audio|>", "<|video|>", "<|audio>", "<audio|>"),
            {
                "processor_class": "Gemma4Processor",
                "image_seq_length": 280,
                "image_processor": {"image_processor_type": "Gemma4ImageProcessor"},
                "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
                "video_processor": {"video_processor_type": "Gemma4VideoProcessor"},
            },
            {
                "extra_special_tokens": {
                    "image_token": "<|image|>",
                    "boi_token": "<|image>",
                    "eoi_token": "<image|>",
                    "audio_token": "<|audio|>",
                    "boa_token": "<|audio>",
                    "eoa_token": "<audio|>",
                }
            },
        ),
        JudgedModel(
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
            "<|image|>",
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "model_type": "llama4",
                "text_config": {
                    **TEXT,
                    "model_type": "llama4_text",
                    "head_dim": 16,
                    "intermediate_size_mlp": 64,
                    "num_local_experts": 2,
                },
                "vision_config": {
                    "model_type": "llama4_vision_model",
                    **TEXT,
                    "image_size": 336,
                    "patch_size": 14,
                    "pixel_shuffle_ratio": 0.5,
                },
                "image_token_index": 2,
            },
            {
                "image_processor_type": "Llama4ImageProcessorFast",
                "processor_class": "Llama4Processor",
                "size": {"height": 336, "width": 336},
                "max_patches": 16,
                "resize_to_max_canvas": False,
                **MEAN,
            },
            (
                *("<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>"),
                *("<|tile_x_separator|>", "<|tile_y_separator|>"),
            ),
            {"patch_size": 14, "pixel_shuffle_ratio": 0.5, "processor_class": "Llama4Processor"},
        ),
        JudgedModel(
            "deepseek-ai/deepseek-vl2-tiny",
            "<image>",
            {
                "architectures": ["DeepseekVLV2ForCausalLM"],
                "model_type": "deepseek_vl_v2",
                "language_config": {**TEXT, "model_type": "deepseek_v2"},
                "projector_config": {"downsample_ratio": 2, "n_embed": 64},
                "vision_config": {"image_size": 384, "patch_size": 14, "width": 64, "layers": 2},
                "candidate_resolutions": CANDIDATES,
            },
            {},
            ("<image>", "<|▁pad▁|>", "<s>", "</s>"),
            {
                "candidate_resolutions": CANDIDATES,
                "downsample_ratio": 2,
                "patch_size": 14,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "image_token": "<image>",
                "pad_token": "<|▁pad▁|>",
                "processor_class": "DeepseekVLV2Processor",
            },
            {"pad_token": "<|▁pad▁|>", "bos_token": "<s>", "eos_token": "</s>"},
        ),
        JudgedModel(
            "zai-org/GLM-4.1V-9B-Thinking",
            "<|image|>",
            {
                "architectures": ["Glm4vForConditionalGeneration"],
                "model_type": "glm4v",
                "text_config": {
                    **TEXT,
                    "model_type": "glm4v_text",
                    "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]},
                },
                "vision_config": {
                    "model_type": "glm4v_vision",
                    "depth": 2,
                    "hidden_size": 64,
                    "out_hidden_size": 64,
                    "num_heads": 4,
                    "patch_size": 14,
                    "spatial_merge_size": 2,
                    "temporal_patch_size": 2,
                    "intermediate_size": 64,
                },
                "image_token_id": 1,
                "image_start_token_id": 2,
                "image_end_token_id": 3,
                "video_token_id": 4,
                "video_start_token_id": 5,
                "video_end_token_id": 6,
            },
            {
                "image_processor_type": "Glm4vImageProcessor",
                "processor_class": "Glm4vProcessor",
                "patch_size": 14,
                "merge_size": 2,
                "temporal_patch_size": 2,
                "size": {"shortest_edge": 12544, "longest_edge": 9633792},
                **MEAN,
            },
            (
                *("<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),
                *("<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
            ),
        ),
        JudgedModel(
            "Qwen/Qwen2-Audio-7B-Instruct",
            "<|AUDIO|>",
            {
                "architectures": ["Qwen2AudioForConditionalGeneration"],
                "model_type": "qwen2_audio",
                "audio_token_index": 1,
                "text_config": {**TEXT, "model_type": "qwen2"},
                "audio_config": {
                    "model_type": "qwen2_audio_encoder",
                    "d_model": 64,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 64,
                    "num_mel_bins": 128,
                    "max_source_positions": 1500,
                },
            },
            {
                "feature_extractor_type": "WhisperFeatureExtractor",
                "processor_class": "Qwen2AudioProcessor",
                "feature_size": 128,
                "hop_length": 160,
                "n_fft": 400,
                "chunk_length": 30,
                "n_samples": 480000,
                "nb_max_frames": 3000,
                "sampling_rate": 16000,
                "padding_side": "right",
                "return_attention_mask": True,
            },
            ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
            {"processor_class": "Qwen2AudioProcessor"},
            modality="audio",
        ),
        _minicpm("openbmb/MiniCPM-V-2_6", 2.6, 64),
        _minicpm("openbmb/MiniCPM-Llama3-V-2_5", 2.5, 96),
        JudgedModel(
            "allenai/Molmo-7B-D-0924",
            "<|endoftext|>",
            {
                "architectures": ["MolmoForCausalLM"],
                "auto_map": {"AutoConfig": "remote_code.MolmoConfig"},
                "model_type": "molmo",
                **TEXT,
            },
            {
                "auto_map": {"AutoProcessor": "remote_code.MolmoProcessor"},
                "processor_class": "MolmoProcessor",
                "base_image_input_size": [336, 336],
                "image_patch_size": 14,
                "image_token_length_h": 12,
                "image_token_length_w": 12,
                "max_crops": 12,
                "overlap_margins": [4, 4],
            },
            ("<|endoftext|>", "<im_patch>", "<im_col>", "<im_start>", "<im_end>"),
            attributes={"bos_token": "<|endoftext|>"},
            code={"remote_code.py": MOLMO},
        ),
    )
