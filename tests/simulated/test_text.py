"""Replies are exactly as long as they say, whoever counts."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.simulated.corpus import Corpus, sample_sentences
from app.tokenization import Tokenizer, TokenizerError, load_tokenizer
from tests.engine.harness import embedded_corpus, embedded_tokenizer
from tests.needs import RECORDING

RECORDED = RECORDING / "vllm-0.32" / "tiny"


@cache
def recorded_tokenizer() -> Tokenizer:
    return load_tokenizer(
        model="tiny",
        tokenizer=str(RECORDED),
        explicit=True,
        force_dummy=False,
        render_url=None,
        render_timeout_s=1.0,
        hf_token=None,
    )


@cache
def recorded_corpus() -> Corpus:
    return Corpus(recorded_tokenizer(), sample_sentences())


def counts_exactly(tokenizer: Tokenizer, book: Corpus, count: int, seed: int) -> None:
    ids, texts = book.compose(count, Random(seed))
    text = "".join(texts)
    assert len(ids) == len(texts) == count
    assert "\ufffd" not in text
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


@pytest.mark.slow
@given(count=st.integers(0, 400), seed=st.integers(0, 2**64))
@settings(max_examples=300, deadline=None)
def test_a_reply_encoded_again_is_exactly_the_ids_that_were_counted(count: int, seed: int) -> None:
    counts_exactly(embedded_tokenizer(), embedded_corpus(), count, seed)


@pytest.mark.shared
@given(count=st.integers(0, 400), seed=st.integers(0, 2**64))
@settings(max_examples=200, deadline=None)
def test_so_it_is_with_another_tokenizer(count: int, seed: int) -> None:
    counts_exactly(recorded_tokenizer(), recorded_corpus(), count, seed)


def test_a_thousand_replies_do_not_look_alike() -> None:
    rng = Random(1)
    replies = ["".join(embedded_corpus().compose(40, rng)[1]) for _ in range(1000)]
    assert len(set(replies)) > 900
    assert len({reply[:20] for reply in replies}) > 150


def test_replies_are_in_several_scripts() -> None:
    rng = Random(1)
    text = "".join("".join(embedded_corpus().compose(40, rng)[1]) for _ in range(500))
    assert any("\u4e00" <= character <= "\u9fff" for character in text)
    assert any("\U0001f300" <= character <= "\U0001faff" for character in text)
    assert "def " in text or "import " in text or "return " in text


class Deaf:
    """A tokenizer that keeps nothing of what it is told."""

    name = "deaf"
    vocab_size = 1

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[0] for _ in texts]

    def pieces(self, ids: list[int]) -> list[str]:
        return ["?" for _ in ids]


def test_a_tokenizer_that_is_lossy_throughout_is_refused() -> None:
    with pytest.raises(TokenizerError, match="deaf"):
        Corpus(Deaf(), sample_sentences())  # type: ignore[arg-type]
