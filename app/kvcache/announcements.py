"""Events of a cache, collected until the end of a step."""

from __future__ import annotations

from collections.abc import Sequence

from app.kvcache.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvcache.extra_keys import Adapter, ExtraKeys
from app.kvcache.hashing import all_low64, low64

GROUP, MEDIUM = 0, "GPU"
"""Given to every event: the defaults of its fields cost a call each."""
SPEC_KIND = "full_attention"


class Announcements:
    """The pending events of a cache of one full-attention group, in order.

    Hashes are carried as numbers of 64 bits, or as bytes without `int_hashes`. If not `wanted`, none is.
    """

    def __init__(self, wanted: bool, int_hashes: bool, block_size: int) -> None:
        self._wanted = wanted
        self._int_hashes = int_hashes
        self._block_size = block_size
        self._pending: list[KVEvent] = []

    def take(self) -> list[KVEvent]:
        """What is pending; then nothing is."""
        events, self._pending = self._pending, []
        return events

    def stored(
        self,
        hashes: Sequence[bytes],
        parent: bytes | None,
        token_ids: Sequence[int],
        first: int,
        keys: ExtraKeys,
        adapter: Adapter | None,
    ) -> None:
        """Blocks from number `first` of a sequence on hold the first of `token_ids`."""
        if not self._wanted:
            return
        self._pending.append(
            BlockStored(
                block_hashes=self._wire(hashes),
                parent_block_hash=low64(parent) if parent is not None and self._int_hashes else parent,
                token_ids=list(token_ids[: len(hashes) * self._block_size]),
                block_size=self._block_size,
                lora_id=adapter.id if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
                extra_keys=keys.published(first, first + len(hashes)),
                group_idx=GROUP,
                kv_cache_spec_kind=SPEC_KIND,
            )
        )

    def removed(self, hashes: Sequence[bytes]) -> None:
        """These blocks make room, one after the other: an event each, as from vLLM."""
        if self._wanted:
            self._pending += [BlockRemoved([name], MEDIUM, GROUP) for name in self._wire(hashes)]

    def cleared(self) -> None:
        """Everything is forgotten."""
        if self._wanted:
            self._pending.append(AllBlocksCleared())

    def _wire(self, hashes: Sequence[bytes]) -> list[BlockHash]:
        return list(all_low64(hashes)) if self._int_hashes else list(hashes)
