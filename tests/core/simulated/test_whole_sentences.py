"""Replies without a limit end with a sentence, and keep the length that was drawn."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.simulated.corpus import sample_sentences
from app.core.engine.simulated.whole_sentences import reachable_sums
from tests.core.engine.harness import Harness, embedded_corpus, embedded_tokenizer

WHOLE = set(sample_sentences().prose)


def sentences_of(text: str) -> list[str]:
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text)


def test_every_sample_sentence_has_a_capital_and_end_punctuation() -> None:
    assert [
        sentence for sentence in WHOLE if not (sentence[0].isupper() and sentence[-1] in ".!?")
    ] == []
    assert "".join(WHOLE).isascii()


@given(tokens=st.integers(0, 400), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_reply_of_nine_or_more_tokens_consists_of_whole_sentences(tokens: int, seed: int) -> None:
    ids, texts = embedded_corpus().whole_sentences.compose(tokens, Random(seed))
    text = "".join(texts)
    assert set(sentences_of(text)) <= WHOLE
    assert embedded_tokenizer().encode(text) == ids and len(ids) == len(texts)
    if tokens >= 9:
        assert len(ids) == tokens
    else:
        assert 5 <= len(ids) <= 9


def test_reply_without_a_token_limit_ends_with_a_whole_sentence() -> None:
    harness = Harness(seed=3)
    fields = {"max_tokens": 4000, "ignore_eos": False}
    lengths = []
    for number in range(300):
        harness.ask(f"free {number}", limited=False, **fields)
        assert harness.finish(f"free {number}") == "stop"
        assert set(sentences_of(harness.said(f"free {number}"))) <= WHOLE
        lengths.append(sum(len(event.ids) for event in harness.tokens(f"free {number}")))
    assert sum(lengths) / 300 == pytest.approx(41, abs=4)
    assert len({harness.said(f"free {number}") for number in range(300)}) > 280
    for number in range(50):
        harness.ask(f"cut {number}", limited=True, max_tokens=6)
        assert harness.said(f"cut {number}").isascii()
        assert harness.finish(f"cut {number}") == "length"


@given(room=st.integers(1, 60), min_tokens=st.integers(0, 60), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_reply_is_not_longer_than_the_rest_of_the_context(
    room: int, min_tokens: int, seed: int
) -> None:
    harness = Harness(seed=seed)
    harness.ask(max_tokens=room, min_tokens=min(min_tokens, room), limited=False, ignore_eos=False)
    count = sum(len(event.ids) for event in harness.tokens())
    assert max(1, min(min_tokens, room)) <= count <= room
    assert harness.finish() == ("length" if count == room else "stop")


def test_reachable_reply_lengths_are_the_sums_of_sentence_lengths() -> None:
    sums = reachable_sums([6, 4])
    assert [total for total, reachable in enumerate(sums) if reachable] == [0, 4, 6, 8, 10, 12]


def test_reasoning_without_a_token_limit_consists_of_whole_sentences() -> None:
    harness = Harness(seed=3)
    for number in range(20):
        name = str(number)
        harness.ask(name, reasoning=True, limited=False, max_tokens=4000, ignore_eos=False)
        thoughts = "".join(
            text
            for event in harness.tokens(name)
            if event.part is not None and event.part.kind == "reasoning"
            for text in event.texts
        )
        assert set(sentences_of(thoughts)) <= WHOLE
