"""Scores: the more tokens two texts share, the higher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pooling.model import Bag, logit, sigmoid

IDS = st.lists(st.integers(0, 30), max_size=40)


def scored(query: list[int], document: list[int]) -> float:
    return sigmoid(logit(Bag(query), Bag(document)))


@given(query=IDS, document=IDS)
def test_a_score_is_between_0_and_1_and_the_same_from_both_sides(
    query: list[int], document: list[int]
) -> None:
    assert 0 < scored(query, document) < 1
    assert scored(query, document) == scored(document, query)


@given(query=st.lists(st.integers(0, 30), min_size=1, unique=True), shared=st.integers(0, 30))
def test_of_documents_of_one_length_the_one_with_more_common_tokens_wins(
    query: list[int], shared: int
) -> None:
    fewer = min(shared, len(query) - 1)
    strangers = list(range(100, 100 + len(query)))
    worse = query[:fewer] + strangers[fewer:]
    better = query[: fewer + 1] + strangers[fewer + 1 :]
    assert scored(query, worse) < scored(query, better)


@given(query=st.lists(st.integers(0, 30), min_size=1), document=IDS)
def test_nothing_matches_a_text_better_than_itself(query: list[int], document: list[int]) -> None:
    assert scored(query, document) <= scored(query, query) == pytest.approx(sigmoid(4))


def test_nothing_in_common_is_the_lowest_score() -> None:
    assert scored([1, 2], [3]) == scored([], [3]) == scored([], []) == pytest.approx(1 - sigmoid(4))


def test_the_order_of_tokens_does_not_matter() -> None:
    assert scored([1, 2, 3], [3, 2, 1]) == scored([1, 2, 3], [1, 2, 3])
