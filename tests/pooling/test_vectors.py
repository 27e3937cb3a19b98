"""Vectors: of length 1, near for texts that share words or characters, the same on every machine."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pooling.model import embedding
from app.pooling.numbers import Turns

TEXTS = st.text(max_size=60)
GOLDEN = [-0.192686, 0.192686, 0.0, -0.893363, 0.0, -0.070068, -0.350338, 0.0]
"""Of "The quick brown fox", eight numbers."""
DIMENSIONS = st.sampled_from([1, 2, 5, 8, 16, 63, 64, 100, 384])


def vector(text: str, dimensions: int = 384) -> array[float]:
    return embedding(text, dimensions, Turns())


def cosine(one: str, other: str, dimensions: int = 384) -> float:
    return sum(a * b for a, b in zip(vector(one, dimensions), vector(other, dimensions), strict=True))


@given(text=TEXTS, dimensions=DIMENSIONS)
def test_every_text_has_a_vector_of_length_one(text: str, dimensions: int) -> None:
    numbers = vector(text, dimensions)
    assert len(numbers) == dimensions
    assert math.dist(numbers, [0] * dimensions) == pytest.approx(1, abs=1e-6)


@given(text=TEXTS, short=DIMENSIONS, long=DIMENSIONS)
def test_a_shorter_vector_is_the_beginning_of_a_longer_one(text: str, short: int, long: int) -> None:
    short, long = sorted((short, long))
    beginning, whole = (embedding(text, count, Turns(), unit=False) for count in (short, long))
    if any(whole[:short]):
        assert beginning == whole[:short]


def test_a_vector_is_the_same_on_every_machine() -> None:
    assert [round(float(number), 6) for number in vector("The quick brown fox", 8)] == GOLDEN


@pytest.mark.parametrize("dimensions", [256, 384, 1536])
@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("How do I reset my password?", "I forgot my password, how can I reset it?", "Rain in Paris today"),
        ("The quick brown fox jumps", "A quick brown fox jumped", "Quarterly revenue grew by nine percent"),
        ("Paris is the capital of France", "the capital of France", "Plants turn light into energy"),
        ("refactoring functions", "refactored function", "marine biology"),
        ("世界你好", "你好,世界", "天气预报"),
        ("Straße nach Zürich", "STRASSE NACH ZÜRICH", "Brot und Butter"),
    ],
)
def test_texts_that_share_words_or_characters_are_near(
    text: str, near: str, far: str, dimensions: int
) -> None:
    assert cosine(text, near, dimensions) > 0.5
    assert abs(cosine(text, far, dimensions)) < 0.35
    assert cosine(text, text, dimensions) == pytest.approx(1)


def test_the_more_words_are_shared_the_nearer_are_the_texts() -> None:
    text = "alpha bravo charlie delta echo foxtrot"
    others = ["sierra", "tango", "uniform", "victor", "whiskey", "xray"]
    words = text.split()
    shared = [cosine(text, " ".join(words[:count] + others[count:])) for count in range(7)]
    assert shared == sorted(shared) and shared[0] < 0.15 and shared[6] == pytest.approx(1)


def test_small_words_say_little() -> None:
    assert abs(cosine("the cat is in the house", "the dog was in the garden")) < 0.3


def test_a_long_text_has_a_vector_as_a_short_one() -> None:
    long = "lorem ipsum dolor sit amet " * 3000
    assert cosine(long, "lorem ipsum dolor sit amet") > 0.95
    assert abs(cosine(long, "quarterly revenue")) < 0.2
