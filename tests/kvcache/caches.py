"""Small caches for tests."""

from __future__ import annotations

from random import Random
from typing import Any

from app.engine.kvcache.cache import KVCache
from app.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from app.engine.kvcache.hashing import BlockHasher
from app.engine.kvcache.prompt import Adapter, Placeholder

ALICE = Adapter("Alice", "/p/alice", 7)
BOB = Adapter("Bob", "/p/bob", 8)


def small_cache(usable: int = 8, block_size: int = 4, **options: Any) -> KVCache:
    """A cache of so many usable blocks; vLLM would be told one more."""
    return KVCache(usable + 1, BlockHasher("sha256_cbor", block_size, "0", Random(0)), **options)


def begin(
    cache: KVCache,
    request_id: str,
    ids: list[int],
    adapter: Adapter | None = None,
    salt: str | None = None,
    placeholders: tuple[Placeholder, ...] = (),
) -> int | None:
    return cache.begin(request_id, cache.prompt(ids, adapter, salt, placeholders))


def serve(cache: KVCache, ids: list[int], reply: list[int] | None = None, **options: Any) -> int | None:
    """A request from its begin to its end; the cached tokens."""
    cached = begin(cache, "served", ids, **options)
    for token in reply or []:
        assert cache.append("served", [token])
    cache.finish("served")
    cache.check_integrity()
    return cached


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def summary(events: list[KVEvent]) -> list[Any]:
    """The first token of each stored block, "-" and a hash for a removal, "clear"."""
    found: list[Any] = []
    for event in events:
        match event:
            case BlockStored():
                found += event.token_ids[:: event.block_size]
            case BlockRemoved():
                found += ["-", *event.block_hashes]
            case AllBlocksCleared():
                found.append("clear")
    return found
