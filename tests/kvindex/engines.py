"""Events as engines publish them, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.engine.kvcache.events import BlockHash, BlockRemoved, BlockStored, EventBatch, KVEvent
from app.kvindex.backend import IndexedEngine, Outcome
from app.kvindex.decoding import PodBatch
from app.kvindex.index import Index

PROMPT = list(range(100, 140))
"""Ten blocks of four tokens."""


def stored(
    hashes: Iterable[BlockHash],
    tokens: Sequence[int],
    parent: BlockHash | None = None,
    size: int = 4,
    **more: Any,
) -> BlockStored:
    """Blocks of `size` tokens."""
    more.setdefault("lora_id", None)
    return BlockStored(list(hashes), parent, list(tokens), size, **more)


def block(number: int) -> BlockStored:
    """Block `number` of the prompt, after the one before it."""
    return stored([number + 1], PROMPT[number * 4 : number * 4 + 4], number or None)


def offloaded(hashes: Iterable[BlockHash], medium: str = "CPU", **more: Any) -> BlockStored:
    """Known blocks in a further medium."""
    return BlockStored(list(hashes), None, [], 0, None, medium, **more)


def removed(hashes: Iterable[BlockHash], medium: str | None = "GPU", **more: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, **more)


def ingest(index: Index, pod: str, *events: KVEvent, model: str = "m", rank: int = 0) -> Outcome | None:
    """Applies a batch without a number."""
    return index.ingest(IndexedEngine(pod, model, rank), PodBatch(1.0, rank, events))


def batch(*events: KVEvent, rank: int | None = 0, ts: float = 1.0) -> EventBatch:
    return EventBatch(ts, list(events), rank)
