"""Many numbers: vectors as bytes of any format, and long work in turns with other requests."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from app.clock.pause import pause

T = TypeVar("T")

TURN = 8_192
"""Numbers or tokens after which others have their turn: about a millisecond of work."""
LEAST = TURN // 64
"""What even the smallest item counts."""


class Turns:
    """The work of one request: pauses for other greenlets whenever `TURN` parts of it are done."""

    def __init__(self) -> None:
        self._done = 0

    def spend(self, parts: int) -> None:
        """So much is done; pause when it is enough for now."""
        self._done += max(parts, LEAST)
        if self._done >= TURN:
            self._done = 0
            pause()

    def each(self, items: Iterable[T], parts: Callable[[T], int]) -> Iterator[T]:
        """`items`, each of which costs `parts` of it."""
        for item in items:
            yield item
            self.spend(parts(item))


Pack = Callable[["array[float]"], bytes]

BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Size of one number."""
SLICE = 4096
"""Numbers that are rounded at a time: about a millisecond of work."""

_SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of the formats that Python does not know."""


def packing(dtype: str, endianness: str) -> Pack:
    """How numbers of format `dtype` (see `BYTES`) are written in byte order native, big or little.

    A long vector is written in turns with other greenlets.
    """
    little = (sys.byteorder if endianness == "native" else endianness) == "little"
    order = "<" if little else ">"
    if dtype not in _SMALL:
        letter = "f" if dtype == "float32" else "e"
        return lambda numbers: struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
    exponent_bits, mantissa_bits = _SMALL[dtype]
    letter = "H" if BYTES[dtype] == 2 else "B"

    def pack(numbers: array[float]) -> bytes:
        slices = (numbers[start : start + SLICE] for start in range(0, len(numbers), SLICE))
        codes = (small_floats(part, exponent_bits, mantissa_bits) for part in Turns().each(slices, len))
        return b"".join(struct.pack(f"{order}{len(part)}{letter}", *part) for part in codes)

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
