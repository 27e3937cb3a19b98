"""Prompts that were encoded before, by the bytes of their JSON."""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import suppress
from threading import Lock

ENTRY_BYTES = 200
"""Memory of an entry beside its bytes and its ids, measured."""
ID_BYTES = 32
"""Memory of a token id beside its place in a list; that of small ones is shared."""
LARGEST_SHARE = 8
"""An entry that takes a larger part of the memo than one in so many is not kept."""


class PromptMemo:
    """Token ids by raw JSON: what was not used for longest goes when `limit_bytes` of memory are full.

    The lists are shared: whoever puts or gets one does not change it. For threads and greenlets.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        """Memory that the entries hold."""
        self._entries: OrderedDict[bytes, list[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, raw: bytes) -> list[int] | None:
        """The ids that were put for these bytes; None when they are not here (any more)."""
        ids = self._entries.get(raw)
        if ids is not None:
            with suppress(KeyError):  # another thread may have dropped it meanwhile
                self._entries.move_to_end(raw)
        return ids

    def put(self, raw: bytes, ids: list[int]) -> None:
        """Keep `ids` for `raw`, unless they are too large."""
        added = _held_bytes(raw, ids)
        if added > self.limit_bytes // LARGEST_SHARE:
            return
        with self._lock:
            known = self._entries.pop(raw, None)
            if known is not None:
                self.size_bytes -= _held_bytes(raw, known)
            self._entries[raw] = ids
            self.size_bytes += added
            while self.size_bytes > self.limit_bytes:
                self.size_bytes -= _held_bytes(*self._entries.popitem(last=False))


def _held_bytes(raw: bytes, ids: list[int]) -> int:
    return ENTRY_BYTES + sys.getsizeof(raw) + sys.getsizeof(ids) + ID_BYTES * len(ids)
