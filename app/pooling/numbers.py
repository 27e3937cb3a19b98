"""Vectors as bytes: the number formats and byte orders that a request may name."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache

Pack = Callable[["array[float]"], bytes]

BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Size of one number."""

_SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of the formats that Python does not know."""


def packing(dtype: str, endianness: str) -> Pack:
    """How numbers of format `dtype` (see `BYTES`) are written in byte order native, big or little."""
    little = (sys.byteorder if endianness == "native" else endianness) == "little"
    order = "<" if little else ">"
    if dtype not in _SMALL:
        letter = "f" if dtype == "float32" else "e"
        return lambda numbers: struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
    exponent_bits, mantissa_bits = _SMALL[dtype]
    letter = "H" if BYTES[dtype] == 2 else "B"

    def pack(numbers: array[float]) -> bytes:
        codes = (small_float(number, exponent_bits, mantissa_bits) for number in numbers)
        return struct.pack(f"{order}{len(numbers)}{letter}", *codes)

    return pack


def small_float(number: float, exponent_bits: int, mantissa_bits: int) -> int:
    """The code of the nearest floating point number of that many bits, and a sign; ties go to the even one.

    For finite numbers within the range of the format.
    """
    sign = int(math.copysign(1, number) < 0) << (exponent_bits + mantissa_bits)
    return sign | _magnitude(abs(number), exponent_bits, mantissa_bits)


@lru_cache(maxsize=8192)
def _magnitude(number: float, exponent_bits: int, mantissa_bits: int) -> int:
    bias = (1 << exponent_bits - 1) - 1
    exponent = max(math.frexp(number)[1] - 1, 1 - bias) if number else 1 - bias
    steps: int = round(math.ldexp(number, mantissa_bits - exponent))
    # The leading one of a normal number is a step of the exponent; numbers too small for one have none.
    return steps + (exponent + bias - 1 << mantissa_bits)
