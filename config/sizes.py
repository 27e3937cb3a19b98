"""Sizes in bytes as texts, such as ``96MB`` or ``1.5GiB``."""

import math
import re

SIZE_RULE = "must be a size greater than 0, such as 163840, 50GB, or 1.5GiB"
_SIZE = re.compile(r"(\d{1,15}(?:\.\d*)?|\.\d+)(?:(?:([kKMGT])(i?))?B)?", re.ASCII)
_UNITS = ((10**9, "GB"), (10**6, "MB"), (1 << 30, "GiB"), (1 << 20, "MiB"))
"""Units of formatted sizes, the preferred one first."""

COUNT_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
"""Units of numbers in vLLM's options."""
_COUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([kmgKMG]?)", re.ASCII)


def parse_count(text: str) -> int:
    """Converts a number of tokens, such as `2000`, `2k` or `1.5k`.

    As in vLLM, `k` is 1,000 and `K` is 1,024.

    Raises:
        ValueError: The text is not a whole number.
    """
    match = _COUNT.fullmatch(text)
    if match is None:
        raise ValueError("must be a whole number, such as 2000 or 2k")
    count = float(match[1]) * COUNT_UNITS[match[2]]
    if count != int(count):
        raise ValueError("must be a whole number, such as 2000 or 2k")
    return int(count)


def parse_size(value: object) -> float:
    """Converts a text to bytes; a bare number is bytes.

    Raises:
        ValueError: `value` is not a size; the message has the rule.
    """
    text = str(value).strip()
    match = _SIZE.fullmatch(text)
    size = 0.0
    if match is not None and not isinstance(value, bool):
        base = 1024 if match[3] else 1000
        size = float(match[1]) * base ** " KMGT".index((match[2] or " ").upper())
    if not 0 < size < math.inf:
        raise ValueError(SIZE_RULE)
    return size


def whole_size(value: object) -> int:
    """Converts a text to whole bytes. Raises ValueError as `parse_size` does."""
    return math.ceil(parse_size(value))


def format_size(size_bytes: int) -> str:
    """Formats bytes so that `parse_size` reads the same size."""
    for unit_bytes, unit in _UNITS:
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
