"""Where packed values end: for every first byte there is, against the table of the msgpack specification."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.scanning import (
    Malformed,
    array_at,
    array_of,
    bytes_at,
    map_at,
    skip,
    small_values,
)

NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
EXTENSIONS = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
"""With their type, which is a byte."""
BYTES, LONG_EXTENSIONS = {0xC4: 1, 0xC5: 2, 0xC6: 4}, {0xC7: 1, 0xC8: 2, 0xC9: 4}
TEXTS, ARRAYS, MAPS = {0xD9: 1, 0xDA: 2, 0xDB: 4}, {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
"""Bytes of the length that follows."""
UNUSED = 0xC1
HEADS = sorted(set(range(256)) - {UNUSED})
RUN = 64
"""Scalars that are passed in one look, and what that counts."""
RUN_STEPS = 5


def counted(head: int, length_bytes: int, count: int) -> bytes:
    return bytes([head]) + count.to_bytes(length_bytes, "big")


def value(head: int, count: int = 3) -> tuple[bytes, int]:
    """What stands in front, until the first value inside, and how many values are inside."""
    content = bytes(range(0xC0, 0xC0 + count))  # would be values if they were read
    if head in NUMBERS | EXTENSIONS:
        return bytes([head]) + bytes(range(0xD0, 0xD0 + (NUMBERS | EXTENSIONS)[head])), 0
    if head in BYTES | TEXTS:
        return counted(head, (BYTES | TEXTS)[head], count) + content, 0
    if head in LONG_EXTENSIONS:
        return counted(head, LONG_EXTENSIONS[head], count) + b"\x07" + content, 0
    if head in ARRAYS:
        return counted(head, ARRAYS[head], count), count
    if head in MAPS:
        return counted(head, MAPS[head], count), 2 * count
    if 0x80 <= head < 0xA0:
        return bytes([head]), (head - 0x90 if head >= 0x90 else 2 * (head - 0x80))
    if 0xA0 <= head < 0xC0:
        return bytes([head]) + bytes([0xDD] * (head - 0xA0)), 0
    return bytes([head]), 0


def is_scalar(head: int) -> bool:
    """Whether many in a row are passed at once: numbers, truths, nils, and what is empty."""
    containers = 0x80 < head < 0x90 or 0x90 < head < 0xA0 or 0xA0 < head < 0xC0
    return head in NUMBERS or not (containers or 0xC4 <= head < 0xE0)


def test_a_value_ends_where_its_first_byte_says() -> None:
    for head in HEADS:
        front, inside = value(head)
        data = b"\xc1" + front + b"\xc0" * inside
        for more in (data + b"\x05\x05", memoryview(data)):
            assert (head, *skip(more, 1, 1)) == (head, len(data), 0)
        assert (head, *skip(data, 1, 1, steps=1)) == (head, 1 + len(front), inside)
        for short in range(1, len(data)):
            with pytest.raises(Malformed):
                skip(data[:short], 1, 1)


def test_scalars_in_a_row_are_one_look() -> None:
    for head in HEADS:
        front, inside = value(head)
        looked = RUN if is_scalar(head) else 1
        at, left = skip(front * RUN, 0, RUN, steps=1)
        assert (head, at, left) == (head, len(front) * looked, RUN - looked + inside)


@pytest.mark.parametrize("size", [16, 32])
def test_hashes_in_a_row_are_one_look(size: int) -> None:
    data = (counted(0xC4, 1, size) + b"\xc1" * size) * RUN
    assert skip(data, 0, RUN, steps=1) == (len(data), 0)


def test_a_run_counts_as_a_few_looks() -> None:
    for steps, runs in ((1, 1), (RUN_STEPS, 1), (RUN_STEPS + 1, 2), (3 * RUN_STEPS, 3)):
        assert skip(b"\x01" * 10 * RUN, 0, 10 * RUN, steps) == (runs * RUN, (10 - runs) * RUN)
    assert skip(b"\x01" * RUN, 0, RUN - 1, steps=2) == (2, RUN - 3)


def test_no_look_is_needed_where_nothing_is_asked_for() -> None:
    assert skip(b"", 0, 0) == (0, 0)
    assert skip(b"\x91\x01", 0, 1, steps=0) == (0, 1)


def test_the_byte_that_begins_no_value_is_malformed() -> None:
    for data in (b"\xc1", b"\x91\xc1", b"\x01" * RUN + b"\xc1"):
        with pytest.raises(Malformed):
            skip(data, 0, RUN + 1)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 256, 65_536])
def test_lengths_are_read_as_they_are_written(count: int) -> None:
    items = [None] * count
    for data in (
        msgspec.msgpack.encode(items),
        msgspec.msgpack.encode(dict.fromkeys(range(count))),
        msgspec.msgpack.encode("x" * count),
        msgspec.msgpack.encode(b"x" * count),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x" * count)),
        array_of(count, b"\xc0" * count),
    ):
        assert skip(data, 0, 1, steps=1 << 20) == (len(data), 0)
    assert msgspec.msgpack.decode(array_of(count, b"\xc0" * count)) == items


def test_the_heads_of_containers_tell_where_their_content_begins_and_how_much_it_is() -> None:
    for head in HEADS:
        data = b"\xc1" + value(head)[0]
        inside = len(data), head & 15 if head < 0xA0 else 3
        is_array, is_map = head in ARRAYS or 0x90 <= head < 0xA0, head in MAPS or 0x80 <= head < 0x90
        assert (head, array_at(data, 1)) == (head, inside if is_array else None)
        assert (head, map_at(data, 1)) == (head, inside if is_map else None)
        assert (head, bytes_at(data, 1)) == (head, 2 + BYTES[head] if head in BYTES else None)


def test_behind_the_end_is_no_container() -> None:
    for data, at in ((b"", 0), (b"\x90", 1), (b"\x90", 2)):
        for look in (array_at, map_at):
            with pytest.raises(Malformed):
                look(data, at)


@given(st.binary(max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_values_of_one_byte_are_counted(data: bytes, at: int, most: int) -> None:
    data = bytes(byte if byte % 3 else 0x05 for byte in data)  # rather many of them
    small = [*range(0x81), 0x90, 0xA0, 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)]
    expected = 0
    for byte in data[at : at + most]:
        if byte not in small:
            break
        expected += 1
    assert small_values(data, at, most) == expected
