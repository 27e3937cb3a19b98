"""Writes the files of a model that vLLM's processors read."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from fidelity.judge_media.models import JudgedModel

UNKNOWN = "<unk>"


def write_files(model: JudgedModel, folder: Path) -> None:
    """Writes the configurations and a vocabulary of the special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {UNKNOWN: 0}
    for token in model.tokens:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([UNKNOWN, *model.tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    attributes = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": UNKNOWN,
        **model.attributes,
    }
    files = {
        "config.json": model.config,
        "preprocessor_config.json": model.preprocessor,
        "processor_config.json": model.processor,
        "video_preprocessor_config.json": model.video,
        "tokenizer_config.json": attributes,
    }
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        if content:
            path.write_text(json.dumps(content))
    for name, source in model.code.items():
        (folder / name).write_text(source)
