"""The vectors of simulator.md 2.8."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pooling.model import embedding, normalized

IDS = st.lists(st.integers(0, 2**40), min_size=1, max_size=60)


def test_the_vector_is_the_one_that_the_reference_computes() -> None:
    vector = embedding([1, 2, 3], 5)
    assert vector.tolist() == [-0.998046875, -0.99609375, -0.994140625, -0.9921875, -0.984375]


def test_no_tokens_are_no_direction() -> None:
    assert embedding([], 3).tolist() == normalized(embedding([], 3)).tolist() == [0, 0, 0]


@given(ids=IDS, dimensions=st.integers(1, 200))
def test_each_component_follows_the_formula(ids: list[int], dimensions: int) -> None:
    n = len(ids)
    wanted = [
        2 * (ids[i] % 1024) / 1024 - 1 if i < n else 2 * (ids[i % n] % 256) / 256 - 1
        for i in range(dimensions)
    ]
    assert embedding(ids, dimensions).tolist() == wanted


@given(ids=IDS, short=st.integers(1, 50), more=st.integers(0, 50))
def test_a_shorter_vector_is_the_beginning_of_a_longer_one(ids: list[int], short: int, more: int) -> None:
    assert embedding(ids, short + more)[:short] == embedding(ids, short)


@given(ids=IDS, dimensions=st.integers(2, 100))
def test_a_normalized_vector_has_length_one_and_the_same_direction(ids: list[int], dimensions: int) -> None:
    vector = embedding(ids, dimensions)
    unit = normalized(vector)
    length = math.dist(vector, [0] * dimensions)
    if length:
        assert math.dist(unit, [0] * dimensions) == pytest.approx(1, abs=1e-5)
        assert [number * length for number in unit] == pytest.approx(vector.tolist(), abs=1e-5)
