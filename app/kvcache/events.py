"""What happens to blocks of a KV cache, in the words of vLLM's event stream.

The structs are msgpack maps as vLLM 0.24 and later publish them; `wire` writes them in older layouts too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct, field

BlockHash: TypeAlias = int | bytes
"""A block's name on the wire: the low 64 bits of its hash, or all bytes of it (16 or 32)."""

ExtraKeys: TypeAlias = list[list[Any] | None]
"""Per block what its hash covers besides tokens (untagged: names, salts, [identifier, offset]), or None."""


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
    extra_keys: ExtraKeys | None = None
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


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, gc=False, frozen=True, array_like=True):
    """Events in their order, published together at `ts` (seconds since 1970) by one data parallel rank."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None
