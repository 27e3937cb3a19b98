"""Texts of mode random:

exactly as long as they say, of specified lengths, with log probabilities.
"""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.outputs import TokenLogprob
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.engine.simulated.logprobs import BROKEN, Entries
from app.core.engine.simulated.random_mode import (
    BUCKETS,
    bucket_range,
    free_length,
    limited_length,
)
from app.core.text.base import Tokenizer, TokenizerError
from app.core.text.huggingface import LocalTokenizer
from tests.core.engine.harness import embedded_corpus, embedded_tokenizer
from tests.needs import RECORDING

RECORDED = RECORDING / "vllm-0.32" / "tiny"


@cache
def recorded_tokenizer() -> Tokenizer:
    return LocalTokenizer.from_path(RECORDED)


RECORDED_CORPUS = cache(lambda: Corpus(recorded_tokenizer(), sample_sentences()))


def counts_exactly(tokenizer: Tokenizer, book: Corpus, count: int, seed: int) -> None:
    ids, texts = book.compose(count, Random(seed))
    text = "".join(texts)
    assert len(ids) == len(texts) == count and "\ufffd" not in text
    assert (tokenizer.encode(text), tokenizer.decode(ids)) == (ids, text)


@given(count=st.integers(0, 400), seed=st.integers(0, 2**64))
@settings(max_examples=50, deadline=None)
def test_encoding_a_reply_gives_exactly_the_counted_token_ids(count: int, seed: int) -> None:
    counts_exactly(embedded_tokenizer(), embedded_corpus(), count, seed)


@pytest.mark.shared
@given(count=st.integers(0, 400), seed=st.integers(0, 2**64))
@settings(max_examples=50, deadline=None)
def test_recorded_tokenizer_encodes_a_reply_to_the_counted_token_ids(count: int, seed: int) -> None:
    counts_exactly(recorded_tokenizer(), RECORDED_CORPUS(), count, seed)


def test_replies_differ_and_contain_several_writing_systems() -> None:
    rng = Random(1)
    replies = ["".join(embedded_corpus().compose(40, rng)[1]) for _ in range(1000)]
    assert len(set(replies)) > 900
    assert len({reply[:20] for reply in replies}) > 150
    text = "".join(replies)
    assert any("\u4e00" <= character <= "\u9fff" for character in text)
    assert any("\U0001f300" <= character <= "\U0001faff" for character in text)
    assert "def " in text or "import " in text or "return " in text


def test_tokenizer_that_cannot_reproduce_the_sample_sentences_is_rejected() -> None:
    deaf: Any = SimpleNamespace(name="deaf", vocab_size=1, is_embedded=False)
    deaf.encode_many = lambda texts: [[0] for _ in texts]
    deaf.pieces = lambda ids: ["?" for _ in ids]
    with pytest.raises(TokenizerError, match="deaf"):
        Corpus(deaf, sample_sentences())


@pytest.mark.parametrize(
    ("max_tokens", "ranges"),
    [
        (47, [(1, 9), (10, 18), (19, 27), (28, 36), (37, 46)]),
        (500, [(1, 20), (21, 40), (41, 60), (61, 480), (481, 499)]),
        (7, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6)]),
    ],
)
def test_reply_length_buckets_have_the_specified_ranges(
    max_tokens: int, ranges: list[tuple[int, int]]
) -> None:
    assert [bucket_range(max_tokens, bucket) for bucket in range(BUCKETS)] == ranges


@pytest.mark.parametrize("draw_length", [free_length, limited_length])
@given(max_tokens=st.integers(1, 5000), seed=st.integers(0, 2**32))
def test_reply_length_is_at_least_two_unless_the_limit_is_one(
    draw_length: Callable[[int, Random], int], max_tokens: int, seed: int
) -> None:
    assert min(2, max_tokens) <= draw_length(max_tokens, Random(seed)) <= max_tokens


def test_reply_lengths_average_41_tokens_and_15_percent_reach_the_limit() -> None:
    rng = Random(4)
    reached = sum(limited_length(300, rng) == 300 for _ in range(10_000))
    assert reached / 10_000 == pytest.approx(0.15, abs=0.01)
    drawn = [free_length(4000, rng) for _ in range(10_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(41, abs=1.5)
    assert min(drawn) == 2


SIZE = embedded_tokenizer().vocab_size or 0
IDS = st.lists(st.integers(0, SIZE - 1), max_size=30)


def reply_logprobs(
    tokenizer: Tokenizer, ids: list[int], wanted: int, named: tuple[int, ...] = ()
) -> list[TokenLogprob]:
    entries = Entries(tokenizer, ids, wanted - 1, named)
    return list(map(entries.entry, range(len(ids))))


@given(ids=IDS, wanted=st.integers(0, 20))
def test_logprob_alternatives_are_valid_tokens_with_decreasing_probability(
    ids: list[int], wanted: int
) -> None:
    entries = reply_logprobs(embedded_tokenizer(), ids, wanted)
    assert [entry.token_id for entry in entries] == ids
    for entry in entries:
        tokens, texts, logprobs = zip(*entry.top, strict=True)
        assert entry.top[0] == (entry.token_id, entry.token, entry.logprob)
        assert len(tokens) == len(set(tokens)) == max(wanted, 1)
        assert all(0 <= token < SIZE for token in tokens)
        alone = embedded_tokenizer().token_texts(tokens[1:])
        assert list(texts[1:]) == alone and BROKEN not in "".join(alone) and all(alone)
        assert list(logprobs) == sorted(logprobs, reverse=True) and logprobs[0] < 0


def test_tokens_without_text_come_last_among_the_logprob_alternatives() -> None:
    [entry] = reply_logprobs(embedded_tokenizer(), [9], SIZE)
    assert sorted(token for token, _, _ in entry.top) == list(range(SIZE))
    names = [name == "" for _, name, _ in entry.top]
    assert names == sorted(names) and any(names)


def test_logprobs_include_the_token_ids_that_the_request_names() -> None:
    for entry in reply_logprobs(embedded_tokenizer(), [9, 65], 3, (5, 9, 65)):
        named = [token_id for token_id in (5, 9, 65) if token_id != entry.token_id]
        assert [token for token, _, _ in entry.top] == [entry.token_id, *named]
    entries = reply_logprobs(embedded_tokenizer(), [9] * 4, 2)
    assert [entry.logprob for entry in entries] == [-1.0, -1.1, -1.2, -1.0]
    assert [entry.top[1][2] for entry in entries] == [-1.5, -1.6, -1.7, -1.5]


def test_logprob_text_of_a_split_character_belongs_to_its_last_token() -> None:
    tokenizer = embedded_tokenizer()
    text = "naïve 𝔘 ꙮ 🦉"
    entries = reply_logprobs(tokenizer, tokenizer.encode(text), 0)
    assert "".join(entry.token for entry in entries) == text
    assert any(entry.token == "" for entry in entries)


def test_unknown_vocabulary_size_limits_logprob_alternatives_to_low_ids() -> None:
    def texts_of(ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        return [str(token_id) for token_id in ids]

    remote: Any = SimpleNamespace(vocab_size=None, pieces=texts_of, token_texts=texts_of)
    entries = reply_logprobs(remote, [3, 5, 0], wanted=6)
    for entry in entries:
        assert sorted(token_id for token_id, _, _ in entry.top) == [0, 1, 2, 3, 4, 5]
