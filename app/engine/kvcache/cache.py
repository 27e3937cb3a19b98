"""KV cache of one engine: the blocks of each sequence, cached prefixes of prompts, and connectors' stores.

Behaves as vLLM 0.32 with one full-attention group. Only full blocks are cached; a block computed twice is
cached twice. The last token of a prompt is always computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from app.base.clock.pause import pause_if_possible
from app.engine.core.batch import SequenceState
from app.engine.kvcache.block_pool import Block, BlockObserver, BlockPool
from app.engine.kvcache.events import EventLog, KVEvent
from app.engine.kvcache.hashing import BlockHasher
from app.engine.kvcache.memo import Bounded, Memo
from app.engine.kvcache.prompt import NO_KEYS, Adapter, ExtraKeys, Placeholder, Prompt

LIMIT_BYTES = 32 << 20
DIGEST_BYTES = 16


class ConnectorStore:
    """vLLM's OffloadingConnector: keeps the keys of prompt blocks by hash, also of evicted ones."""

    tier = "host"
    """Name of the store in metrics."""

    def __init__(self, block_size: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.block_size = block_size
        self.memo: Memo[bytes, bool] = Memo(limit_bytes)

    def find(self, prompt: Prompt, cached: int) -> int:
        """Returns the number of stored prompt tokens after the first `cached` ones, without the last one."""
        first, last = cached // self.block_size, (len(prompt.token_ids) - 1) // self.block_size
        found = 0
        for key in (prompt.hashes or ())[first:last]:
            if self.memo.get(key) is None:
                break
            found += self.block_size
        return found

    def keep(self, prompt: Prompt) -> None:
        for key in prompt.hashes or ():
            if self.memo.get(key) is None:
                self.memo.put(key, True, len(key))


class PromptStore(ConnectorStore):
    """vLLM's ExampleConnector: finds only prompts whose whole blocks equal those of an earlier one."""

    tier = "external_unspecified"

    def _key(self, prompt: Prompt, tokens: int) -> tuple[int, bytes]:
        """Returns the number of tokens in whole blocks, the last of `tokens` excepted, and their digest."""
        tokens = max(0, (tokens - 1) // self.block_size * self.block_size)
        packed = array("q", prompt.token_ids[:tokens]).tobytes()
        return tokens, blake2b(packed, digest_size=DIGEST_BYTES).digest()

    def find(self, prompt: Prompt, cached: int) -> int:
        """See `ConnectorStore`. The block of the last two tokens is never looked up, as in vLLM."""
        tokens, key = self._key(prompt, len(prompt.token_ids) - 1)
        return 0 if tokens <= cached or self.memo.get(key) is None else tokens - cached

    def keep(self, prompt: Prompt) -> None:
        _, key = self._key(prompt, len(prompt.token_ids))
        if self.memo.get(key) is None:
            self.memo.put(key, True, DIGEST_BYTES)


def store_of(connector: str, block_size: int) -> ConnectorStore | None:
    if connector == "example":
        return PromptStore(block_size)
    if connector in ("nixl", "offloading"):
        return ConnectorStore(block_size, LIMIT_BYTES if connector == "offloading" else 0)
    return None


class CachedSequence(SequenceState):
    """The KV cache's state of one sequence, whose `prompt` may be None where no cache is used."""

    __slots__ = (
        *("blocks", "cached_blocks", "cached_tokens", "caches", "created_tokens", "fetched_tokens"),
        *("handed", "hits", "last_hash", "prompt"),
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, remote: bool = False
    ) -> None:
        super().__init__(prompt_tokens, output_tokens, priority, remote)
        self.prompt: Prompt | None = None
        """The prompt; after a preemption with the reply tokens written before."""
        self.hits: list[Block] = []
        """Cached blocks found for the prompt, until `begin` takes them."""
        self.blocks: list[Block] = []
        self.cached_blocks = 0
        """Number of blocks, from the first on, that are cached or were found; the last under `last_hash`."""
        self.last_hash = b""
        self.caches = False
        """True while full blocks of the sequence are cached."""
        self.handed = 0
        """Reply tokens whose steps are over. The newest is not computed yet and has no place."""
        self.cached_tokens = 0
        """Prompt tokens found in the cache at the first admission."""
        self.fetched_tokens = 0
        """Prompt tokens fetched from another engine or from a connector's store."""
        self.created_tokens = 0
        """Prompt tokens that this sequence added to the cache."""

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        """Returns the ids of reply tokens `start` to `stop` (exclusive)."""
        raise NotImplementedError

    def block_numbers(self, first: int = 0) -> list[int]:
        return [block.number for block in self.blocks[first:]]


class KVCache:
    """KV cache of `num_blocks` blocks, including vLLM's null block; the scheduler's `Blocks`.

    Not thread-safe; greenlets may share the cache, since only `make_prompt` yields. With `caching` off
    nothing is cached and prompts have no hits; `caching` may be switched while sequences run. A sequence in
    steps gets its blocks by `begin` and `grow`; one that runs alone by `begin` and `append`.
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
        store: ConnectorStore | None = None,
    ) -> None:
        """Without `events`, `log` stays empty; without `int_hashes`, events carry hashes as bytes."""
        self.caching = caching
        self.store = store
        self.block_size = hasher.chain.block_size
        self.log = EventLog(events, int_hashes, self.block_size)
        self.pool = BlockPool(num_blocks, self.log.removed, observer)
        self.capacity = self.pool.capacity
        self.running: dict[CachedSequence, None] = {}
        self._hasher = hasher

    @property
    def caches(self) -> Mapping[str, Bounded]:
        stored = {} if self.store is None else {"connector": self.store.memo}
        return {"KV cache blocks": self.pool, "block hashes": self._hasher.chain.memo, **stored}

    @property
    def free(self) -> int:
        return self.pool.free

    def make_prompt(
        self,
        token_ids: Sequence[int],
        adapter: Adapter | None = None,
        salt: str | None = None,
        placeholders: Sequence[Placeholder] = (),
        reads: bool = True,
    ) -> Prompt:
        """Hashes a prompt's blocks, with pauses. Ignores placeholders outside the prompt."""
        keys = NO_KEYS
        if adapter is not None or salt or placeholders:
            end = len(token_ids)
            inside = [it for it in placeholders if it.offset >= 0 and it.offset + it.length <= end]
            keys = ExtraKeys(self.block_size, adapter, salt, inside)
        hashes: list[bytes] | None = None
        if self.caching:
            hashes = []
            extras = keys.hashed(0, len(token_ids) // self.block_size)
            for part in self._hasher.chain.parts(self._hasher.none_hash, token_ids, extras):
                if hashes:
                    pause_if_possible()
                hashes += part
        return Prompt(token_ids, keys, adapter, reads, hashes)

    # The scheduler's `Blocks`.

    def find(self, sequence: CachedSequence, tokens: int) -> int:
        """Notes the cached blocks in the sequence; never the last token's block, which must be computed."""
        prompt, size = sequence.prompt, self.block_size
        assert prompt is not None
        sequence.handed = written = tokens - sequence.prompt_tokens
        if len(prompt.token_ids) != tokens:  # preempted after it wrote tokens
            first_ids = prompt.token_ids[: sequence.prompt_tokens]
            ids = [*first_ids, *sequence.reply_ids(0, written)]
            extras = prompt.keys.hashed(0, tokens // size)
            hashes = self._hasher.hashes(ids, extras) if self.caching else None
            sequence.prompt = prompt = Prompt(ids, prompt.keys, prompt.adapter, prompt.reads, hashes)
        sequence.hits, sequence.loaded = [], 0
        if prompt.reads:
            if prompt.hashes:
                sequence.hits = self.pool.longest_prefix(prompt.hashes[: (tokens - 1) // size])
            if self.store is not None and not sequence.preemptions and not sequence.remote:
                sequence.loaded = self.store.find(prompt, len(sequence.hits) * size)
        return len(sequence.hits)

    def fits(self, sequence: CachedSequence, tokens: int, found: int) -> bool:
        unused = sum([block.references == 0 for block in sequence.hits]) if found else 0
        return -(-tokens // self.block_size) - found + unused <= self.pool.free

    def begin(self, sequence: CachedSequence, found: int, count: int) -> None:
        """Assigns the `found` blocks, which `find` has just noted, and `count` new ones."""
        hits, prompt, size = sequence.hits, sequence.prompt, self.block_size
        assert prompt is not None and not sequence.blocks
        if hits:
            self.pool.use(hits)
        sequence.hits, sequence.blocks = [], hits + self.pool.take(count)
        sequence.caches = prompt.hashes is not None
        sequence.cached_blocks = found
        sequence.last_hash = prompt.hashes[found - 1] if prompt.hashes and found else self._hasher.none_hash
        self.running[sequence] = None
        if not sequence.preemptions:
            sequence.cached_tokens = found * size
            if sequence.caches:
                whole = len(prompt.token_ids) // size * size
                sequence.created_tokens = whole - found * size - sequence.loaded

    def grow(self, sequence: CachedSequence, count: int) -> None:
        sequence.blocks += self.pool.take(count)

    def filled(self, sequence: CachedSequence) -> None:
        """Caches the full blocks among the first `computed` tokens of the prompt."""
        first, full = sequence.cached_blocks, sequence.computed // self.block_size
        if full > first and sequence.caches:
            assert sequence.prompt is not None and sequence.prompt.hashes is not None
            self._store(sequence, sequence.prompt.hashes[first:full])

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        if sequence in self.running:
            del self.running[sequence]
            self.pool.release(sequence.blocks)
            sequence.blocks = []

    def forget(self, sequence: CachedSequence) -> None:
        """Does nothing: cached blocks are found by hash."""

    # The reply.

    def append(self, sequence: CachedSequence, count: int) -> bool:
        """Adds `count` reply tokens; returns False when no block is free, until a later call finds some."""
        tokens = sequence.prompt_tokens + sequence.handed + count - 1
        needed = -(-tokens // self.block_size) - len(sequence.blocks)
        if needed > self.pool.free:
            self.extend(sequence, count)
            return False
        if needed > 0:
            sequence.blocks += self.pool.take(needed)
        self.extend(sequence, count)
        return True

    def extend(self, sequence: CachedSequence, count: int) -> None:
        """Adds reply tokens to assigned blocks; a block is cached once the token after it exists."""
        sequence.handed += count
        first, size = sequence.cached_blocks, self.block_size
        full = (sequence.prompt_tokens + sequence.handed - 1) // size
        if full > first and sequence.caches:
            full = min(full, len(sequence.blocks))
            if full > first:
                assert sequence.prompt is not None
                extras = sequence.prompt.keys.hashed(first, full)
                ids = self._token_ids(sequence, first * size, full * size)
                self._store(sequence, self._hasher.chain.hashes(sequence.last_hash, ids, extras))

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """Caches the next full blocks of a sequence."""
        first, size, prompt = sequence.cached_blocks, self.block_size, sequence.prompt
        assert prompt is not None
        last = first + len(hashes)
        for block, block_hash in zip(sequence.blocks[first:last], hashes, strict=True):
            self.pool.cache(block, block_hash)
        if self.log.wanted:
            parent = sequence.last_hash if first else None
            ids = self._token_ids(sequence, first * size, last * size)
            self.log.stored(prompt, hashes, parent, ids, first)
        sequence.cached_blocks, sequence.last_hash = last, hashes[-1]

    def _token_ids(self, sequence: CachedSequence, start: int, stop: int) -> list[int]:
        """Returns the ids of tokens `start` to `stop` (exclusive) of prompt and reply."""
        assert sequence.prompt is not None
        known, before = sequence.prompt.token_ids, sequence.prompt_tokens
        if stop <= len(known):
            return list(known[start:stop])
        return [*known[start:], *sequence.reply_ids(max(start, len(known)) - before, stop - before)]

    # For operators.

    def reset(self, under_requests: bool = False) -> bool:
        """Empties the cache; returns False without emptying while sequences run, unless `under_requests`."""
        if self.running and not under_requests:
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Empties the cache, and stops caching for running sequences."""
        for sequence in self.running:
            sequence.caches = False
        self.pool.clear(block for sequence in self.running for block in sequence.blocks)
        self.log.cleared()

    def take_events(self) -> list[KVEvent]:
        """Returns and clears the events since the last call, in order, to be published as one step."""
        return self.log.take()
