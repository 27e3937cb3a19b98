"""The files of the tiny model of which `recorded` has the answers."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from app.core.text.huggingface import EMBEDDED

MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = """\
{% for message in messages %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else %}\
{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% elif 'text' in part %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|endoftext|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
CONFIG = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 6400,
    "max_position_embeddings": 32768,
    "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": 128,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "intermediate_size": 64,
        "fullatt_block_indexes": [1],
        "window_size": 112,
        "in_channels": 3,
    },
}
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
FLAGS = (
    *("--served-model-name", "tiny-vl", "--max-model-len", "4096", "--block-size", "128"),
    *("--limit-mm-per-prompt", '{"image": 2, "video": 0}', "--mm-hasher-algorithm", "sha256"),
    *("--allowed-media-domains", "good.example", "--enable-prompt-tokens-details"),
)
"""Flags of `serve`, of the real server and of ours."""


def write_model(folder: Path) -> None:
    """Writes the files that both servers read; vLLM needs `--load-format dummy`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    tokenizer.add_special_tokens(MARKS)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {
        name: tokenizer.token_to_id(mark)
        for name, mark in zip(
            ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"),
            MARKS,
            strict=True,
        )
    }
    attributes = {
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "config.json").write_text(json.dumps(CONFIG | ids), "utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(attributes), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
