"""Vectors as bytes, in every format that vLLM knows."""

from __future__ import annotations

import struct
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pooling.numbers import BYTES, SLICE, packing, small_floats

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


def small_float(number: float, exponent_bits: int, mantissa_bits: int) -> int:
    (code,) = small_floats(array("f", (number,)), exponent_bits, mantissa_bits)
    return code


def brain_float(code: int) -> float:
    """The number of a bfloat16, which is the upper half of a single."""
    (number,) = struct.unpack(">f", struct.pack(">HH", code, 0))
    return float(number)


@pytest.mark.parametrize("dtype", PACKED)
def test_numbers_are_packed_in_the_order_that_is_asked_for(dtype: str) -> None:
    big = bytes.fromhex(PACKED[dtype])
    size = BYTES[dtype]
    little = b"".join(big[i : i + size][::-1] for i in range(0, len(big), size))
    assert packing(dtype, "big")(NUMBERS) == big
    assert packing(dtype, "little")(NUMBERS) == little
    assert packing(dtype, "native")(NUMBERS) == (little if sys.byteorder == "little" else big)


@given(number=SINGLES)
def test_a_small_float_of_sixteen_bits_is_the_one_that_python_packs(number: float) -> None:
    (wanted,) = struct.unpack("<H", struct.pack("<e", number))
    assert small_float(number, 5, 10) == wanted


@given(number=SINGLES)
def test_a_bfloat16_is_the_nearest_upper_half_of_a_single_and_even_on_a_tie(number: float) -> None:
    code = small_float(number, 8, 7)
    error = abs(brain_float(code) - number)
    for neighbour in (code - 1, code + 1):
        if 0 <= neighbour <= 0xFFFF and (neighbour ^ code) < 0x8000:
            other = abs(brain_float(neighbour) - number)
            assert error < other or error == other and code % 2 == 0


def test_a_long_vector_is_packed_as_its_parts_are() -> None:
    numbers = array("f", (number / 1000 for number in range(2 * SLICE + 7)))
    pack = packing("bfloat16", "big")
    assert pack(numbers) == b"".join(pack(numbers[place : place + 1]) for place in range(len(numbers)))


@pytest.mark.parametrize(
    ("number", "code"),
    [(448.0, 0x7E), (2**-6, 0x08), (2**-9, 0x01), (2**-11, 0x00), (1.0625, 0x38), (1.1875, 0x3A)],
)
def test_eight_bits_have_their_limits_and_ties_go_to_the_even_neighbour(number: float, code: int) -> None:
    assert small_float(number, 4, 3) == code
    assert small_float(-number, 4, 3) == 0x80 | code
