"""The files of the tiny speech model of which `recorded` has the answers."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from app.core.text.huggingface import EMBEDDED
from app.extensions.media.speech.languages import NAMES

MAX_TIMESTAMP = 1_500
"""Number of the last timestamp, in steps of 20 ms."""
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "num_hidden_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "max_length": 448,
    "activation_function": "gelu",
    "scale_embedding": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "chunk_length": 30,
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480_000,
    "nb_max_frames": 3_000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
    "sampling_rate": 16_000,
}
FLAGS = ("--served-model-name", "tiny-whisper", "--max-model-len", "448")
"""Flags of `serve`, of the real server and of ours."""


def write_model(folder: Path) -> None:
    """Writes the files that both servers read; vLLM needs `--load-format dummy`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    marks = ["<|startoftranscript|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>"]
    marks += ["<|prev|>", *(f"<|{language}|>" for language in NAMES)]
    tokenizer.add_special_tokens(marks)
    times = [f"<|{number / 50:.2f}|>" for number in range(MAX_TIMESTAMP + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "decoder_start_token_id": tokenizer.token_to_id("<|startoftranscript|>"),
    }
    attributes = {
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "processor_class": "WhisperProcessor",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "config.json").write_text(json.dumps(CONFIG | sizes), "utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(attributes), "utf-8")
