"""Answers of rules with `times`, counted together by the workers of all ranks.

The arbiter creates an unlinked file, which the workers map into memory. It is a hash table with
linear probing: each slot has the key of a rule, and its number of answers. Each access holds a lock
on the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from tempfile import TemporaryFile
from typing import IO

SLOT = struct.Struct("<8sQ")
"""The key of a rule in a scope, and its number of answers. A free slot has zeros."""
KEY_BYTES = 8
SLOTS = 4096
TABLE_BYTES = SLOTS * SLOT.size
FREE = bytes(KEY_BYTES)
REMOVED = b"\xff" * KEY_BYTES
"""Key of a slot that can be used again, but does not end a search."""


def new_table() -> IO[bytes]:
    """Returns the file of an empty table, without a name. Raises `OSError`."""
    file = TemporaryFile()  # noqa: SIM115
    os.ftruncate(file.fileno(), TABLE_BYTES)
    return file


class SharedUses:
    """The table in the file `descriptor`, which may be used by several processes at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._table = mmap(descriptor, TABLE_BYTES)

    def count(self, key: bytes) -> int:
        """Returns the number of answers under `key`, of 8 bytes."""
        with self._locked():
            _, uses = self._find(key)
            return uses

    def take(self, key: bytes, limit: int) -> bool:
        """Counts an answer under `key`, unless there were `limit` answers: then returns False.

        A full table forgets the count of another key.
        """
        with self._locked():
            offset, uses = self._find(key)
            if uses >= limit:
                return False
            SLOT.pack_into(self._table, offset, key, uses + 1)
            return True

    def remove(self, key: bytes) -> None:
        """Forgets the answers under `key`."""
        with self._locked():
            offset, uses = self._find(key)
            if uses:
                SLOT.pack_into(self._table, offset, REMOVED, 0)

    def clear(self) -> None:
        """Forgets all answers."""
        with self._locked():
            self._table[:] = bytes(TABLE_BYTES)

    def _find(self, key: bytes) -> tuple[int, int]:
        """Returns the offset of the slot for `key`, and its number of answers."""
        first = int.from_bytes(key, "little") % SLOTS
        usable: int | None = None
        for step in range(SLOTS):
            offset = (first + step) % SLOTS * SLOT.size
            stored_key, uses = SLOT.unpack_from(self._table, offset)
            if stored_key == key:
                return offset, uses
            if stored_key in (FREE, REMOVED) and usable is None:
                usable = offset
            if stored_key == FREE:
                break
        if usable is None:
            usable = first * SLOT.size
        return usable, 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes out. The system unlocks the file of a killed process."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
