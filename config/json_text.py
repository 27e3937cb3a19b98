"""Measures the JSON of strangers before it is decoded, which is one call that nothing interrupts.

The time of that call depends on the kinds of values: 4 MiB of small numbers take 20 ms, an object
with short names takes 100 ms, and numbers such as 1e308 take 1.9 s. The unit of the weights below
is 50 ns of msgspec, the time of an empty list (measured).
"""

from collections.abc import Iterator
from typing import Final

MAX_WEIGHT: Final = 400_000
"""Largest weight of a text that is decoded at once: about 20 ms."""
OBJECT_WEIGHT: Final = 3
"""Weight of an opening brace."""
NAME_WEIGHT: Final = 3
"""Weight of a colon: a name is a string that is hashed."""
POINT_WEIGHT: Final = 3
"""Weight of the point of a number: Python's parser, which reads NaN too, takes 200 ns for it."""
POWER_WEIGHT: Final = 5
"""Weight of an exponent: Python's parser takes 300 ns for 1e99."""
EXPONENT_WEIGHT: Final = 1000
"""Weight of a number with an exponent of three digits, beside that of an exponent.

Beyond 1e±288, msgspec computes with decimal digits, for 10 us. No client needs such numbers.
"""
LONG_NUMBER_WEIGHT: Final = 8
"""Weight of each 16 digits of a long number.

Those near the middle between two doubles take 400 ns, and the time of whole numbers is quadratic.
"""
MAX_BYTE_WEIGHT: Final = 256
"""No text has more weight per byte: a number such as 1e308 and a comma have 168."""
SLICE_BYTES: Final = 1 << 15
"""Bytes of a text that are weighed in about a millisecond."""
CLASSES: Final = bytes.maketrans(b"123456789.E", b"0000000000e")
SIGNS: Final = b"+-"
POWER: Final = b"0e0"
EXPONENT: Final = b"e000"
LONG_NUMBER: Final = b"0" * 16
MAX_INTEGER_DIGITS: Final = 4300
"""Most digits of an integer that Python's parser of JSON reads; msgspec skips unknown fields."""
DIGITS: Final = b"0123456789"


def weights(text: bytes, limit: int = MAX_WEIGHT) -> Iterator[int]:
    """Yields the weight of each slice of a JSON text; ends when the sum is above `limit`.

    The content of strings has no weight, except in UTF-16 and UTF-32, which Python reads, too.
    Pause between two slices.
    """
    if limit >= MAX_BYTE_WEIGHT * len(text):
        return
    total = 0
    is_utf_8 = b"\0" not in text
    is_in_string = False
    start = 0
    while start < len(text) and total <= limit:
        end = start + SLICE_BYTES
        piece = text[start:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The slice also has the character that its last backslash escapes.
            end += 1
            piece = text[start:end]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        quotes = len(parts) - 1
        strings = (quotes + (not is_in_string)) // 2
        if is_utf_8:
            syntax = b'"'.join(parts[is_in_string::2])
        else:
            syntax = piece.replace(b"\0", b"")
        weight = strings + _weight(syntax)
        is_in_string = is_in_string != bool(quotes % 2)
        total += weight
        start = end
        yield weight


def _weight(syntax: bytes) -> int:
    """Returns the weight of a part of a JSON text without the content of its strings."""
    numbers = syntax.translate(CLASSES, SIGNS)
    return (
        syntax.count(b",")
        + syntax.count(b"[")
        + OBJECT_WEIGHT * syntax.count(b"{")
        + NAME_WEIGHT * syntax.count(b":")
        + POINT_WEIGHT * syntax.count(b".")
        + POWER_WEIGHT * numbers.count(POWER)
        + EXPONENT_WEIGHT * numbers.count(EXPONENT)
        + LONG_NUMBER_WEIGHT * numbers.count(LONG_NUMBER)
    )


def has_long_integer(text: bytes) -> bool:
    """Returns True if more than `MAX_INTEGER_DIGITS` digits follow one another.

    Such digits cover one of the positions that are examined: 1 in 4301.
    """
    for position in range(MAX_INTEGER_DIGITS, len(text), MAX_INTEGER_DIGITS + 1):
        if text[position] in DIGITS:
            head = text[position - MAX_INTEGER_DIGITS : position]
            tail = text[position : position + MAX_INTEGER_DIGITS + 1]
            other_bytes = len(head.rstrip(DIGITS)) + len(tail.lstrip(DIGITS))
            if len(head) + len(tail) - other_bytes > MAX_INTEGER_DIGITS:
                return True
    return False
