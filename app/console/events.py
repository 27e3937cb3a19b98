"""KV events as they leave the publisher, in a few words each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from app.console.frames import EventRow, Frame
from app.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent

if TYPE_CHECKING:
    from app.kvcache.publisher import Publisher

MOST_EVENTS = 100
"""Of a frame; the latest."""
SHOWN_DIGITS = 16


class Events:
    """Listens to a publisher while somebody looks."""

    def __init__(self, publisher: Publisher | None) -> None:
        self._publisher = publisher
        self._rows: deque[EventRow] = deque(maxlen=MOST_EVENTS)

    def begin(self) -> None:
        if self._publisher is not None:
            self._publisher.listen(self._take)

    def end(self) -> None:
        if self._publisher is not None:
            self._publisher.forget(self._take)
        self._rows.clear()

    def _take(self, topic: str, sequence: int, batch: EventBatch) -> None:
        self._rows += [row_of(event, sequence) for event in batch.events[-MOST_EVENTS:]]

    def changes(self, frame: Frame) -> None:
        """Write into `frame` what has left since the one before."""
        frame.events = list(self._rows)
        self._rows.clear()


def row_of(event: KVEvent, sequence: int) -> EventRow:
    """An event of the message with this number."""
    if isinstance(event, BlockStored):
        hashes = event.block_hashes
        return "stored", sequence, len(hashes), len(event.token_ids), _first(hashes), event.lora_name or ""
    if isinstance(event, BlockRemoved):
        return "removed", sequence, len(event.block_hashes), 0, _first(event.block_hashes), ""
    return "cleared", sequence, 0, 0, "", ""


def _first(hashes: list[int | bytes]) -> str:
    """The first hash, in hexadecimal digits."""
    if not hashes:
        return ""
    first = hashes[0]
    return f"{first % (1 << 64):016x}" if isinstance(first, int) else first.hex()[:SHOWN_DIGITS]
