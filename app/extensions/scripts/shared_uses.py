"""Answers of rules with `times`, counted together by the workers of all ranks.

The arbiter creates an unlinked file, which the workers map into memory. It is a table of buckets,
each with a few slots. A slot has the key of a rule, its number of answers, and the time of the last
one. Each access holds a lock on the file.
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

CLOCK = struct.Struct("<Q")
"""Number of answers of all rules, at the beginning of the table."""
SLOT = struct.Struct("<8sQQ")
"""The key of a rule in a scope, its number of answers, and the clock at the last one.

A free slot has zeros.
"""
KEY_BYTES = 8
BUCKETS = 1024
WAYS = 16
"""Slots of a bucket: the most that an access reads."""
BUCKET_BYTES = WAYS * SLOT.size
TABLE_BYTES = CLOCK.size + BUCKETS * BUCKET_BYTES


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

        A full bucket forgets the count that was changed longest ago.
        """
        with self._locked():
            offset, uses = self._find(key)
            if uses >= limit:
                return False
            [clock] = CLOCK.unpack_from(self._table, 0)
            CLOCK.pack_into(self._table, 0, clock + 1)
            self._table[offset : offset + SLOT.size] = SLOT.pack(key, uses + 1, clock + 1)
            return True

    def remove(self, key: bytes) -> None:
        """Forgets the answers under `key`."""
        with self._locked():
            offset, uses = self._find(key)
            if uses:
                self._table[offset : offset + SLOT.size] = bytes(SLOT.size)

    def clear(self) -> None:
        """Forgets all answers."""
        with self._locked():
            self._table[:] = bytes(TABLE_BYTES)

    def _find(self, key: bytes) -> tuple[int, int]:
        """Returns the offset of the slot for `key`, and its number of answers.

        Without answers, it is a free slot, or the one that was changed longest ago.
        """
        start = CLOCK.size + int.from_bytes(key, "little") % BUCKETS * BUCKET_BYTES
        oldest_clock: int | None = None
        usable = start
        for offset in range(start, start + BUCKET_BYTES, SLOT.size):
            stored_key, uses, clock = SLOT.unpack_from(self._table, offset)
            if stored_key == key and uses:
                return offset, uses
            if oldest_clock is None or clock < oldest_clock:
                oldest_clock = clock
                usable = offset
        return usable, 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes out. The system unlocks the file of a killed process."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
