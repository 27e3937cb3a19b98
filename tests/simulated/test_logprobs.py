"""Log probabilities that nobody computed are at least consistent (simulator.md section 8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.simulated.model import BROKEN, prompt_logprobs, reply_logprobs
from tests.engine.harness import embedded_tokenizer

SIZE = embedded_tokenizer().vocab_size or 0
IDS = st.lists(st.integers(0, SIZE - 1), max_size=30)


@given(ids=IDS, wanted=st.integers(0, 20))
def test_each_token_comes_first_and_its_alternatives_are_other_real_tokens_less_and_less_likely(
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


def test_all_tokens_are_alternatives_and_those_without_a_name_come_last() -> None:
    [entry] = reply_logprobs(embedded_tokenizer(), [9], SIZE)
    assert sorted(token for token, _, _ in entry.top) == list(range(SIZE))
    names = [name == "" for _, name, _ in entry.top]
    assert names == sorted(names) and any(names)


def test_a_client_may_name_the_alternatives() -> None:
    for entry in reply_logprobs(embedded_tokenizer(), [9, 65], 3, (5, 9, 65)):
        assert entry.top[0][0] == entry.token_id
        assert [token for token, _, _ in entry.top[1:]] == [
            each for each in (5, 9, 65) if each != entry.token_id
        ]


def test_the_probability_of_a_token_follows_its_position() -> None:
    entries = reply_logprobs(embedded_tokenizer(), [9] * 4, 2)
    assert [entry.logprob for entry in entries] == [-1.0, -1.1, -1.2, -1.0]
    assert [entry.top[1][2] for entry in entries] == [-1.5, -1.6, -1.7, -1.5]


@given(ids=IDS)
def test_nothing_comes_before_the_first_token_of_a_prompt(ids: list[int]) -> None:
    entries = prompt_logprobs(embedded_tokenizer(), ids, 1)
    assert len(entries) == len(ids)
    assert [entry is None for entry in entries] == [k == 0 for k in range(len(ids))]


def test_half_a_character_has_no_name_and_the_token_that_completes_it_has_the_whole() -> None:
    tokenizer = embedded_tokenizer()
    text = "naïve 𝔘 ꙮ 🦉"
    entries = reply_logprobs(tokenizer, tokenizer.encode(text), 0)
    assert "".join(entry.token for entry in entries) == text
    assert any(entry.token == "" for entry in entries)
