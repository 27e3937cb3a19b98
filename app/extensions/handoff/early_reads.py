"""Reads that come before the blocks: `EarlyReads`.

The routers of some connectors send a request to both pods at the same time. The decode pod then
asks for blocks that the prefill pod has not computed yet.
"""

from __future__ import annotations

from typing import NamedTuple

from cachetools import FIFOCache

from app.extensions.handoff.messages import PENDING, Done, Read, SendAnswer

MAX_WAITING = 10_000
"""Maximum number of reads that wait, and of transfers that are remembered as abandoned."""
LIMIT_BYTES = 16 << 20
"""Maximum memory of either, in bytes: other pods choose the ids."""
ENTRY_BYTES = 700
"""Memory of an entry besides its ids, in bytes."""
NOT_PREFILLED = "the prefill has ended without blocks"
OTHER_READER = "another request waits for the blocks"


class EarlyRead(NamedTuple):
    """A read, with the function that sends its answer."""

    message: Read
    reply: SendAnswer


class _WaitingReads(FIFOCache[str, EarlyRead]):
    """Reads that wait; one that makes room for another is answered."""

    def popitem(self) -> tuple[str, EarlyRead]:
        transfer_id, read = super().popitem()
        read.reply(NOT_PREFILLED)
        return transfer_id, read


class EarlyReads:
    """The waiting reads of one engine, by the id of the transfer."""

    def __init__(self) -> None:
        self._reads = _WaitingReads(LIMIT_BYTES, getsizeof=_read_bytes)
        self._abandoned: FIFOCache[str, str] = FIFOCache(LIMIT_BYTES, getsizeof=_id_bytes)

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def size_bytes(self) -> int:
        """Estimated memory in use."""
        return int(self._reads.currsize + self._abandoned.currsize)

    @property
    def limit_bytes(self) -> int:
        """Estimated memory when full."""
        return int(self._reads.maxsize + self._abandoned.maxsize)

    def wait(self, message: Read, reply: SendAnswer) -> str:
        """Keeps a read until its blocks exist; returns the problem for now."""
        waiting = self._reads.get(message.request_id)
        if waiting is not None and waiting.message.reader != message.reader:
            return OTHER_READER
        while len(self._reads) >= MAX_WAITING:
            self._reads.popitem()
        self._reads[message.request_id] = EarlyRead(message, reply)
        return PENDING

    def take(self, transfer_id: str) -> EarlyRead | None:
        """Returns the read that waits for a transfer, which waits no more."""
        read: EarlyRead | None = self._reads.pop(transfer_id, None)
        return read

    def give_up(self, transfer_id: str) -> None:
        """Answers the read of a transfer whose prefill has ended without blocks."""
        self._abandoned.pop(transfer_id, None)
        waiting = self.take(transfer_id)
        if waiting is not None:
            waiting.reply(NOT_PREFILLED)

    def abandon(self, message: Done) -> None:
        """Notes that the reader of blocks that do not exist yet needs them no more."""
        waiting = self._reads.get(message.request_id)
        if waiting is not None and waiting.message.reader != message.reader:
            return
        self.take(message.request_id)
        while len(self._abandoned) >= MAX_WAITING:
            self._abandoned.popitem()
        self._abandoned[message.request_id] = message.request_id

    def is_abandoned(self, transfer_id: str) -> bool:
        """Returns whether the reader of a transfer has left. Returns True once."""
        if transfer_id not in self._abandoned:
            return False
        del self._abandoned[transfer_id]
        return True


def _read_bytes(read: EarlyRead) -> int:
    return ENTRY_BYTES + _id_bytes(read.message.request_id) + _id_bytes(read.message.reader)


def _id_bytes(text: str) -> int:
    return ENTRY_BYTES + 4 * len(text)
