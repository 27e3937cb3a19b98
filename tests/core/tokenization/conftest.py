"""Tokenizers that the tests share."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from app.core.text.files import TokenizerFolder
from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from tests.needs import RECORDING


@pytest.fixture(scope="session")
def embedded() -> LocalTokenizer:
    return default_tokenizer()


@pytest.fixture(scope="session")
def recorded() -> LocalTokenizer:
    return LocalTokenizer.from_path(RECORDING / "vllm-0.32" / "tiny")


@pytest.fixture(scope="session")
def sentencepiece() -> LocalTokenizer:
    """A vocabulary in the manner of SentencePiece:

    words start with a mark, rare characters are bytes.
    """
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat and the dog sat on the log"] * 5, trainer)

    content = json.loads(
        backend.to_str()
    )  # bytes are special to the trainer only: a decoder shows them
    added = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    folder = TokenizerFolder(tokenizer_file=Path("tokenizer.json"))
    plain = Tokenizer.from_str(json.dumps(content | {"added_tokens": added}))
    return LocalTokenizer(plain, folder, "sentencepiece")
