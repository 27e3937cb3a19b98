"""What happens to blocks of a KV cache, in the words of vLLM's event stream.

The structs are msgpack maps as vLLM 0.24 and later publish them; `wire` writes them in older layouts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from msgspec import Struct, field

from app.kvcache.hashing import all_low64, low64
from app.kvcache.prompt import Adapter, ExtraKeys

BlockHash: TypeAlias = int | bytes
"""A block's name on the wire: the low 64 bits of its hash, or all bytes of it (16 or 32)."""

PublishedKeys: TypeAlias = list[list[object] | None]
"""Per block what its hash covers besides tokens (untagged: names, salts, [identifier, offset]), or None."""

GROUP, MEDIUM = 0, "GPU"
"""Given to every event: the defaults of its fields cost a call each."""
SPEC_KIND = "full_attention"


class BlockStored(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Consecutive blocks of one sequence now hold these tokens.

    `token_ids` are those of all blocks in a row, `len(block_hashes) * block_size` of them; none (and a
    `block_size` of 0) where the event only says that known blocks are now in another medium too.
    `parent_block_hash` names the block before the first one, None at the start of a prompt.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    # vLLM always sends these two. A default from a factory is not left out, one that is a value would be.
    medium: str | None = field(default_factory=lambda: "GPU")
    lora_name: str | None = field(default_factory=lambda: None)
    extra_keys: PublishedKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[int] | None = None


class BlockRemoved(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Blocks that this medium no longer holds; the blocks of a prompt behind them may stay."""

    block_hashes: list[BlockHash]
    medium: str | None = field(default_factory=lambda: "GPU")
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Struct, gc=False, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """The cache of this engine is empty, in every medium."""

    block_hashes: ClassVar[Sequence[BlockHash]] = ()
    """It names none."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, gc=False, frozen=True, array_like=True):
    """Events in their order, published together at `ts` (seconds since 1970) by one data parallel rank."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def event_bytes(event: KVEvent) -> int:
    """About what an event takes in memory: numbers of 32 bytes, and their places in lists."""
    match event:
        case BlockStored():
            return 400 + 40 * len(event.token_ids) + 90 * len(event.block_hashes)
        case BlockRemoved():
            return 200 + 80 * len(event.block_hashes)
    return 100


class EventLog:
    """The events of a cache of one full-attention group, in order, until they are taken.

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
