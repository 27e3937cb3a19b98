"""Long texts, which are tokenized in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from app.core.base.callers import current_caller
from app.core.base.overload import MemoryExceededError
from app.core.base.request_memory import RequestMemory
from app.core.text import long_texts
from app.core.text.base import KeptTokens
from app.core.text.huggingface import default_tokenizer
from app.core.text.long_texts import CUTS, LongTexts
from tests.core.memory.test_fair_slots import Request

BACKEND = default_tokenizer().backend
PROPERTY = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
PARTS = (
    *("a", "b ", "the ", " of", "\n", ", ", ". ", "日本", "語", "。", "、", "x1", "12", "3.5", " "),
    *("  ", "\t", "'s", "it's", "é", "Привет", "!", "?", ":", "\r\n", "-", "_", "<|im_start|>"),
    *("http://a.b/c", '{"a": 1}', "\N{GRINNING FACE}"),
)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts texts of a few hundred characters."""
    monkeypatch.setattr(long_texts, "PIECE", 50)


def whole(backend: Any, text: str, add_special_tokens: bool = False) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
    return ids


@given(st.lists(st.sampled_from(PARTS), max_size=200).map("".join))
@PROPERTY
def test_pieces_have_the_ids_of_the_whole_text(text: str) -> None:
    assert LongTexts(BACKEND).encode(text, False, None) == whole(BACKEND, text)


@given(
    st.lists(st.sampled_from(PARTS), min_size=50, max_size=200).map("".join),
    st.integers(1, 60),
    st.booleans(),
)
@PROPERTY
def test_kept_tokens_are_those_of_the_whole_text(text: str, count: int, from_end: bool) -> None:
    ids = LongTexts(BACKEND).encode(text, False, KeptTokens(count, from_end))
    expected = whole(BACKEND, text)
    if from_end:
        assert ids[-count:] == expected[-count:]
    else:
        assert ids[:count] == expected[:count]


def test_text_is_tokenized_no_further_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = LongTexts(BACKEND)
    pieces: list[str] = []
    encode = texts._encode_shared

    def note(piece: str) -> list[list[int]]:
        pieces.append(piece)
        return encode(piece)

    monkeypatch.setattr(texts, "_encode_shared", note)
    text = "one two three " * 1000
    assert len(texts.encode(text, False, KeptTokens(20))) >= 20
    assert text.startswith("".join(pieces)) and len("".join(pieces)) < 200
    pieces.clear()
    texts.encode(text, False, KeptTokens(20, from_end=True))
    assert text.endswith("".join(reversed(pieces))) and len("".join(pieces)) < 200


def trained(pre_tokenizer: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    """Returns a BPE tokenizer of few words."""
    backend = tokenizers.Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat, and the dog saw it. "] * 50, trainer)
    return backend


def test_tokenizers_are_cut_where_their_words_are_independent() -> None:
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                tokenizers.Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert LongTexts(trained(split)).cut is CUTS[0]
    assert LongTexts(trained(pre_tokenizers.ByteLevel(add_prefix_space=False))).cut is CUTS[0]
    assert LongTexts(trained(None)).cut is None
    prefix = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert LongTexts(trained(prefix)).cut is not CUTS[0]
    stripped = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip())
    assert LongTexts(stripped).cut is None


def test_special_tokens_surround_the_pieces() -> None:
    backend = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    text = "the cat sat on the mat, and the dog saw it. " * 20
    texts = LongTexts(backend)
    expected = whole(backend, text, add_special_tokens=True)
    assert texts.encode(text, True, None) == expected
    assert texts.encode(text, True, KeptTokens(9))[:9] == expected[:9]
    assert texts.encode(text, True, KeptTokens(9, from_end=True))[-9:] == expected[-9:]
    assert texts.encode_many(["the", text, "cat"], True) == [
        whole(backend, part, add_special_tokens=True) for part in ("the", text, "cat")
    ]


class CountedRequest(Request):
    """A request whose memory is counted."""

    def __init__(self, memory: RequestMemory) -> None:
        super().__init__("a")
        self.claimed = memory.claim()

    @property
    def claim(self) -> Any:
        return self.claimed


def test_memory_of_a_text_without_words_is_claimed_before_it_is_tokenized() -> None:
    memory = RequestMemory(1 << 20, 1 << 40, lambda: 0)
    request = CountedRequest(memory)
    token = current_caller.set(request)
    texts = LongTexts(BACKEND)
    try:
        texts.encode("x" * 1000, False, None)
        assert 0 < request.claimed.size_bytes < 1 << 15
        with pytest.raises(MemoryExceededError):
            texts.encode("x" * 10_000, False, None)
        texts.encode("x y " * 2500, False, None)
    finally:
        current_caller.reset(token)
