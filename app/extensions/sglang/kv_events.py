"""KV events in the form of SGLang: maps with signed hashes, without vLLM's own fields.

The server computes its hashes as vLLM does: consumers take hashes as names of blocks.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.msgpack import Encoder

from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockStored,
    EventBatch,
    KVEvent,
)

HASH_BITS = 64
MEDIA = {"CPU": "CPU_PINNED"}
"""vLLM's name of a medium -> SGLang's name, where it differs."""

_encode = Encoder().encode


class Stored(Struct, gc=False, tag="BlockStored", omit_defaults=True):
    """Event: consecutive blocks now hold these tokens."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: None
    medium: str | None = None
    lora_name: str | None = None


class Removed(Struct, gc=False, tag="BlockRemoved", omit_defaults=True):
    """Event: a medium no longer holds these blocks."""

    block_hashes: list[int]
    medium: str | None = None


class Cleared(Struct, gc=False, tag="AllBlocksCleared"):
    """Event: the cache is empty."""


def encode_batch(batch: EventBatch) -> bytes:
    """Returns a batch as msgpack: time, events and rank."""
    events = [as_sglang_event(event) for event in batch.events]
    return _encode((batch.ts, events, batch.data_parallel_rank))


def as_sglang_event(event: KVEvent) -> Stored | Removed | Cleared:
    """Converts an event of vLLM."""
    if isinstance(event, AllBlocksCleared):
        return Cleared()
    hashes = [signed(block_hash) for block_hash in event.block_hashes]
    medium = event.medium
    if medium is not None:
        medium = MEDIA.get(medium, medium)
    if not isinstance(event, BlockStored):
        return Removed(hashes, medium)
    parent = event.parent_block_hash
    return Stored(
        block_hashes=hashes,
        parent_block_hash=None if parent is None else signed(parent),
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_id=None,
        medium=medium,
        lora_name=event.lora_name,
    )


def signed(block_hash: BlockHash) -> int:
    """Returns the low 64 bits of a hash as a signed number."""
    if isinstance(block_hash, bytes):
        block_hash = int.from_bytes(block_hash[-HASH_BITS // 8 :], "big")
    if block_hash >= 1 << (HASH_BITS - 1):
        return block_hash - (1 << HASH_BITS)
    return block_hash
