"""Event batches as msgpack, in the layouts of all vLLM versions (kv-cache specification, section 2.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from app.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent, PublishedKeys

LayoutName: TypeAlias = Literal[
    "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
]
"""`map` is vLLM 0.24 and later; a number is the first vLLM of a layout of arrays."""

LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
DEFAULT_LAYOUT: LayoutName = "map"

Encode: TypeAlias = Callable[[EventBatch], bytes]


class Arrays(Struct, frozen=True):
    """How many items the arrays of an older vLLM have, the event's name first.

    `rank` is whether a batch has one; `offsets` whether extra keys of images are pairs with an offset.
    """

    stored: int
    removed: int
    rank: bool = True
    offsets: bool = True

    def event(self, event: KVEvent) -> Sequence[object]:
        match event:
            case BlockStored():
                return [
                    "BlockStored",
                    event.block_hashes,
                    event.parent_block_hash,
                    event.token_ids,
                    event.block_size,
                    event.lora_id,
                    event.medium,
                    event.lora_name,
                    event.extra_keys if self.offsets else _without_offsets(event.extra_keys),
                    event.group_idx,
                    event.kv_cache_spec_kind,
                    event.kv_cache_spec_sliding_window,
                ][: self.stored]
            case BlockRemoved():
                removed = ["BlockRemoved", event.block_hashes, event.medium, event.group_idx]
                return removed[: self.removed]
        return ["AllBlocksCleared"]


_ARRAYS: dict[LayoutName, Arrays] = {
    "0.9.0": Arrays(stored=6, removed=2, rank=False, offsets=False),
    "0.9.2": Arrays(stored=6, removed=2, offsets=False),
    "0.10.2": Arrays(stored=7, removed=3, offsets=False),
    "0.14": Arrays(stored=8, removed=3, offsets=False),
    "0.17": Arrays(stored=9, removed=3, offsets=False),
    "0.19": Arrays(stored=9, removed=3),
    "0.20": Arrays(stored=10, removed=4),
    "0.22": Arrays(stored=12, removed=4),
}

_NO_PARENT = Raw(b"\xcf" + bytes(8))
"""0 in all its 64 bits: llm-d's decoder knows no shorter numbers."""


def encoder(layout: LayoutName = DEFAULT_LAYOUT) -> Encode:
    """How a batch is written in `layout`. ValueError for an unknown one."""
    encode = Encoder().encode
    if layout == "map":
        return encode
    if layout == "llm-d-inference-sim":
        return lambda batch: encode([batch.ts, list(map(_legacy, batch.events)), batch.data_parallel_rank])
    arrays = _ARRAYS.get(layout)
    if arrays is None:
        raise ValueError(f"unknown layout of KV events {layout}")
    if arrays.rank:
        return lambda batch: encode(
            [batch.ts, list(map(arrays.event, batch.events)), batch.data_parallel_rank]
        )
    return lambda batch: encode([batch.ts, list(map(arrays.event, batch.events))])


def _legacy(event: KVEvent) -> Sequence[object]:
    """The arrays of llm-d's simulator: 0 for no parent, extra keys always nil."""
    match event:
        case BlockStored():
            return [
                "BlockStored",
                event.block_hashes,
                _NO_PARENT if event.parent_block_hash is None else event.parent_block_hash,
                event.token_ids,
                event.block_size,
                event.lora_id,
                event.medium,
                event.lora_name,
                None,
            ]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium]
    return ["AllBlocksCleared"]


def _without_offsets(extra_keys: PublishedKeys | None) -> PublishedKeys | None:
    if extra_keys is None:
        return None
    return [keys and [key[0] if isinstance(key, list) else key for key in keys] for keys in extra_keys]
