"""KV events of the tiers, as vLLM's OffloadingConnector publishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from app.core.engine.kvcache.cache import GROUP
from app.core.engine.kvcache.events import (
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
    event_bytes,
)
from app.extensions.kv_offload.cpu_tier import CpuTier, TierEvent
from app.extensions.kv_offload.policies import Key


class EventWriter:
    """Turns events of tiers into KV events.

    Without `is_full`, an event has a chunk's key, and no tokens. With `is_full`, it has the blocks
    of the chunk, which `describe` has received; they are kept until the host evicts the chunk.
    """

    def __init__(
        self,
        to_wire: Callable[[Sequence[bytes]], list[BlockHash]],
        is_full: bool,
        max_chunks: int,
    ) -> None:
        """`to_wire` returns hashes as events carry them. The host has up to `max_chunks` chunks."""
        self.is_full = is_full
        self._max_chunks = max_chunks
        self._chunk_bytes = 0
        """Memory of a described chunk, in bytes; all chunks have about the same size."""
        self._to_wire = to_wire
        self._stored: dict[Key, BlockStored] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of the described chunks, in bytes."""
        return len(self._stored) * self._chunk_bytes

    @property
    def limit_bytes(self) -> int:
        """Maximum of `size_bytes`."""
        return self._max_chunks * self._chunk_bytes

    def describe(self, key: Key, event: BlockStored) -> None:
        """Receives the event of a chunk's blocks in the host."""
        self._chunk_bytes = event_bytes(event)
        self._stored.setdefault(key, event)

    def write(self, events: Iterable[TierEvent]) -> Iterator[KVEvent]:
        """Yields the KV events."""
        evicted: dict[Key, None] = {}
        for event in events:
            if not event.is_removal:
                for key in event.keys:
                    evicted.pop(key, None)
                    yield self._stored_event(key, event.medium)
                continue
            hashes: list[BlockHash] = []
            for key in event.keys:
                described = self._stored.get(key)
                hashes += self._to_wire([key]) if described is None else described.block_hashes
            yield BlockRemoved(hashes, event.medium, GROUP)
            if event.medium == CpuTier.medium:
                evicted.update(dict.fromkeys(event.keys))
        for key in evicted:
            self._stored.pop(key, None)

    def reset(self) -> None:
        """Forgets the chunks."""
        self._stored.clear()

    def _stored_event(self, key: Key, medium: str) -> BlockStored:
        described = self._stored.get(key)
        if described is None:
            return BlockStored(
                block_hashes=self._to_wire([key]),
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=medium,
                group_idx=GROUP,
            )
        if described.medium == medium:
            return described
        return BlockStored(
            block_hashes=described.block_hashes,
            parent_block_hash=described.parent_block_hash,
            token_ids=described.token_ids,
            block_size=described.block_size,
            lora_id=described.lora_id,
            medium=medium,
            lora_name=described.lora_name,
            group_idx=GROUP,
            kv_cache_spec_kind=described.kv_cache_spec_kind,
        )
