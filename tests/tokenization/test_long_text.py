"""A very long text has the same ids in parts as in one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text import LocalTokenizer
from app.text.long_text import LongTextEncoder
from tests.tokenization.kinds import KINDS

WORDS = (
    "the ", "cat", " cat", "Paris", " is ", "42", "1234567", "'s", "won't", " ", "  ", "\n", "\n\n", "\t",
    "é", "e\u0301", "\u0302", "東京", "。", "эти ", "🎉", "👍🏽", "<|user|>", "<mask>", " <mask>", "</s>",
    "café au lait", "▁", "▁the", "ﬁ", "½", "…", "\0", "\u3000", "aaa", "...", "==", "x" * 30, "00000", ", ",
)  # fmt: skip
LETTERS = ("a", "🎉👍🏽", "東京は日本の首都です", "0123456789", " ", "e\u0301", ".,;", "a ")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(special=st.booleans(), words=st.lists(st.sampled_from(WORDS), min_size=80, max_size=250))
def test_parts_have_the_ids_of_the_whole(kind: str, special: bool, words: list[str]) -> None:
    backend, text = KINDS[kind](), "".join(words)
    encoder = LongTextEncoder(backend, part=150, margin=100)
    assert encoder.encode(text, special) == backend.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("letters", LETTERS)
def test_texts_without_words_have_them_too(embedded: LocalTokenizer, letters: str) -> None:
    rng = Random(letters)
    encoder = LongTextEncoder(embedded.backend, part=3_000, margin=500)
    text = "".join(rng.choices(letters, k=20_000))
    assert encoder.encode(text, False) == embedded.backend.encode(text).ids


def test_most_texts_are_cut(embedded: LocalTokenizer) -> None:
    """Or else nothing would be gained."""
    asked: list[int] = []

    class Counting(LongTextEncoder):
        def _ids(self, text: str, add_special_tokens: bool = False) -> list[int]:
            asked.append(len(text))
            return super()._ids(text, add_special_tokens)

    for text in ("Some words of an ordinary question. " * 1_000, "長い文章です。" * 5_000, "a" * 30_000):
        asked.clear()
        Counting(embedded.backend, part=5_000, margin=500).encode(text, True)
        assert max(asked) <= 5_500
