"""Splits a MessagePack array whose items are nested deeper than msgspec reads.

msgspec skips an item by recursion, and rejects a whole message for one item with a thousand levels.
This reader has no recursion: it counts the items that are still missing. It is a hundred times as
slow, and pauses.
"""

from __future__ import annotations

from msgspec import Raw

from app.core.base.clock.pause import pause_if_possible
from config.untrusted import UntrustedDataError

ITEMS_PER_PAUSE = 4_096
"""Items that are skipped between two pauses, in about a millisecond."""
SCALAR_BYTES = {
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""First byte -> bytes that follow, for numbers and extensions of a fixed size."""
LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""First byte of binary data or text -> bytes of its length."""
EXTENSION_LENGTH_BYTES = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""First byte of an extension -> bytes of its length; another byte has its type."""
COUNT_BYTES = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte of an array or map -> bytes of its count, and items for each counted one."""


def split_array(data: memoryview) -> list[Raw]:
    """Returns the undecoded items of the array in `data`.

    Raises:
        UntrustedDataError: The data is not an array, or is truncated.
    """
    position, count = _head(data, 0)
    if not 0x90 <= data[0] <= 0x9F and data[0] not in (0xDC, 0xDD):
        raise UntrustedDataError("the data is not an array")
    if count > len(data):
        raise UntrustedDataError("the data is truncated")
    items: list[Raw] = []
    for _ in range(count):
        end = _end_of_item(data, position)
        items.append(Raw(data[position:end]))
        position = end
    return items


def _end_of_item(data: memoryview, position: int) -> int:
    missing = 1
    skipped = 0
    while missing:
        position, children = _head(data, position)
        missing += children - 1
        skipped += 1
        if skipped % ITEMS_PER_PAUSE == 0:
            pause_if_possible()
    return position


def _head(data: memoryview, position: int) -> tuple[int, int]:
    """Returns the end of an item without its children, and the number of its children."""
    if position >= len(data):
        raise UntrustedDataError("the data is truncated")
    first = data[position]
    position += 1
    children = 0
    if 0x80 <= first <= 0x8F:
        children = 2 * (first & 0x0F)
    elif 0x90 <= first <= 0x9F:
        children = first & 0x0F
    elif 0xA0 <= first <= 0xBF:
        position += first & 0x1F
    elif first in COUNT_BYTES:
        size, factor = COUNT_BYTES[first]
        children = factor * int.from_bytes(data[position : position + size], "big")
        position += size
    elif first in LENGTH_BYTES:
        size = LENGTH_BYTES[first]
        position += size + int.from_bytes(data[position : position + size], "big")
    elif first in EXTENSION_LENGTH_BYTES:
        size = EXTENSION_LENGTH_BYTES[first]
        position += size + 1 + int.from_bytes(data[position : position + size], "big")
    else:
        position += SCALAR_BYTES.get(first, 0)
    return position, children
