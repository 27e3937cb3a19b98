"""Real tokenizers of every kind that matters to where a text may be cut, trained on a few lines."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The capital of France is Paris, and the answer to all of it is 42 or 1234567.",
    "the cat sat on the mat; the dog's log won't burn. aaa aaaa bababa\n\n    return x == y\n",
    "Überall naïve cafés, straße und Äpfel. 東京は日本の首都です。 эти слова 🎉🎉👍🏽 e\u0301a\u0302\u0301",
    "https://example.org/a/very/long/path?with=query&and=0123456789 <|user|> <mask>",
)  # fmt: skip
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def embedded() -> tokenizers.Tokenizer:
    from app.text.loading import EMBEDDED

    return tokenizers.Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2 and RoBERTa, with offsets without blanks and all that added tokens can be told."""
    made = _bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.ByteLevel.alphabet())
    made.normalizer = normalizers.NFC()
    made.add_tokens(
        [
            AddedToken("<mask>", lstrip=True),
            AddedToken("<gap>", rstrip=True),
            AddedToken("cat", single_word=True),
            AddedToken("café au lait"),
        ]
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), trim_offsets=True)
    return made


def llama_3() -> tokenizers.Tokenizer:
    splits = [
        pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made = _bpe(pre_tokenizers.Sequence(splits), pre_tokenizers.ByteLevel.alphabet())
    made.post_processor = processors.Sequence([processors.ByteLevel(), _template("<s> $A")])
    return made


def llama_2() -> tokenizers.Tokenizer:
    """No pre-tokenizer: one run of merges over the whole text."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(CORPUS * 3, _bpe_trainer(600, [*SPECIAL, *BYTES]))
    made.pre_tokenizer = None
    made.post_processor = _template("<s> $A </s>")
    return made


def unigram() -> tokenizers.Tokenizer:
    """T5 and XLM-R."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS * 3, trainer)
    made.post_processor = _template("$A </s>")
    return made


def signs() -> tokenizers.Tokenizer:
    """Every character is a word, and normalisation reaches over as many as it likes."""
    made = _bpe(pre_tokenizers.Split(Regex("."), "isolated"), [], unk_token="<unk>")
    made.normalizer = normalizers.NFKD()
    made.add_tokens([AddedToken("<mask>", lstrip=True)])
    return made


def from_right() -> tokenizers.Tokenizer:
    """Digits in groups that are counted from the end: never in parts."""
    digits = Regex(r"\d{1,3}(?=(?:\d{3})*(?!\d))")
    return _bpe(pre_tokenizers.Split(digits, "isolated"), [], unk_token="<unk>")


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    kind.__name__: cache(kind)
    for kind in (embedded, byte_level, llama_3, llama_2, unigram, signs, from_right)
}


def _bpe(pre_tokenizer: Any, alphabet: Sequence[str], **settings: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(**settings))
    made.pre_tokenizer = pre_tokenizer
    made.train_from_iterator(CORPUS * 3, _bpe_trainer(500, SPECIAL, alphabet))
    return made


def _bpe_trainer(size: int, special: Sequence[str], alphabet: Sequence[str] = ()) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special], initial_alphabet=[*alphabet], show_progress=False
    )


def _template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
