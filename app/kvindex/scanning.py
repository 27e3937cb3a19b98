"""msgpack in slices: where values begin and end, found without decoding them.

A decoder in C lets nobody else run until it has read everything: 15 MB take a tenth of a second, and several
times that where every byte becomes an object. Found here are bounds, a few milliseconds' worth at a time;
what lies between them is then small enough to be decoded.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Data: TypeAlias = bytes | memoryview

STEPS = 2_000
"""Looks at a value that go in one slice, about a millisecond."""
NIL = 0xC0
_RUN, _RUN_STEPS = 64, 4
"""So many scalars in a row are one look of a regular expression, which takes as long as a few others."""

_SMALL = rb"\x00-\x80\x90\xa0\xc0\xc2\xc3\xe0-\xff"
_SCALARS = re.compile(
    rb"(?s:[" + _SMALL + rb"]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}"
    rb"|\xc4\x20.{32}|\xc4\x10.{16}){64}+"
)
_BYTES = re.compile(rb"[" + _SMALL + rb"]+")
"""Numbers, nils, truths and empty things of one byte."""


class Malformed(ValueError):
    """Bytes that are no msgpack, or end too early."""


def _sizes() -> tuple[int, ...]:
    """First byte -> bytes of the value, 0 where more of it has to be read."""
    sizes = [0] * 256
    for one_byte in (*range(0x80), NIL, 0xC2, 0xC3, *range(0xE0, 0x100)):
        sizes[one_byte] = 1
    for length in range(32):
        sizes[0xA0 + length] = 1 + length
    numbers = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
    extensions = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
    for head, size in (numbers | extensions).items():
        sizes[head] = 1 + size
    return tuple(sizes)


_SIZES = _sizes()
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_LENGTHS |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""First byte -> bytes that the length has behind it."""


def skip(data: Data, at: int, values: int, steps: int = STEPS) -> tuple[int, int]:
    """Where `values` values end that begin at `at`, and how many are left when so many steps are done.

    Malformed where there are fewer. What is inside of a value counts as left while it is being passed.
    """
    try:
        while values > 0 and steps > 0:
            steps -= 1
            if values >= _RUN and (run := _SCALARS.match(data, at)):
                at = run.end()
                values -= _RUN
                steps -= _RUN_STEPS
                continue
            size = _SIZES[data[at]]
            if size:
                at += size
                values -= 1
            else:
                at, inside = _open(data, at)
                values += inside - 1
    except IndexError:
        raise Malformed from None
    if at > len(data):
        raise Malformed
    return at, values


def small_values(data: Data, at: int, most: int) -> int:
    """How many values of one byte there are in a row, `most` at most."""
    run = _BYTES.match(data, at, at + most)
    return run.end() - at if run else 0


def array_at(data: Data, at: int) -> tuple[int, int] | None:
    """Where the first item of an array is, and how many there are; None for anything else."""
    return _container(data, at, 0x90, 0xDC)


def map_at(data: Data, at: int) -> tuple[int, int] | None:
    """Where the first key of a map is, and how many there are; None for anything else."""
    return _container(data, at, 0x80, 0xDE)


def bytes_at(data: Data, at: int) -> int | None:
    """Where the content of a byte string begins; None for anything else."""
    return at + 1 + _LENGTHS[data[at]] if data[at] in (0xC4, 0xC5, 0xC6) else None


def array_of(count: int, items: Data) -> bytes:
    """An array of items that are packed already."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), items))


def _container(data: Data, at: int, fixed: int, head: int) -> tuple[int, int] | None:
    if at >= len(data):
        raise Malformed
    if fixed <= data[at] < fixed + 16:
        return at + 1, data[at] - fixed
    if data[at] not in (head, head + 1):
        return None
    begin = at + 1 + _LENGTHS[data[at]]
    return begin, int.from_bytes(data[at + 1 : begin], "big")


def _open(data: Data, at: int) -> tuple[int, int]:
    """Behind the head of a container, with the number of values inside, or behind a text or the like."""
    head = data[at]
    if head < 0x90:
        return at + 1, 2 * (head - 0x80)
    if head < 0xA0:
        return at + 1, head - 0x90
    length = _LENGTHS.get(head)
    if length is None:
        raise Malformed
    begin = at + 1 + length
    value = int.from_bytes(data[at + 1 : begin], "big")
    if head >= 0xDC:
        return begin, value * (2 if head >= 0xDE else 1)
    return begin + value + (head in (0xC7, 0xC8, 0xC9)), 0
