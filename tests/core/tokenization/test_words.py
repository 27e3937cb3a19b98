"""Texts that are encoded word by word have the ids that the library gives them as a whole."""

import string
from collections.abc import Sequence
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from app.core.text.files import TokenizerFolder
from app.core.text.huggingface import EMBEDDED, LocalTokenizer, default_tokenizer
from app.core.text.words import TextParts, WordEncoder, has_independent_words

ASCII = "".join(map(chr, range(128)))
SPECIAL = ("<|user|>", "<|user|>>", "<|user|", "<|", "|>", "<|endoftext|>")
SPELLING = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LETTERS = [SPELLING.pre_tokenize_str(character)[0][0] for character in ASCII]
"""How the vocabulary of a byte-level BPE spells them."""
PAIRS = [(first, second) for first in LETTERS for second in LETTERS]
TOKENS = sorted({*pre_tokenizers.ByteLevel.alphabet(), *map("".join, PAIRS)})
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


def byte_level(
    added: Sequence[str | AddedToken] = ("<|user|>", "<|user|>>", "<|endoftext|>"),
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    dropout: float | None = None,
) -> Tokenizer:
    """A byte-level BPE with a token for any two characters, so that its ids show where words begin."""
    tokenizer = Tokenizer(models.BPE(VOCABULARY, PAIRS, dropout=dropout))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [
        AddedToken(token, special=True) if isinstance(token, str) else token for token in added
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


def lowercase() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@cache
def embedded_backend() -> Tokenizer:
    return default_tokenizer().backend


@cache
def pairwise() -> Tokenizer:
    return byte_level()


@cache
def encoders() -> list[tuple[WordEncoder, Tokenizer]]:
    """Encoders that remember the words of earlier texts, and what they encode like."""
    return [
        (WordEncoder(embedded_backend()), embedded_backend()),
        (WordEncoder(pairwise()), pairwise()),
        (WordEncoder(pairwise(), limit_bytes=2_000), pairwise()),
    ]


PIECES = [
    *(*SPECIAL, "What", " is", " it", "'s", "'ll", "'LL", " ", "  ", "\n", "\r\n", "\t", "\x0b"),
    *("\x1c", "1234"),
]
TEXTS = st.lists(
    st.sampled_from(PIECES)
    | st.text(ASCII, max_size=6)
    | st.text(string.ascii_letters + " '", max_size=12),
    max_size=12,
).map("".join)


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_ascii_texts_are_encoded_as_by_the_tokenizers_library(text: str) -> None:
    for encoder, backend in encoders():
        expected = backend.encode(text, add_special_tokens=False).ids
        assert encoder.encode(text) == encoder.encode(text) == expected
        assert encoder.size_bytes <= encoder.limit_bytes


@settings(max_examples=25, deadline=None)
@given(TEXTS | st.text(max_size=30), st.booleans())
def test_any_text_is_encoded_as_by_the_tokenizers_library(text: str, framed: bool) -> None:
    for tokenizer in tokenizers():
        expected = tokenizer.backend.encode(text, add_special_tokens=framed).ids
        assert tokenizer.encode(text, framed) == expected
        assert tokenizer.encode(text, framed) == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers(0, 200)), max_size=4), st.sampled_from(SPECIAL))
def test_cached_text_parts_are_encoded_as_by_the_tokenizers_library(
    parts: list[tuple[str, int]], separator: str
) -> None:
    text = separator.join(part * count for part, count in parts)
    expected = embedded_backend().encode(text, add_special_tokens=False).ids
    encoder = WordEncoder(embedded_backend())
    for _ in range(4):
        assert encoder.encode(text) == expected


def test_text_parts_are_cached_from_their_second_use_within_a_limit() -> None:
    parts = TextParts(added_tokens={"<added>": [7]}, limit_bytes=20_000)
    parts.learn("a" * 100, [1, 2])
    assert parts == {"<added>": [7]} and parts.size_bytes == 0
    for number in range(1_000):
        for _ in range(2):
            parts.learn(f"{number:0>100}", [number] * 30)
        assert 0 < parts.size_bytes <= parts.limit_bytes
    assert parts[f"{999:0>100}"] == [999] * 30
    parts.learn("b" * 30_000, [1])
    parts.learn("b" * 30_000, [1])
    assert "b" * 30_000 not in parts
    assert parts["<added>"] == [7]


def told_to_encode_special_tokens() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.encode_special_tokens = True
    return tokenizer


@cache
def other_tokenizers() -> dict[str, Tokenizer]:
    """Tokenizers whose words depend on each other, by the reason."""
    return {
        "special tokens as text": told_to_encode_special_tokens(),
        "normalizer": lowercase(),
        "prefix space": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "no pattern": byte_level(
            pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ),
        "another pattern": byte_level(
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        ),
        "whitespace": byte_level(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        "dropout": byte_level(dropout=0.5),
        "left strip": byte_level([AddedToken("<|user|>", lstrip=True)]),
        "right strip": byte_level([AddedToken("<|user|>", rstrip=True)]),
        "single word": byte_level([AddedToken("the", single_word=True)]),
        "normalized": byte_level([AddedToken("<|user|>", normalized=True)]),
        "no pre-tokenizer": Tokenizer(models.BPE(vocab={"a": 0}, merges=[])),
        "no BPE": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    }


def test_word_cache_requires_a_tokenizer_that_encodes_words_separately() -> None:
    others = other_tokenizers()
    assert [name for name in others if has_independent_words(others[name])] == []
    assert has_independent_words(pairwise()) and has_independent_words(embedded_backend())


def framed() -> Tokenizer:
    """A tokenizer that puts a token in front of every text."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", tokenizer.token_to_id("<|user|>"))]
    )
    return tokenizer


def local(backend: Tokenizer) -> LocalTokenizer:
    return LocalTokenizer(
        backend, TokenizerFolder(tokenizer_file=EMBEDDED / "tokenizer.json"), "test"
    )


@cache
def tokenizers() -> list[LocalTokenizer]:
    """Tokenizers that encode a text always in the same way."""
    others = [local(backend) for name, backend in other_tokenizers().items() if name != "dropout"]
    return [default_tokenizer(), local(framed()), *others]
