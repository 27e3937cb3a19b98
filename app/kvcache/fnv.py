"""FNV-1a, the hash of llm-d's block keys. No package with a wheel for the 64-bit variant is kept up."""

from __future__ import annotations

OFFSET_64 = 14695981039346656037
_PRIME_64 = 1099511628211
_MASK_64 = (1 << 64) - 1


def fnv1a_64(data: bytes, start: int = OFFSET_64) -> int:
    """The hash of `data`; `start` is the hash of what comes before it."""
    value = start
    for byte in data:
        value = ((value ^ byte) * _PRIME_64) & _MASK_64
    return value
