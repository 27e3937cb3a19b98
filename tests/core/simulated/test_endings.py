"""Stops, against a naive walk over the tokens; biases and lists of tokens, which decide a reply's
tokens.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.endings import REPETITION, end_of_tokens, ended
from app.core.engine.outputs import Finish
from app.core.engine.request import Reply
from app.core.engine.sampling import RepetitionDetection, Sampling
from app.core.engine.simulated.token_chooser import TokenChooser
from tests.core.engine.harness import Harness, embedded_tokenizer


def script(*texts: str) -> Reply:
    return Reply(list(texts), list(range(len(texts))), Finish("length"))


def naive(
    texts: list[str], stops: list[str], min_tokens: int, include: bool
) -> tuple[str, int, str | None]:
    """Text, token count and matched stop, found one token at a time as vLLM's detokenizer does."""
    text = ""
    for count, piece in enumerate(texts, 1):
        boundary = len("".join(texts[:min_tokens]))
        text += piece
        if count <= min_tokens:
            continue
        ends = []
        for order, stop in enumerate(stops):
            start = text.find(stop)
            while start >= 0 and start + len(stop) <= boundary:
                start = text.find(stop, start + 1)
            if start >= 0:
                ends.append((start + len(stop), order, start, stop))
        if ends:
            end, _, start, stop = min(ends)
            return text[: end if include else start], count, stop
    return text, len(texts), None


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.text("abc", max_size=3), min_size=1, max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4),
    min_tokens=st.integers(0, 5),
    include=st.booleans(),
)
def test_stop_strings_end_a_reply_as_in_a_token_by_token_search(
    texts: list[str], stops: list[str], min_tokens: int, include: bool
) -> None:
    got = ended(
        script(*texts),
        Sampling(stop=tuple(stops), min_tokens=min_tokens, include_stop_str_in_output=include),
    )
    text, count, stop = naive(texts, stops, min_tokens, include)
    assert ("".join(got.texts), len(got.ids)) == (text, count)
    assert got.finish == (Finish("stop", stop) if stop else Finish("length"))
    assert len(got.texts) == len(got.ids)


def test_possible_start_of_a_stop_string_is_held_back() -> None:
    got = ended(script("Hello", " wor", "ld", " END", "!"), Sampling(stop=("END",)))
    assert (got.texts, got.finish) == (["Hel", "lo w", "or", "ld "], Finish("stop", "END"))


def test_stop_token_is_counted_but_not_shown() -> None:
    got = ended(script("a", "b", "c"), Sampling(stop_token_ids=frozenset({1})))
    assert (got.texts, got.ids, got.finish) == (["a", ""], [0, 1], Finish("stop", 1))
    got = ended(script("a", "b", "c"), Sampling(stop_token_ids=frozenset({0, 2}), min_tokens=1))
    assert got.finish == Finish("stop", 2)


def naive_repetition(ids: list[int], detection: RepetitionDetection, min_tokens: int) -> int | None:
    """Count of tokens with which vLLM's scheduler ends a reply that repeats itself."""
    for count in range(max(1, min_tokens), len(ids) + 1):
        for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
            tail = ids[count - size * detection.min_count : count]
            if size * detection.min_count <= count and tail == tail[:size] * detection.min_count:
                return count
    return None


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    sizes=st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted),
    min_count=st.integers(2, 4),
    min_tokens=st.integers(0, 8),
)
def test_repetition_ends_a_reply_where_vllm_finds_it_first(
    ids: list[int], sizes: list[int], min_count: int, min_tokens: int
) -> None:
    detection = RepetitionDetection(
        min_pattern_size=sizes[0], max_pattern_size=sizes[1], min_count=min_count
    )
    sampling = Sampling(repetition_detection=detection, min_tokens=min_tokens)
    reply = ended(Reply([""] * len(ids), ids, Finish("stop")), sampling)
    count = naive_repetition(ids, detection, min_tokens)
    assert len(reply.ids) == (count or len(ids))
    finishes = {True: Finish("stop"), False: REPETITION}
    assert reply.finish == finishes[count is None]
    counts = range(1, len(ids) + 1)
    ends = [end for end in counts if end_of_tokens(ids[:end], 100, sampling) == REPETITION]
    assert next(iter(ends), None) == count


def test_limit_has_precedence_over_a_repetition_at_the_same_token() -> None:
    sampling = Sampling(repetition_detection=RepetitionDetection(max_pattern_size=1, min_count=2))
    assert end_of_tokens([5, 5], 2, sampling) == Finish("length")
    assert ended(Reply(["a", "a"], [5, 5], Finish("length")), sampling).finish == Finish("length")


END = embedded_tokenizer().eos_token_id or 0
ONE = embedded_tokenizer().encode("a")[0]
TWO = embedded_tokenizer().encode("b")[0]
VOCABULARY = 1000


def played(sampling: dict[str, Any], **fields: Any) -> tuple[list[int], str | None]:
    harness = Harness(mode="random")
    options = {"limited": True, "max_tokens": 12, "ignore_eos": False, **fields}
    harness.ask(**sampling, **options)
    harness.clock.advance(5)
    return [token for event in harness.tokens() for token in event.ids], harness.finish()


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"logprobs": 2}])
@pytest.mark.parametrize(
    ("sampling", "ids", "finish"),
    [
        ({"logit_bias": {ONE: 1e9, TWO: 50}}, [ONE] * 12, "length"),
        ({"allowed_token_ids": (TWO,)}, [TWO] * 12, "length"),
        ({"allowed_token_ids": (ONE, TWO), "logit_bias": {ONE: -100}}, [TWO] * 12, "length"),
        ({"logit_bias": {END: 100}}, [END], "stop"),
    ],
)
def test_logit_bias_of_100_and_allowed_token_ids_determine_the_tokens(
    sampling: dict[str, Any], ids: list[int], finish: str, how: dict[str, Any]
) -> None:
    assert played(sampling, **how) == (ids, finish)


def test_forbidden_or_ignored_eos_token_does_not_end_the_reply() -> None:
    assert played({"logit_bias": {END: -100}})[1] == "length"
    assert played({"logit_bias": {END: 100}}, ignore_eos=True) == ([END] * 12, "length")
    ids, finish = played({"logit_bias": {END: 100}}, min_tokens=4)
    assert (len(ids), ids[-1], finish) == (5, END, "stop")


def test_logit_bias_of_minus_100_forbids_tokens() -> None:
    unbiased = played({"logit_bias": {VOCABULARY: -1}}, seed=5)[0]
    forbidden = dict.fromkeys(unbiased[:-1], -100.0)
    for how in ({"seed": 5}, {"temperature": 0.0}, {}):
        assert not set(played({"logit_bias": forbidden}, **how)[0]) & set(forbidden)


def test_moderate_logit_bias_changes_the_token_probability() -> None:
    for bias, share in ((-100, 0), (0, 0), (6, 0.2), (7, 0.41), (100, 1)):
        rng = Random(1)
        tokens = TokenChooser(Sampling(logit_bias={7: bias}), VOCABULARY)
        chosen = Counter(tokens.choose(3, rng) for _ in range(5000))
        assert chosen[7] / 5000 == pytest.approx(share, abs=0.02) and set(chosen) <= {3, 7}
    for bias, token in ((5.0, 3), (9.0, 7)):
        assert (
            TokenChooser(Sampling(logit_bias={7: bias}, temperature=0), VOCABULARY).choose(
                3, Random(1)
            )
            == token
        )
