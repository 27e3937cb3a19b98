"""KV cache of one engine: the blocks of each sequence, cached prefixes of prompts, and connectors'
stores.

Behaves as vLLM 0.32 with one full-attention group. Only full blocks are cached; a block computed
twice is cached twice. The last token of a prompt is always computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from app.base import Bounded
from app.base.clock.pause import pause_if_possible
from app.engine.core.batch import SequenceState
from app.engine.core.errors import PromptExceedsCache
from app.engine.kvcache.block_pool import BlockObserver, BlockPool
from app.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.engine.kvcache.hashing import (
    NO_KEYS,
    Adapter,
    BlockHasher,
    ExtraKeys,
    Placeholder,
    Prompt,
    low64,
)
from app.engine.kvcache.memo import Memo

if TYPE_CHECKING:
    from app.base.metrics.recorder import Recorder
    from app.engine.core.request import EngineRequest

LIMIT_BYTES = 32 << 20
DIGEST_BYTES = 16
GROUP, MEDIUM, SPEC_KIND = 0, "GPU", "full_attention"
"""Values in every event, passed explicitly because default factories cost a call each."""


class ConnectorStore:
    """vLLM's OffloadingConnector: keeps the keys of prompt blocks by hash, also of evicted ones."""

    tier = "host"
    """Name of the store in metrics."""

    def __init__(self, block_size: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.block_size = block_size
        self.memo: Memo[bytes, bool] = Memo(limit_bytes)

    def find(self, prompt: Prompt, cached: int) -> int:
        """Returns the number of stored prompt tokens after the first `cached` ones, without the
        last one.
        """
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
    """vLLM's ExampleConnector:

    finds only prompts whose whole blocks equal those of an earlier one.
    """

    tier = "external_unspecified"

    def _key(self, prompt: Prompt, tokens: int) -> tuple[int, bytes]:
        """Returns the number of tokens in whole blocks, the last of `tokens` excepted, and their
        digest.
        """
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


class KVCache:
    """KV cache of `num_blocks` blocks, including vLLM's null block; the scheduler's `Blocks`.

    Not thread-safe; greenlets may share the cache, since only `make_prompt` yields. With `caching`
    off nothing is cached and prompts have no hits; `caching` may be switched while sequences run. A
    sequence in steps gets its blocks by `begin` and `grow`; one that runs alone by `begin` and
    `append`.
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
        """Without `events`, `pending` stays empty; without `int_hashes`, events carry hashes as
        bytes.
        """
        self.caching = caching
        self.store = store
        self.block_size = hasher.block_size
        self.pending: list[KVEvent] = []
        """Events that are not published yet, in order."""
        self._has_events, self._int_hashes = events, int_hashes
        self.pool = BlockPool(num_blocks, self._note_evicted, observer)
        self.capacity = self.pool.capacity
        self.running: dict[SequenceState, None] = {}
        self._hasher = hasher

    @property
    def caches(self) -> Mapping[str, Bounded]:
        stored = {} if self.store is None else {"connector": self.store.memo}
        return {"KV cache blocks": self.pool, "block hashes": self._hasher.memo, **stored}

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
            extras = None if keys is NO_KEYS else keys.hashed(0, len(token_ids) // self.block_size)
            for part in self._hasher.parts(token_ids, extras):
                if hashes:
                    pause_if_possible()
                hashes += part
        return Prompt(token_ids, keys, adapter, reads, hashes)

    # The scheduler's `Blocks`.

    def find(self, sequence: SequenceState, tokens: int) -> int:
        """Notes the cached blocks in the sequence; never the last token's block, which must be
        computed.
        """
        prompt, size = sequence.prompt, self.block_size
        assert prompt is not None
        sequence.handed = written = tokens - sequence.prompt_tokens
        if len(prompt.token_ids) != tokens:  # preempted after it wrote tokens
            first_ids = prompt.token_ids[: sequence.prompt_tokens]
            ids = [*first_ids, *sequence.reply_ids(0, written)]
            extras = prompt.keys.hashed(0, tokens // size)
            hashes = self._hasher.hashes(ids, extras) if self.caching else None
            sequence.prompt = prompt = Prompt(
                ids, prompt.keys, prompt.adapter, prompt.reads, hashes
            )
        sequence.hits, sequence.loaded = [], 0
        if prompt.reads:
            if prompt.hashes:
                sequence.hits = self.pool.longest_prefix(prompt.hashes[: (tokens - 1) // size])
            if self.store is not None and not sequence.preemptions and not sequence.remote:
                sequence.loaded = self.store.find(prompt, len(sequence.hits) * size)
        return len(sequence.hits)

    def fits(self, sequence: SequenceState, tokens: int, found: int) -> bool:
        unused = sum([block.references == 0 for block in sequence.hits]) if found else 0
        return -(-tokens // self.block_size) - found + unused <= self.pool.free

    def begin(self, sequence: SequenceState, found: int, count: int) -> None:
        """Assigns the `found` blocks, which `find` has just noted, and `count` new ones."""
        hits, prompt, size = sequence.hits, sequence.prompt, self.block_size
        assert prompt is not None and not sequence.blocks
        if hits:
            self.pool.use(hits)
        sequence.hits, sequence.blocks = [], hits + self.pool.take(count)
        sequence.caches = prompt.hashes is not None
        sequence.cached_blocks = found
        sequence.last_hash = (
            prompt.hashes[found - 1] if prompt.hashes and found else self._hasher.none_hash
        )
        self.running[sequence] = None
        if not sequence.preemptions:
            sequence.cached_tokens = found * size
            if sequence.caches:
                whole = len(prompt.token_ids) // size * size
                sequence.created_tokens = whole - found * size - sequence.loaded

    def grow(self, sequence: SequenceState, count: int) -> None:
        sequence.blocks += self.pool.take(count)

    def filled(self, sequence: SequenceState) -> None:
        """Caches the full blocks among the first `computed` tokens of the prompt."""
        first, full = sequence.cached_blocks, sequence.computed // self.block_size
        if full > first and sequence.caches:
            assert sequence.prompt is not None and sequence.prompt.hashes is not None
            self._store(sequence, sequence.prompt.hashes[first:full])

    def release(self, sequence: SequenceState, held: int = 0, findable: int = 0) -> None:
        if sequence in self.running:
            del self.running[sequence]
            self.pool.release(sequence.blocks)
            sequence.blocks = []

    def forget(self, sequence: SequenceState) -> None:
        """Does nothing: cached blocks are found by hash."""

    # The reply.

    def append(self, sequence: SequenceState, count: int) -> bool:
        """Adds `count` reply tokens; returns False when no block is free, until a later call finds
        some.
        """
        tokens = sequence.prompt_tokens + sequence.handed + count - 1
        needed = -(-tokens // self.block_size) - len(sequence.blocks)
        has_room = needed <= self.pool.free
        if has_room and needed > 0:
            sequence.blocks += self.pool.take(needed)
        sequence.handed += count
        self.cache_reply(sequence)
        return has_room

    def cache_reply(self, sequence: SequenceState) -> None:
        """Caches full blocks of the reply; a block is full once the token after it exists."""
        first, size = sequence.cached_blocks, self.block_size
        full = (sequence.prompt_tokens + sequence.handed - 1) // size
        if full > first and sequence.caches:
            full = min(full, len(sequence.blocks))
            if full > first:
                assert sequence.prompt is not None
                extras = sequence.prompt.keys.hashed(first, full)
                ids = self._token_ids(sequence, first * size, full * size)
                self._store(sequence, self._hasher.hashes(ids, extras, sequence.last_hash))

    def _store(self, sequence: SequenceState, hashes: list[bytes]) -> None:
        first, size, prompt = sequence.cached_blocks, self.block_size, sequence.prompt
        assert prompt is not None
        last = first + len(hashes)
        for block, block_hash in zip(sequence.blocks[first:last], hashes, strict=True):
            self.pool.cache(block, block_hash)
        if self._has_events:
            adapter = prompt.adapter
            stored = BlockStored(
                block_hashes=self._wire(hashes),
                parent_block_hash=self._wire([sequence.last_hash])[0] if first else None,
                token_ids=self._token_ids(sequence, first * size, last * size),
                block_size=size,
                lora_id=adapter.id if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
                extra_keys=prompt.keys.published(first, last),
                group_idx=GROUP,
                kv_cache_spec_kind=SPEC_KIND,
            )
            self.pending.append(stored)
        sequence.cached_blocks, sequence.last_hash = last, hashes[-1]

    def _token_ids(self, sequence: SequenceState, start: int, stop: int) -> list[int]:
        assert sequence.prompt is not None
        known, before = sequence.prompt.token_ids, sequence.prompt_tokens
        if stop <= len(known):
            return list(known[start:stop])
        return [*known[start:], *sequence.reply_ids(max(start, len(known)) - before, stop - before)]

    # For operators.

    def reset(self, under_requests: bool = False) -> bool:
        """Empties the cache; returns False without emptying while sequences run, unless
        `under_requests`.
        """
        if self.running and not under_requests:
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Empties the cache, and stops caching for running sequences."""
        for sequence in self.running:
            sequence.caches = False
        self.pool.clear(block for sequence in self.running for block in sequence.blocks)
        if self._has_events:
            self.pending.append(AllBlocksCleared())

    def take_events(self) -> list[KVEvent]:
        """Returns and clears the events since the last call, in order, to be published as one step."""
        events, self.pending = self.pending, []
        return events

    def _note_evicted(self, hashes: Sequence[bytes]) -> None:
        if self._has_events:  # one event per block, as in vLLM
            self.pending += [BlockRemoved([name], MEDIUM, GROUP) for name in self._wire(hashes)]

    def _wire(self, hashes: Sequence[bytes]) -> list[BlockHash]:
        return list(map(low64, hashes)) if self._int_hashes else list(hashes)


Publish = Callable[[Sequence[KVEvent]], None]


class KVCacheManager(KVCache):
    """One engine's KV cache.

    Without steps a sequence takes all prompt blocks at once (`allocate`).
    """

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        recorder: Recorder,
        adapter_of: Callable[[str], Adapter],
        publish: Publish | None = None,
        store: ConnectorStore | None = None,
        observer: BlockObserver | None = None,
    ) -> None:
        """`adapter_of` returns an adapter by name; `publish` receives a step's events."""
        super().__init__(
            num_blocks, hasher, events=publish is not None, observer=observer, store=store
        )
        self._recorder, self._adapter_of, self._publish = recorder, adapter_of, publish
        self._steps: list[list[KVEvent]] = []
        """Events of each prefill that await publishing."""

    def prompts(self, requests: Sequence[EngineRequest]) -> list[Prompt]:
        """Returns the prompts of requests in order of index, with pauses.

        Raises PromptExceedsCache.
        """
        prompts: list[Prompt] = []
        for request in requests:
            if prompts and request.index % request.n:
                prompts.append(prompts[-1])
                continue
            tokens, name = len(request.prompt_ids), request.adapter
            if tokens > self.capacity * self.block_size:
                raise PromptExceedsCache(tokens, self.capacity * self.block_size)
            adapter = None if name is None else self._adapter_of(name)
            media = [Placeholder(*item) for item in request.media]
            # Prompt log probabilities require computing the whole prompt, as in vLLM.
            reads = request.prompt_logprobs is None
            prompts.append(
                self.make_prompt(request.prompt_ids, adapter, request.cache_salt, media, reads)
            )
        return prompts

    def begin(self, sequence: SequenceState, found: int, count: int) -> None:
        """Counts the first lookup of a prompt, too.

        A remote prefill transfers what the cache lacks.
        """
        super().begin(sequence, found, count)
        prompt, recorder, cached = sequence.prompt, self._recorder, sequence.cached_tokens
        if sequence.preemptions or prompt is None:
            return
        if prompt.hashes is not None and prompt.reads:
            recorder.looked_up(sequence.prompt_tokens, cached)
        if sequence.remote:
            sequence.fetched_tokens -= cached
            sequence.created_tokens = 0
            return
        if self.store is not None:
            recorder.looked_up_in_store(
                sequence.prompt_tokens - cached, sequence.loaded, self.store.tier
            )
            self.store.keep(prompt)
        sequence.fetched_tokens = sequence.loaded

    def allocate(self, sequence: SequenceState) -> None:
        """Takes the blocks of the prompt, which fits. Its events are one step."""
        tokens = sequence.computed = sequence.prompt_tokens
        found = self.find(sequence, tokens)
        self.begin(sequence, found, -(-tokens // self.block_size) - found)
        self.filled(sequence)
        if self.pending:
            self._steps.append(self.take_events())

    def step_over(self, due: Sequence[tuple[SequenceState, int]]) -> None:
        """Adds the reply tokens of a step, and publishes its events."""
        size = self.block_size
        for sequence, count in due:
            sequence.handed += count
            if (sequence.prompt_tokens + sequence.handed - 1) // size > sequence.cached_blocks:
                self.cache_reply(sequence)
        if self.pending or self._steps:
            self.publish()

    def publish(self) -> None:
        if self.pending:
            self._steps.append(self.take_events())
        if self._steps:
            steps, self._steps = self._steps, []
            for events in steps if self._publish is not None else ():
                self._publish(events)  # type: ignore[misc]
