"""Events as engines publish them, and reading a backend by names instead of set_bits."""

from collections.abc import Iterable, Sequence
from typing import Any

from app.core.engine.kvcache.events import BlockHash, BlockRemoved, BlockStored, EventBatch, KVEvent
from app.extensions.kv_index.backend import Backend, CoveredKeys, Outcome, Store
from app.extensions.kv_index.copies import set_bits
from app.extensions.kv_index.decoding import PodBatch
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index

PROMPT = list(range(100, 140))
"""Ten blocks of four tokens."""


def stored(
    hashes: Iterable[BlockHash],
    tokens: Sequence[int],
    parent: BlockHash | None = None,
    size: int = 4,
    **fields: Any,
) -> BlockStored:
    """Blocks of `size` tokens."""
    fields.setdefault("lora_id", None)
    return BlockStored(list(hashes), parent, list(tokens), size, **fields)


def block(number: int) -> BlockStored:
    """Block `number` of the prompt, after the one before it."""
    return stored([number + 1], PROMPT[number * 4 : number * 4 + 4], number or None)


def offloaded(hashes: Iterable[BlockHash], medium: str = "CPU", **fields: Any) -> BlockStored:
    """Known blocks in a further medium."""
    return BlockStored(list(hashes), None, [], block_size=0, lora_id=None, medium=medium, **fields)


def removed(hashes: Iterable[BlockHash], medium: str | None = "GPU", **fields: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, **fields)


def ingest(
    index: Index, pod: str, *events: KVEvent, model: str = "m", rank: int = 0
) -> Outcome | None:
    """Applies a batch without a number."""
    return index.ingest(IndexedEngine(pod, model, rank), PodBatch(1.0, rank, events))


def batch(*events: KVEvent, rank: int | None = 0, ts: float = 1.0) -> EventBatch:
    return EventBatch(ts, list(events), rank)


Copy = tuple[str, str]
"""A pod, and a tier in which it has a block; groups above 0 and ranks above 0 are part of the pod's
name.
"""


def source(pod: str = "a", model: str = "m", rank: int = 0) -> IndexedEngine:
    return IndexedEngine(pod, model, rank)


def store(
    engine: Sequence[int], keys: Sequence[int], tier: str = "gpu", group: int = 0, **fields: object
) -> Store:
    """Blocks of the index's own size."""
    owned: Sequence[CoveredKeys] = list(keys)
    return Store(group, tier, list(engine), covered=owned, request_keys=list(keys), **fields)  # type: ignore[arg-type]


def holders_of(backend: Backend, key: int) -> set[Copy]:
    masks_of_blocks, holders, tiers = backend.lookup([key])
    copies = set()
    for masks in masks_of_blocks:
        for tier, mask in zip(tiers, masks, strict=False):
            for number in set_bits(mask):
                holder = holders[number] if number < 1 << 20 else None
                if holder is not None:
                    copies.add((_named(holder.source.pod, holder.source.rank, holder.group), tier))
    return copies


def _named(pod: str, rank: int, group: int) -> str:
    return pod + (f"/{rank}" if rank else "") + (f"#{group}" if group else "")


def matched(
    index: Index, tokens: Sequence[int], model: str = "m", **options: Any
) -> dict[str, int]:
    """How many blocks of a prompt each pod has, of the pods that have any."""
    return {score.pod: score.matched for score in index.score(model, tokens, **options)}


def content(backend: Backend, keys: Sequence[int]) -> dict[int, set[Copy]]:
    """The copies of each of these blocks that has any."""
    copies_by_key = {key: holders_of(backend, key) for key in keys}
    return {key: copies for key, copies in copies_by_key.items() if copies}
