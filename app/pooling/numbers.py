"""Numbers of vectors as bytes of any format."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Mapping

Pack = Callable[["array[float]"], bytes]

BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Size of one number."""
SLICE = 4096
"""Numbers that are rounded at a time: about a millisecond of work."""

_SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of the formats that Python does not know."""


def packing(dtype: str, endianness: str, pace: Callable[[], None]) -> Pack:
    """Writes numbers in format `dtype` (see `BYTES`), byte order native, big or little.

    `pace` is called while a long vector is written.
    """
    little = (sys.byteorder if endianness == "native" else endianness) == "little"
    order = "<" if little else ">"
    if dtype not in _SMALL:
        letter = "f" if dtype == "float32" else "e"
        return lambda numbers: struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
    exponent_bits, mantissa_bits = _SMALL[dtype]
    letter = "H" if BYTES[dtype] == 2 else "B"

    def pack(numbers: array[float]) -> bytes:
        packed = []
        for start in range(0, len(numbers), SLICE):
            codes = small_floats(numbers[start : start + SLICE], exponent_bits, mantissa_bits)
            packed.append(struct.pack(f"{order}{len(codes)}{letter}", *codes))
            pace()
        return b"".join(packed)

    return pack


def small_floats(numbers: array[float], exponent_bits: int, mantissa_bits: int) -> list[int]:
    """The codes of the nearest floating point numbers of that many bits, and a sign; ties go to the even one.

    For finite 32-bit numbers within the range of the format, which has fewer bits of mantissa than those.
    """
    bias = (1 << exponent_bits - 1) - 1
    smallest_normal, steps_of_one = 2.0 ** (1 - bias), 2.0 ** (bias - 1 + mantissa_bits)
    dropped = 23 - mantissa_bits
    below_half = (1 << dropped - 1) - 1
    rebias = (127 - bias) << mantissa_bits
    sign_to = exponent_bits + mantissa_bits
    codes = []
    for number, bits in zip(numbers, array("I", numbers.tobytes()), strict=True):
        sign, bits = bits >> 31 << sign_to, bits & 0x7FFF_FFFF
        if -smallest_normal < number < smallest_normal:
            codes.append(sign | round(abs(number) * steps_of_one))
        else:  # a carry out of the mantissa is a step of the exponent, as it should be
            codes.append(sign | (bits + below_half + (bits >> dropped & 1) >> dropped) - rebias)
    return codes
