"""Small caches for tests."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from app.core.engine.batch import SequenceState
from app.core.engine.kvcache.block_pool import Block, BlockPool
from app.core.engine.kvcache.cache import KVCache
from app.core.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from app.core.engine.kvcache.hashing import BlockHasher, Placeholder
from app.core.engine.lora import Adapter

ALICE = Adapter("Alice", "/p/alice", 7)
BOB = Adapter("Bob", "/p/bob", 8)


def small_cache(usable: int = 8, block_size: int = 4, **options: Any) -> KVCache:
    """A cache of so many usable blocks; vLLM would be told one more."""
    return KVCache(usable + 1, BlockHasher("sha256_cbor", block_size, "0", Random(0)), **options)


class Replying(SequenceState):
    """A sequence whose reply is known as far as `reply`."""

    def __init__(self, cache: KVCache, ids: list[int], *options: Any) -> None:
        super().__init__(len(ids), 100)
        self.prompt = cache.make_prompt(ids, *options)
        self.reply: list[int] = []

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        return self.reply[start:stop]

    def append(self, cache: KVCache, ids: list[int]) -> bool:
        self.reply += ids
        return cache.append(self, len(ids))


def admit(cache: KVCache, sequence: SequenceState, blocks: int | None = None) -> int | None:
    """Gives a sequence so many blocks, or all of its prompt's:

    the cached tokens, None without room.
    """
    assert sequence.prompt is not None
    tokens = len(sequence.prompt.token_ids)
    hit = cache.find(sequence, tokens)
    if not cache.fits(sequence, tokens, hit):
        return None
    cache.begin(sequence, hit, (-(-tokens // cache.block_size) if blocks is None else blocks) - hit)
    if blocks is None:
        sequence.computed = tokens
        cache.filled(sequence)
    return hit * cache.block_size


def begin(
    cache: KVCache,
    ids: list[int],
    adapter: Adapter | None = None,
    salt: str | None = None,
    placeholders: tuple[Placeholder, ...] = (),
) -> Replying:
    sequence = Replying(cache, ids, adapter, salt, placeholders)
    assert admit(cache, sequence) is not None
    return sequence


def serve(cache: KVCache, ids: list[int], reply: list[int] | None = None, **options: Any) -> int:
    """A request from its begin to its end; the cached tokens."""
    sequence = begin(cache, ids, **options)
    for token in reply or []:
        assert sequence.append(cache, [token])
    cache.release(sequence)
    check(cache)
    return sequence.cached_tokens


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def summary(events: list[KVEvent]) -> list[Any]:
    """The first token of each stored block, "-" and a hash for a removal, "clear"."""
    summary_parts: list[Any] = []
    for event in events:
        match event:
            case BlockStored():
                summary_parts += event.token_ids[:: event.block_size]
            case BlockRemoved():
                summary_parts += ["-", *event.block_hashes]
            case AllBlocksCleared():
                summary_parts.append("clear")
    return summary_parts


def check(cache: KVCache) -> None:
    """Fails unless blocks and sequences of a cache are consistent."""
    check_pool(cache.pool, [sequence.blocks for sequence in cache.running])
    for sequence in cache.running:
        hashes = [block.hash for block in sequence.blocks]
        stored = sequence.cached_blocks
        assert not sequence.caches or None not in hashes[:stored], "a stored block has no hash"
        assert not any(hashes[stored:]), "a block has a hash before it is full"


def check_pool(pool: BlockPool, used: Sequence[Sequence[Block]]) -> None:
    """Fails unless every block is in one place; `used` are the blocks by sequence."""
    references = Counter(block for blocks in used for block in blocks)
    idle = pool.free_blocks()
    everyone = {*idle, *references}
    hashed = {block for block in everyone if block.hash is not None}
    assert len(everyone) == len(idle) + len(references), "a block is in two places"
    assert len({block.number for block in everyone}) == len(everyone), "two blocks have one number"
    assert all(block.references == references[block] for block in everyone), "references are wrong"
    assert pool.free == pool.capacity - pool._created + len(idle), "free blocks are miscounted"
    assert pool.free + len(references) == pool.capacity, "blocks are missing, or there are too many"
    assert set(pool._cached.values()).union(*pool._copies.values()) == hashed, (
        "found is not what is held"
    )
    assert {block.hash for block in hashed} == pool._cached.keys(), (
        "a hash finds a block of another"
    )
