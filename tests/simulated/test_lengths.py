"""Reply lengths of simulator.md 5.4 and 5.5."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.simulated.modes import BUCKETS, bucket_range, limited_length, reply_length


@pytest.mark.parametrize(
    ("most", "ranges"),
    [
        (47, [(1, 9), (10, 18), (19, 27), (28, 36), (37, 46)]),
        (50, [(1, 9), (10, 19), (20, 29), (30, 39), (40, 49)]),
        (500, [(1, 20), (21, 40), (41, 60), (61, 480), (481, 499)]),
        (7, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6)]),
        (200, [(1, 20), (21, 40), (41, 60), (61, 180), (181, 199)]),
    ],
)
def test_buckets_are_those_of_the_specification(most: int, ranges: list[tuple[int, int]]) -> None:
    assert [bucket_range(most, bucket) for bucket in range(BUCKETS)] == ranges


@given(most=st.integers(1, 5000), limited=st.booleans(), seed=st.integers(0, 2**32))
def test_a_length_is_within_the_limit_and_one_only_where_the_limit_is(
    most: int, limited: bool, seed: int
) -> None:
    assert min(2, most) <= reply_length(most, limited, Random(seed)) <= most


def test_fifteen_per_cent_use_the_limit_up() -> None:
    rng = Random(4)
    drawn = Counter(limited_length(300, rng) == 300 for _ in range(20_000))
    assert drawn[True] / 20_000 == pytest.approx(0.15, abs=0.01)


def test_without_a_limit_lengths_gather_around_forty() -> None:
    rng = Random(4)
    drawn = [reply_length(4000, False, rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(41, abs=1.5)
    assert min(drawn) == 2
