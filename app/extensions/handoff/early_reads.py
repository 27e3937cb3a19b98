"""Reads that come before the blocks: `EarlyReads`.

The routers of some connectors send a request to both pods at the same time. The decode pod then
asks for blocks that the prefill pod has not computed yet.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from app.extensions.handoff.messages import PENDING, Done, Read, SendAnswer

MAX_WAITING = 10_000
"""Maximum number of reads that wait, and of transfers that are remembered as abandoned."""
NOT_PREFILLED = "the prefill has ended without blocks"
OTHER_READER = "another request waits for the blocks"


class EarlyRead(NamedTuple):
    """A read, with the function that sends its answer."""

    message: Read
    reply: SendAnswer


class EarlyReads:
    """The waiting reads of one engine, by the id of the transfer."""

    def __init__(self) -> None:
        self._reads: OrderedDict[str, EarlyRead] = OrderedDict()
        self._abandoned: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reads)

    def wait(self, message: Read, reply: SendAnswer) -> str:
        """Keeps a read until its blocks exist; returns the problem for now."""
        waiting = self._reads.get(message.request_id)
        if waiting is not None and waiting.message.reader != message.reader:
            return OTHER_READER
        self._reads[message.request_id] = EarlyRead(message, reply)
        if len(self._reads) > MAX_WAITING:
            _, oldest = self._reads.popitem(last=False)
            oldest.reply(NOT_PREFILLED)
        return PENDING

    def take(self, transfer_id: str) -> EarlyRead | None:
        """Returns the read that waits for a transfer, which waits no more."""
        return self._reads.pop(transfer_id, None)

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
        self._abandoned[message.request_id] = None
        if len(self._abandoned) > MAX_WAITING:
            self._abandoned.popitem(last=False)

    def is_abandoned(self, transfer_id: str) -> bool:
        """Returns whether the reader of a transfer has left. Returns True once."""
        if transfer_id not in self._abandoned:
            return False
        del self._abandoned[transfer_id]
        return True
