"""KV cache of one engine: the blocks of each sequence, and the cached prefixes of prompts.

Behaves as vLLM 0.32 with one full-attention group. Only full blocks are cached; a block computed twice is
cached twice. The last token of a prompt is always computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import Struct

from app.engine.kvcache.block_pool import Block, BlockPool
from app.engine.kvcache.events import EventLog, KVEvent
from app.engine.kvcache.hashing import BlockHasher
from app.engine.kvcache.memo import Bounded
from app.engine.kvcache.prompt import Adapter, ExtraKeys, Placeholder, Prompt
from app.engine.kvcache.residency import BlockObserver


class Allocation(Struct, gc=False):
    """Blocks of one sequence; the first `stored` are cached, the last of these under `last_hash`.

    `tokens` counts prompt and reply. The newest reply token is not computed yet and has no place. `tail`
    holds the token ids after the cached blocks, while the sequence is `cached`.
    """

    keys: ExtraKeys
    adapter: Adapter | None
    blocks: list[Block]
    tokens: int
    stored: int
    last_hash: bytes
    tail: list[int]
    cached: bool


class KVCache:
    """KV cache of `num_blocks` blocks, including vLLM's null block, for sequences identified by an `owner`.

    Not thread-safe; greenlets may share the cache, since no method yields. With `caching` off nothing is
    cached and prompts have no hits; `caching` may be switched while sequences run.
    """

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        *,
        caching: bool = True,
        events: bool = True,
        int_hashes: bool = True,
        observer: BlockObserver | None = None,
    ) -> None:
        """Without `events`, `take_events` stays empty; without `int_hashes`, events carry hashes as bytes."""
        self.caching = caching
        self.block_size = hasher.chain.block_size
        self._hasher = hasher
        self.log = EventLog(events, int_hashes, self.block_size)
        self.pool = BlockPool(num_blocks, self.log.removed, observer)
        self._running: dict[Hashable, Allocation] = {}

    @property
    def caches(self) -> Mapping[str, Bounded]:
        return {"KV cache blocks": self.pool, "block hashes": self._hasher.chain.memo}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def capacity(self) -> int:
        """Number of blocks available to sequences: all but the null block."""
        return self.pool.capacity

    @property
    def free(self) -> int:
        """Number of blocks that no sequence uses, including cached ones."""
        return self.pool.queue.free

    @property
    def usage(self) -> float:
        """Share of blocks in use, from 0 to 1 (vllm:kv_cache_usage_perc)."""
        return self.pool.usage

    def prompt(
        self,
        token_ids: Sequence[int],
        adapter: Adapter | None = None,
        salt: str | None = None,
        placeholders: Sequence[Placeholder] = (),
        reads: bool = True,
    ) -> Prompt:
        """Creates a prompt for `begin`. Hashes are computed later: in parts by `hashing`, or on access."""
        end = len(token_ids)
        inside = [p for p in placeholders if p.offset >= 0 and p.offset + p.length <= end]
        keys = ExtraKeys(self.block_size, adapter, salt, inside)
        return Prompt(token_ids, self._hasher if self.caching else None, keys, adapter, reads)

    def again(self, prompt: Prompt, token_ids: Sequence[int]) -> Prompt:
        """Returns `prompt` extended to `token_ids`, for a preempted sequence that starts again."""
        hasher = self._hasher if self.caching else None
        return Prompt(token_ids, hasher, prompt.keys, prompt.adapter, prompt.reads)

    def fits_ever(self, tokens: int) -> bool:
        """Returns whether an otherwise empty cache has room for a sequence of `tokens` tokens."""
        return self._blocks_of(tokens) <= self.capacity

    def can_allocate(self, prompt: Prompt) -> bool:
        """Returns whether `begin` would succeed now."""
        return self.fits(prompt, self.hits(prompt))

    def begin(
        self, owner: Hashable, prompt: Prompt, blocks: int | None = None, hits: list[Block] | None = None
    ) -> int | None:
        """Assigns blocks for a prompt; returns the number of prompt tokens already cached.

        Returns None, and changes nothing, when too few blocks are free. With `blocks` the sequence gets only
        that many, and the prompt is computed in parts by `grow` and `compute`. With `hits` the caller has
        just looked up the cached blocks and checked `fits`. Raises ValueError if `owner` has blocks already.
        """
        if owner in self._running:
            raise ValueError(f"request {owner} has blocks already")
        if hits is None:
            hits = self.hits(prompt)
            if not self.fits(prompt, hits):
                return None
        found = len(hits)
        self.pool.use(hits)
        tokens = len(prompt.token_ids)
        wanted = self._blocks_of(tokens) if blocks is None else blocks
        sequence = Allocation(
            keys=prompt.keys,
            adapter=prompt.adapter,
            blocks=hits + self.pool.take(wanted - found),
            tokens=tokens,
            stored=found,
            last_hash=prompt.hashes[found - 1] if hits else self._hasher.none_hash,
            tail=list(prompt.token_ids[found * self.block_size :]) if prompt.cached else [],
            cached=prompt.cached,
        )
        self._running[owner] = sequence
        if blocks is None:
            self._store(sequence, prompt.hashes[found:])
        return found * self.block_size

    def compute(self, owner: Hashable, prompt: Prompt, computed: int) -> None:
        """Caches the full blocks among the first `computed` tokens of a prompt that began in parts."""
        sequence = self._running[owner]
        if sequence.cached:
            self._store(sequence, prompt.hashes[sequence.stored : computed // self.block_size])

    def grow(self, owner: Hashable, count: int) -> None:
        """Assigns `count` more blocks. The caller has checked `free`."""
        self._running[owner].blocks += self.pool.take(count)

    def append(self, owner: Hashable, token_ids: Sequence[int]) -> bool:
        """Adds a step's reply tokens, with room for all but the newest one.

        A block is cached once the token after it exists: the block is then computed to its end. Returns False
        when too few blocks are free. The tokens then have no blocks until a later call, even without tokens,
        finds some, for instance after a preemption (`finish`). Raises KeyError for a sequence without blocks.
        """
        sequence = self._running[owner]
        needed = max(0, self._blocks_of(sequence.tokens + len(token_ids) - 1) - len(sequence.blocks))
        if enough := needed <= self.pool.queue.free:
            sequence.blocks += self.pool.take(needed)
        self.write(owner, token_ids)
        return enough

    def write(self, owner: Hashable, token_ids: Sequence[int]) -> None:
        """Adds reply tokens like `append`, to blocks assigned by `grow`."""
        sequence = self._running[owner]
        sequence.tokens += len(token_ids)
        if sequence.cached:
            sequence.tail += token_ids
            full = (sequence.tokens - 1) // self.block_size
            self._store_computed(sequence, min(full, len(sequence.blocks)))

    def block_numbers(self, owner: Hashable, first: int = 0) -> list[int]:
        """Returns the numbers of a sequence's blocks from index `first` on; empty without blocks."""
        sequence = self._running.get(owner)
        return [] if sequence is None else [block.number for block in sequence.blocks[first:]]

    @property
    def observer(self) -> BlockObserver | None:
        return self.pool.observer

    def observe(self, observer: BlockObserver | None) -> None:
        self.pool.observer = observer

    def blocks(self) -> Iterator[Block]:
        """Yields all blocks used so far; blocks shared by sequences appear more than once."""
        yield from self.pool.queue
        for sequence in self._running.values():
            yield from sequence.blocks

    def finish(self, owner: Hashable) -> None:
        """Releases the blocks of an ended or preempted sequence; cached ones can still be found.

        Does nothing for a sequence without blocks.
        """
        sequence = self._running.pop(owner, None)
        if sequence is not None:
            self.pool.release(sequence.blocks)

    def reset(self) -> bool:
        """Empties the cache; returns False, and changes nothing, while sequences run (reset_prefix_cache)."""
        if self._running:
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Empties the cache, and stops caching for running sequences."""
        for sequence in self._running.values():
            sequence.cached = False
            sequence.tail.clear()
        self.pool.clear(block for sequence in self._running.values() for block in sequence.blocks)
        self.log.cleared()

    def unload_adapter(self, name: str) -> None:
        """Marks an adapter's unused blocks for eviction before others, until `load_adapter`. O(blocks)."""
        self.pool.queue.unload(name)

    def load_adapter(self, name: str) -> None:
        """Treats an adapter's unused blocks like others again. O(blocks)."""
        self.pool.queue.load(name)

    def take_events(self) -> list[KVEvent]:
        """Returns and clears the events since the last call, in order, to be published as one step."""
        return self.log.take()

    def check_integrity(self) -> None:
        """Raises RuntimeError unless blocks and sequences are consistent. For tests: O(blocks)."""
        self.pool.check_integrity(sequence.blocks for sequence in self._running.values())
        for owner, sequence in self._running.items():
            stored = sequence.blocks[: sequence.stored]
            if sequence.cached and any(block.hash is None for block in stored):
                raise RuntimeError(f"a stored block of request {owner} has no hash")
            if any(block.hash is not None for block in sequence.blocks[sequence.stored :]):
                raise RuntimeError(f"a block of request {owner} has a hash before it is full")

    def hits(self, prompt: Prompt) -> list[Block]:
        """Returns the cached blocks of a prompt, never the last token's block."""
        if not prompt.looks_up:
            return []
        # The last token must be computed: its output is the first new token.
        most = (len(prompt.token_ids) - 1) // self.block_size
        return self.pool.longest_prefix(prompt.hashes[:most])

    def created(self, prompt: Prompt, found: int) -> int:
        """Returns how many tokens of whole blocks a prompt adds to the cache, given `found` cached tokens."""
        if not prompt.cached:
            return 0
        return len(prompt.token_ids) // self.block_size * self.block_size - found

    def fits(self, prompt: Prompt, hits: list[Block]) -> bool:
        """Returns whether all blocks of a prompt fit now, `hits` being its cached ones."""
        used_again = sum([block.references == 0 for block in hits]) if hits else 0
        needed = self._blocks_of(len(prompt.token_ids)) - len(hits)
        return needed + used_again <= self.pool.queue.free

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _store_computed(self, sequence: Allocation, full: int) -> None:
        """Caches the computed blocks up to `full` that are not cached yet."""
        if full > sequence.stored:
            ids = sequence.tail[: (full - sequence.stored) * self.block_size]
            extras = sequence.keys.hashed(sequence.stored, full)
            self._store(sequence, self._hasher.chain.hashes(sequence.last_hash, ids, extras))

    def _store(self, sequence: Allocation, hashes: list[bytes]) -> None:
        if not hashes:
            return
        first, adapter = sequence.stored, sequence.adapter
        name = adapter.name if adapter else None
        for block, block_hash in zip(sequence.blocks[first:], hashes, strict=False):
            self.pool.cache(block, block_hash, name)
        parent = sequence.last_hash if first else None
        self.log.stored(hashes, parent, sequence.tail, first, sequence.keys, adapter)
        sequence.stored += len(hashes)
        sequence.last_hash = hashes[-1]
        del sequence.tail[: len(hashes) * self.block_size]
