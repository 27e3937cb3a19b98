"""The limits of an index, as shares of the memory of its process.

No limit exceeds the default of the part that it is for, which suits a large machine.
"""

from __future__ import annotations

from msgspec import Struct

from app.extensions.kv_index.ingest import TAILS_LIMIT_BYTES
from app.extensions.kv_index.memory import MAX_COPIES, MAX_COPY_BYTES, REPEATS_LIMIT_BYTES
from app.extensions.kv_index.subscriber import SubscriberSettings
from app.extensions.kv_index.tokenizers import LIMIT_BYTES as TOKENIZERS_LIMIT_BYTES
from config.settings import ServerSettings

MODEL_SERVER_FACTOR = 1 / 3
"""Part of an indexer's memory for an index in the server of a model."""
BLOCKS_SHARE = 3 / 16
MAX_BLOCKS_BYTES = 2 << 30
"""Largest default of the cost-aware backend."""
TOKENIZERS_SHARE = 3 / 32
QUEUE_SHARE = 3 / 64
SMALL_SHARE = 1 / 64
"""Part of the memory for each of the other limits."""
RESIDENT_SHARE = 7 / 8
"""Part of the process's memory above which messages that wait in the sockets are discarded."""
SOCKET_MESSAGE_BYTES = 8 << 20
"""Memory of the process for which one more message may wait in each socket."""


class IndexLimits(Struct, frozen=True, kw_only=True):
    """Limits of an index, in bytes but for `copies` and `socket_messages`."""

    copies: int
    blocks_bytes: int
    repeats_bytes: int
    queue_bytes: int
    waiting_bytes: int
    tokenizers_bytes: int
    prompts_bytes: int
    message_bytes: int
    resident_bytes: int
    socket_messages: int

    @classmethod
    def of(cls, server: ServerSettings, *, is_indexer: bool) -> IndexLimits:
        """Returns the limits of an indexer, or of an index in the server of a model."""
        factor = 1 if is_indexer else MODEL_SERVER_FACTOR
        largest = SubscriberSettings()

        def part(share: float, max_bytes: int) -> int:
            return server.memory_share(factor * share, max_bytes)

        return cls(
            copies=part(BLOCKS_SHARE, MAX_COPIES * MAX_COPY_BYTES) // MAX_COPY_BYTES,
            blocks_bytes=part(BLOCKS_SHARE, MAX_BLOCKS_BYTES),
            tokenizers_bytes=part(TOKENIZERS_SHARE, TOKENIZERS_LIMIT_BYTES),
            queue_bytes=part(QUEUE_SHARE, largest.pool.max_bytes),
            waiting_bytes=part(SMALL_SHARE, largest.pool.max_total_waiting_bytes),
            prompts_bytes=part(SMALL_SHARE, TAILS_LIMIT_BYTES),
            repeats_bytes=part(SMALL_SHARE, REPEATS_LIMIT_BYTES),
            message_bytes=part(SMALL_SHARE, largest.max_bytes),
            resident_bytes=int(RESIDENT_SHARE * server.process_memory),
            socket_messages=min(largest.hwm, 1 + server.process_memory // SOCKET_MESSAGE_BYTES),
        )
