"""Weights of JSON texts: what decoding them takes, before they are decoded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import json_text
from config.json_text import (
    EXPONENT_WEIGHT,
    LONG_NUMBER_WEIGHT,
    MAX_INTEGER_DIGITS,
    MAX_WEIGHT,
    NAME_WEIGHT,
    OBJECT_WEIGHT,
    POINT_WEIGHT,
    POWER_WEIGHT,
    has_long_integer,
    weights,
)

STRINGS = st.text(alphabet='ab"\\,:[]{}.0e\n\u00e9\U0001f600')
SCALARS = st.none() | st.booleans() | st.integers(-(10**14), 10**14) | STRINGS
VALUES = st.recursive(
    SCALARS, lambda items: st.lists(items) | st.dictionaries(STRINGS, items), max_leaves=20
)


def weight_of(text: bytes) -> int:
    """Returns the weight of a text, under a limit that it hardly reaches."""
    return sum(weights(text, limit=json_text.MAX_BYTE_WEIGHT * len(text) - 1))


def expected_weight(value: Any) -> int:
    """Returns the weight of a value whose numbers are short integers."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        commas = max(len(value) - 1, 0)
        return 1 + commas + sum(map(expected_weight, value))
    if isinstance(value, dict):
        commas = max(len(value) - 1, 0)
        names = len(value) * (1 + NAME_WEIGHT)
        return OBJECT_WEIGHT + commas + names + sum(map(expected_weight, value.values()))
    return 0


@given(
    value=VALUES,
    slice_bytes=st.integers(1, 12),
    is_ascii=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
def test_weight_is_that_of_the_values_however_the_text_is_cut(
    value: Any, slice_bytes: int, is_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "SLICE_BYTES", slice_bytes)
        assert weight_of(text) == expected_weight(value)


@pytest.mark.parametrize(
    ("number", "weight"),
    [
        (b"1", 0),
        (b"-1e5", POWER_WEIGHT),
        (b"1e99", POWER_WEIGHT),
        (b"-0.5", POINT_WEIGHT),
        (b"1.5e-30", POINT_WEIGHT + POWER_WEIGHT),
        (b"1e308", POWER_WEIGHT + EXPONENT_WEIGHT),
        (b"1E+300", POWER_WEIGHT + EXPONENT_WEIGHT),
        (b"-1e-300", POWER_WEIGHT + EXPONENT_WEIGHT),
        (b"1234567890123456", LONG_NUMBER_WEIGHT),
        (b"0.12345678901234", POINT_WEIGHT + LONG_NUMBER_WEIGHT),
        (b"7" * 160, 10 * LONG_NUMBER_WEIGHT),
    ],
)
def test_numbers_that_decode_slowly_weigh_more(number: bytes, weight: int) -> None:
    assert weight_of(b"%b" % number) == weight
    assert weight_of(b"[%b]" % b",".join([number] * 50)) == 50 * (weight + 1)


def test_texts_of_the_largest_weight_have_the_documented_number_of_values() -> None:
    for item, count, brackets in ((b"7", 400_000, b"[]"), (b'"a"', 200_000, b"[]")):
        text = brackets[:1] + b",".join([item] * count) + brackets[1:]
        assert sum(weights(text)) == MAX_WEIGHT
    names = b"{%b}" % b",".join(b'"%d":0' % name for name in range(79_999))
    assert 0.99 * MAX_WEIGHT < sum(weights(names)) <= MAX_WEIGHT
    messages = b"[%b]" % b",".join([b'{"role":"user","content":"Hello!"}'] * 25_000)
    assert 0.9 * MAX_WEIGHT < sum(weights(messages)) <= MAX_WEIGHT


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_quotes_among_the_bytes_of_utf_16_hide_no_values(encoding: str) -> None:
    text = json.dumps(["\u2201", *range(1000)], ensure_ascii=False)
    assert json.loads(text.encode(encoding)) == json.loads(text)
    assert weight_of(text.encode(encoding)) >= 1000


def test_measuring_ends_soon_after_the_limit() -> None:
    text = b"[" * (1 << 20)
    measured = list(weights(text, limit=10))
    assert len(measured) == 1
    assert sum(measured) > 10


@given(text=st.binary(max_size=100), count=st.integers(0, 400))
def test_no_text_weighs_more_per_byte_than_the_declared_maximum(text: bytes, count: int) -> None:
    for repeated in (text * count, b"[1e300,.5:" * count):
        assert weight_of(repeated) <= json_text.MAX_BYTE_WEIGHT * len(repeated)
    assert list(weights(text, json_text.MAX_BYTE_WEIGHT * len(text))) == []


@pytest.mark.parametrize(
    ("text", "is_long"),
    [
        (b"", False),
        (b"1" * MAX_INTEGER_DIGITS, False),
        (b"1" * (MAX_INTEGER_DIGITS + 1), True),
        (b'{"a": ' + b"7" * (MAX_INTEGER_DIGITS + 1) + b"}", True),
        (b"," + b"7" * MAX_INTEGER_DIGITS + b"," + b"7" * MAX_INTEGER_DIGITS, False),
    ],
)
def test_long_integers_are_found_at_any_place(text: bytes, is_long: bool) -> None:
    for shift in (0, 1, MAX_INTEGER_DIGITS, 2 * MAX_INTEGER_DIGITS + 1):
        assert has_long_integer(b" " * shift + text) is is_long


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_slow_numbers_weigh_the_same_in_each_encoding(encoding: str) -> None:
    text = f"[{','.join(['1e308'] * 400)}]".encode(encoding)
    assert weight_of(text) == 400 * (1 + POWER_WEIGHT + EXPONENT_WEIGHT)
