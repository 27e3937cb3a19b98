"""What the played model computes:

vectors, classes, scores; and vectors as bytes in every format.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.text.huggingface import default_tokenizer
from app.extensions.pooling.features import KnownFeatures
from app.extensions.pooling.vectors import (
    Bag,
    PoolingModel,
    embedding,
    logit,
    packing,
    sigmoid,
    small_floats,
)

TOKENIZER = default_tokenizer()
TEXTS = st.text(max_size=60)
GOLDEN = [-0.192686, 0.192686, 0.0, -0.893363, 0.0, -0.070068, -0.350338, 0.0]
"""Of "The quick brown fox", eight numbers."""
VECTORS_SHA256 = "ef709923216673e3108f6dfda6d26641f849a6c8ec4cba71d251372026207276"
"""Of the vectors that the test below lists, on a little-endian machine."""
DIMENSIONS = st.sampled_from([1, 2, 5, 8, 16, 63, 64, 100, 384])
WORDS = ("cat", "cats", "catalog", "the", "aaaa", "ox", "東", "x" * 70, "Straße", "7", "!")
BAGS = st.lists(st.integers(0, 30), max_size=40)
NUMBERS = array("f", (1.0, -0.5, 0.0, 0.1))
PACKED = {
    "float32": "3f800000bf000000000000003dcccccd",
    "float16": "3c00b80000002e66",
    "bfloat16": "3f80bf0000003dcd",
    "fp8_e4m3": "38b0001d",
    "fp8_e5m2": "3cb8002e",
}
"""1, -1/2, 0 and 1/10, big end first."""
SINGLES = st.floats(-100, 100, width=32)


def no_pause() -> None:
    """Nothing else wants a turn."""


MODEL = PoolingModel(4, 2, TOKENIZER, no_pause)


def test_vectors_have_unit_length_unless_normalization_is_disabled() -> None:
    raw, unit, same = (MODEL.vector("hello", activation) for activation in (False, None, True))
    length = math.dist(raw, [0] * 4)
    assert length != pytest.approx(1) and unit == same
    assert [number * length for number in unit] == pytest.approx(raw.tolist(), abs=1e-6)


def vector(text: str, dimensions: int = 384) -> array[float]:
    return embedding(text, dimensions, no_pause, known_features=KnownFeatures())


def cosine(text: str, other: str, dimensions: int = 384) -> float:
    return sum(
        a * b for a, b in zip(vector(text, dimensions), vector(other, dimensions), strict=True)
    )


@given(text=TEXTS, dimensions=DIMENSIONS)
def test_every_text_has_a_unit_vector(text: str, dimensions: int) -> None:
    numbers = vector(text, dimensions)
    assert len(numbers) == dimensions
    assert math.dist(numbers, [0] * dimensions) == pytest.approx(1, abs=1e-6)


@given(text=TEXTS, short=DIMENSIONS, long=DIMENSIONS)
def test_shorter_vector_before_normalization_is_a_prefix_of_the_longer_one(
    text: str, short: int, long: int
) -> None:
    short, long = sorted((short, long))
    beginning, whole = (
        embedding(text, count, no_pause, known_features=KnownFeatures(), unit=False)
        for count in (short, long)
    )
    if any(whole[:short]):
        assert beginning == whole[:short]


def test_vector_of_a_known_text_has_the_stored_values() -> None:
    assert [round(float(number), 6) for number in vector("The quick brown fox", 8)] == GOLDEN


def test_vectors_of_ten_sample_texts_have_the_stored_checksum() -> None:
    texts = [
        "",
        "hello",
        "What is new about the number 17 today?",
        "Straße nach ZÜRICH, œuvre",
        "東京 is 日本, 한국어",
        "x" * 200 + " " + "ab" * 40,
        "the " * 9 + "cat cat",
        "\ud800 half",
        "a b c d",
        " ".join(f"word{number}" for number in range(300)),
    ]
    digest = sha256()
    known_features = KnownFeatures()
    for text in texts:
        for dimensions in (1, 5, 8, 9, 63, 64, 384, 1536, 65536):
            for unit in (True, False):
                numbers = embedding(
                    text, dimensions, no_pause, known_features=known_features, unit=unit
                )
                digest.update(numbers.tobytes())
    assert digest.hexdigest() == VECTORS_SHA256


def test_vectors_of_any_dimension_do_not_depend_on_the_feature_cache() -> None:
    known_features = KnownFeatures()
    for dimensions in (1024, 8, 1024, 8, 384, 384, 384):
        numbers = embedding("The quick fox", dimensions, no_pause, known_features=known_features)
        assert numbers == vector("The quick fox", dimensions)
    assert known_features.words.keys() >= {("quick", 384), ("fox", 8)}


@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=8), max_size=5))
def test_vectors_of_words_with_shared_features_do_not_depend_on_the_cache(
    texts: list[list[str]],
) -> None:
    known_features = KnownFeatures()
    for text in [" ".join(WORDS)] * 2 + [" ".join(words) for words in texts]:
        for dimensions in (5, 100):
            numbers = embedding(text, dimensions, no_pause, known_features=known_features)
            assert numbers == vector(text, dimensions)


def test_memory_of_cached_features_is_limited() -> None:
    known_features = KnownFeatures(places_bytes=20_000, words_bytes=10_000)
    for number in range(40):
        for _ in range(2):
            embedding(f"number{number} of many", 384, no_pause, known_features=known_features)
        assert 0 < known_features.places.size_bytes <= 20_000
        assert known_features.words.size_bytes <= 10_000
        assert known_features.size_bytes <= known_features.limit_bytes == 30_000
    assert known_features.words
    known_features.shrink()
    assert known_features.size_bytes == 0


@pytest.mark.parametrize("dimensions", [256, 384, 1536])
@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        (
            "How do I reset my password?",
            "I forgot my password, how can I reset it?",
            "Rain in Paris today",
        ),
        (
            "The quick brown fox jumps",
            "A quick brown fox jumped",
            "Quarterly revenue grew by nine percent",
        ),
        (
            "Paris is the capital of France",
            "the capital of France",
            "Plants turn light into energy",
        ),
        ("Straße nach Zürich", "STRASSE NACH ZÜRICH", "Brot und Butter"),
    ],
)
def test_texts_that_share_words_or_characters_have_similar_vectors(
    text: str, near: str, far: str, dimensions: int
) -> None:
    assert cosine(text, near, dimensions) > 0.5
    assert abs(cosine(text, far, dimensions)) < 0.35
    assert cosine(text, text, dimensions) == pytest.approx(1)


def scored(query: list[int], document: list[int]) -> float:
    return sigmoid(logit(Bag(query), Bag(document)))


@given(query=BAGS, document=BAGS)
def test_symmetric_similarity_score_lies_between_0_and_1(
    query: list[int], document: list[int]
) -> None:
    assert 0 < scored(query, document) < 1
    assert scored(query, document) == scored(document, query)


def small_float(number: float, exponent_bits: int, mantissa_bits: int) -> int:
    (code,) = small_floats(array("f", (number,)), exponent_bits, mantissa_bits)
    return code


def brain_float(code: int) -> float:
    """The number of a bfloat16, which is the upper half of a single."""
    (number,) = struct.unpack(">f", struct.pack(">HH", code, 0))
    return float(number)


@pytest.mark.parametrize("dtype", PACKED)
def test_numbers_are_packed_in_the_requested_byte_order(dtype: str) -> None:
    big = bytes.fromhex(PACKED[dtype])
    size = len(big) // len(NUMBERS)
    little = b"".join(big[i : i + size][::-1] for i in range(0, len(big), size))
    assert packing(dtype, "big", no_pause)(NUMBERS) == big
    assert packing(dtype, "little", no_pause)(NUMBERS) == little
    assert packing(dtype, "native", no_pause)(NUMBERS) == (
        little if sys.byteorder == "little" else big
    )


@given(number=SINGLES)
def test_bfloat16_is_rounded_to_nearest_and_ties_to_even(number: float) -> None:
    code = small_float(number, 8, 7)
    error = abs(brain_float(code) - number)
    for neighbour in (code - 1, code + 1):
        if 0 <= neighbour <= 0xFFFF and (neighbour ^ code) < 0x8000:
            other = abs(brain_float(neighbour) - number)
            assert error < other or error == other and code % 2 == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(448.0, 0x7E), (2**-6, 0x08), (2**-9, 0x01), (2**-11, 0x00), (1.0625, 0x38), (1.1875, 0x3A)],
)
def test_fp8_extremes_are_exact_and_ties_are_rounded_to_even(number: float, code: int) -> None:
    assert small_float(number, 4, 3) == code
    assert small_float(-number, 4, 3) == 0x80 | code
