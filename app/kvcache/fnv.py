"""FNV-1a, by which llm-d names blocks (64 bits) and spreads pods (32 bits). No package of it is kept up."""

from __future__ import annotations

OFFSET_64 = 14695981039346656037
_PRIME_64 = 1099511628211
_OFFSET_32, _PRIME_32 = 2166136261, 16777619


def fnv1a_64(data: bytes, start: int = OFFSET_64) -> int:
    """The hash of `data`; `start` is the hash of what comes before it."""
    return _fnv1a(data, start, _PRIME_64, (1 << 64) - 1)


def fnv1a_32(data: bytes) -> int:
    """The hash of `data`."""
    return _fnv1a(data, _OFFSET_32, _PRIME_32, (1 << 32) - 1)


def _fnv1a(data: bytes, value: int, prime: int, mask: int) -> int:
    for byte in data:
        value = ((value ^ byte) * prime) & mask
    return value
