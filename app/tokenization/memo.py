"""Prompts that were met, by the bytes that they came in."""

from __future__ import annotations

from collections.abc import Sequence

ENTRY_BYTES = 200
"""What an entry takes besides its key and its ids: dictionary, list and bytes objects."""
ID_BYTES = 8
"""A pointer; the small numbers that it points to are shared with the tokenizer's own, or counted below."""
INT_BYTES = 28


class PromptMemo:
    """Token ids by key, up to `limit_bytes` in all; what was put first goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._ids: dict[bytes, Sequence[int]] = {}

    def get(self, raw: bytes) -> Sequence[int] | None:
        """The ids that were put for `raw`."""
        return self._ids.get(raw)

    def put(self, raw: bytes, ids: Sequence[int]) -> None:
        """Remember `ids`, which nobody may change any more."""
        size = _size(raw, ids)
        if size > self.limit_bytes or raw in self._ids:
            return
        self._ids[raw] = ids
        self.size_bytes += size
        while self.size_bytes > self.limit_bytes:
            oldest = next(iter(self._ids))
            self.size_bytes -= _size(oldest, self._ids.pop(oldest))


def _size(raw: bytes, ids: Sequence[int]) -> int:
    return ENTRY_BYTES + len(raw) + len(ids) * (ID_BYTES + INT_BYTES)
