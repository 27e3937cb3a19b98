"""The limits of an index, as shares of the memory of its process."""

from __future__ import annotations

from msgspec import Struct

from app.extensions.kv_index.memory import MAX_COPIES, MAX_COPY_BYTES
from config.settings import ServerSettings

MODEL_SERVER_FACTOR = 1 / 3
"""Part of an indexer's memory for an index in the server of a model."""
BLOCKS_SHARE = 3 / 16
MAX_BLOCKS_BYTES = 2 << 30
"""Largest default of the cost-aware backend."""
QUEUE_SHARE = 3 / 64
MAX_QUEUE_BYTES = 1 << 30
WAITING_SHARE = 1 / 64
MAX_WAITING_BYTES = 256 << 20
"""Messages that wait for a shard, and for a replay."""
TOKENIZERS_SHARE = 3 / 32
MAX_TOKENIZERS_BYTES = 2 << 30
PROMPTS_SHARE = 1 / 64
MAX_PROMPTS_BYTES = 64 << 20
"""Tails of prompts, and routed prompts: each."""
REPEATS_SHARE = 1 / 64
MAX_REPEATS_BYTES = 64 << 20
"""Counts of repeated blocks."""
MESSAGE_SHARE = 1 / 64
MAX_MESSAGE_BYTES = 128 << 20
"""Largest message that a socket accepts."""
RESIDENT_SHARE = 7 / 8
"""Part of the process's memory above which messages that wait in the sockets are discarded."""
SOCKET_MESSAGE_SHARE = 8 << 20
MAX_SOCKET_MESSAGES = 1_000
"""One message may wait in each socket for each `SOCKET_MESSAGE_SHARE` of memory, up to these."""


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
        max_copies_bytes = MAX_COPIES * MAX_COPY_BYTES
        copies_bytes = server.memory_share(factor * BLOCKS_SHARE, max_copies_bytes)
        return cls(
            copies=copies_bytes // MAX_COPY_BYTES,
            blocks_bytes=server.memory_share(factor * BLOCKS_SHARE, MAX_BLOCKS_BYTES),
            repeats_bytes=server.memory_share(factor * REPEATS_SHARE, MAX_REPEATS_BYTES),
            queue_bytes=server.memory_share(factor * QUEUE_SHARE, MAX_QUEUE_BYTES),
            waiting_bytes=server.memory_share(factor * WAITING_SHARE, MAX_WAITING_BYTES),
            tokenizers_bytes=server.memory_share(factor * TOKENIZERS_SHARE, MAX_TOKENIZERS_BYTES),
            prompts_bytes=server.memory_share(factor * PROMPTS_SHARE, MAX_PROMPTS_BYTES),
            message_bytes=server.memory_share(factor * MESSAGE_SHARE, MAX_MESSAGE_BYTES),
            resident_bytes=int(RESIDENT_SHARE * server.process_memory),
            socket_messages=min(
                MAX_SOCKET_MESSAGES, 1 + server.process_memory // SOCKET_MESSAGE_SHARE
            ),
        )
