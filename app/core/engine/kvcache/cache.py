"""KV cache of one engine: the blocks of each sequence, and cached prefixes of prompts.

Behaves as vLLM 0.32 with one full-attention group. Only full blocks are cached; a block computed
twice is cached twice. The last token of a prompt is always computed. Start with `KVCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from app.core.base import Bounded
from app.core.base.clock.pause import pause_if_possible
from app.core.engine.kvcache.block_pool import BlockPool
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.core.engine.kvcache.hashing import (
    BlockHasher,
    ExtraKeys,
    Placeholder,
    Prompt,
    low64,
)
from app.core.engine.kvcache.stores import ConnectorStore

if TYPE_CHECKING:
    from app.core.base.clock.clock import Clock
    from app.core.base.clock.timer_wheel import TimerWheel
    from app.core.base.metrics.recorder import Recorder
    from app.core.engine.batch import SequenceState
    from app.core.engine.lora import Adapter
    from app.core.engine.request import EngineRequest
    from app.core.engine.scheduling_policy import SchedulingPolicy

GROUP = 0
MEDIUM = "GPU"
SPEC_KIND = "full_attention"
"""Values in every event, passed explicitly because default factories cost a call each."""

NO_KEYS = ExtraKeys(1)
"""Keys of prompts without adapter, salt and media, whatever the block size."""

EventHashes: TypeAlias = Literal["int", "bytes"] | None
"""Form of the hashes in events; None: the cache records no events."""
Publish: TypeAlias = Callable[[Sequence[KVEvent]], None]
"""Receives the events of a step."""


class KVCache:
    """KV cache of `num_blocks` blocks, including vLLM's null block; the scheduler's `Blocks`.

    Not thread-safe; greenlets may share the cache, since only `make_prompt` yields. With `caching`
    off nothing is cached and prompts have no hits; `caching` may be switched while sequences run. A
    sequence in steps gets its blocks by `begin` and `grow`; one that runs alone by `begin` and
    `append`.
    """

    tags_hash_keys = True
    """See `SchedulerRules`."""
    policies: Sequence[SchedulingPolicy[Any]] = ()

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        *,
        caching: bool = True,
        event_hashes: EventHashes = "int",
        store: ConnectorStore | None = None,
    ) -> None:
        """A connector's `store` has prompts besides the blocks."""
        self.caching = caching
        self.store = store
        self.block_size = hasher.block_size
        self.pending: list[KVEvent] = []
        """Events that are not published yet, in order."""
        self._has_events = event_hashes is not None
        self._has_int_hashes = event_hashes == "int"
        self.pool = BlockPool(num_blocks, self._note_evicted)
        self.num_blocks = num_blocks
        self.capacity = self.pool.capacity
        self.running: dict[CachedSequence, None] = {}
        """Sequences that have blocks, in order of admission."""
        self._hasher = hasher

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """All bounded memory, by a name for reports."""
        caches: dict[str, Bounded] = {
            "KV cache blocks": self.pool,
            "block hashes": self._hasher.memo,
        }
        if self.store is not None:
            caches["connector"] = self.store.memo
        return caches

    @property
    def free(self) -> int:
        """Number of blocks that no sequence uses, including cached ones."""
        return self.pool.free

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a sequence."""
        return self.capacity * self.block_size

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
            inside = [
                placeholder
                for placeholder in placeholders
                if placeholder.offset >= 0 and placeholder.offset + placeholder.length <= end
            ]
            keys = ExtraKeys(
                self.block_size,
                adapter,
                salt=salt,
                placeholders=inside,
                tags=self.tags_hash_keys,
                prompt_tokens=end,
            )
        hashes: list[bytes] | None = None
        if self.caching:
            hashes = []
            extras = None if keys is NO_KEYS else keys.hashed(0, len(token_ids) // self.block_size)
            for part in self._hasher.parts(token_ids, extras):
                if hashes:
                    pause_if_possible()
                hashes += part
        return Prompt(token_ids, keys, adapter, reads, hashes=hashes)

    # The scheduler's `Blocks`.

    def find(self, sequence: CachedSequence, tokens: int) -> int:
        """Notes the cached blocks in the sequence; never the last token's block."""
        prompt = sequence.prompt
        size = self.block_size
        written = tokens - sequence.prompt_tokens
        sequence.reply_tokens = written
        if len(prompt.token_ids) != tokens:  # preempted after it wrote tokens
            ids = [*prompt.token_ids[: sequence.prompt_tokens], *sequence.reply_ids(0, written)]
            hashes: list[bytes] | None = None
            if self.caching:
                hashes = self._hasher.hashes(ids, prompt.keys.hashed(0, tokens // size))
            prompt = Prompt(ids, prompt.keys, prompt.adapter, prompt.reads, hashes=hashes)
            sequence.prompt = prompt
        sequence.hits = []
        sequence.loaded = 0
        if prompt.reads:
            if prompt.hashes:
                sequence.hits = self.pool.longest_prefix(prompt.hashes[: (tokens - 1) // size])
            if self.store is not None and not sequence.remote:
                sequence.loaded = self.store.find(prompt, len(sequence.hits) * size)
        return len(sequence.hits)

    def fits(self, sequence: CachedSequence, tokens: int, cached: int, spare: int = 0) -> bool:
        """Returns whether all blocks fit now, besides `spare`; `cached` is the result of `find`."""
        unused = sum([block.references == 0 for block in sequence.hits]) if cached else 0
        return -(-tokens // self.block_size) - cached + unused + spare <= self.pool.free

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """Assigns the `cached` blocks, which `find` has just noted, and `count` new ones."""
        hits = sequence.hits
        prompt = sequence.prompt
        size = self.block_size
        assert not sequence.blocks
        if hits:
            self.pool.use(hits)
        sequence.hits = []
        sequence.blocks = hits + self.pool.take(count)
        sequence.caches = prompt.hashes is not None
        sequence.cached_blocks = cached
        sequence.last_hash = self._hasher.none_hash
        if prompt.hashes and cached:
            sequence.last_hash = prompt.hashes[cached - 1]
        self.running[sequence] = None
        if not sequence.preemptions:
            # As in vLLM, the usage shows the hits of the first admission alone.
            sequence.cached_tokens = cached * size
            if sequence.caches:
                whole_tokens = len(prompt.token_ids) // size * size
                sequence.created_tokens = max(0, whole_tokens - cached * size - sequence.loaded)

    def lacks(self, sequence: SequenceState, tokens: int) -> bool:
        """Returns whether too few blocks are free for the first `tokens` tokens."""
        return -(-tokens // self.block_size) - sequence.held > self.free

    def grow(self, sequence: CachedSequence, count: int) -> None:
        """Assigns `count` more blocks."""
        sequence.blocks += self.pool.take(count)

    def filled(self, sequence: CachedSequence) -> None:
        """Caches the full blocks among the first `computed` tokens of the prompt."""
        first = sequence.cached_blocks
        full = sequence.computed // self.block_size
        hashes = sequence.prompt.hashes
        if full > first and sequence.caches and hashes is not None:
            self._store(sequence, hashes[first:full])

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        """Frees the blocks of a sequence; cached ones can be found until they are evicted."""
        if sequence in self.running:
            del self.running[sequence]
            self.pool.release(sequence.blocks)
            sequence.blocks = []

    def release_late(self, sequence: CachedSequence, held: int) -> None:
        """See `Blocks`."""
        self.release(sequence, held)

    def forget(self, sequence: CachedSequence) -> None:
        """Does nothing: cached blocks are found by hash."""

    # The reply.

    def append(self, sequence: CachedSequence, count: int) -> bool:
        """Adds `count` reply tokens.

        Returns False when no block is free; a later call may find one.
        """
        tokens = sequence.prompt_tokens + sequence.reply_tokens + count - 1
        needed = -(-tokens // self.block_size) - len(sequence.blocks)
        has_room = needed <= self.pool.free
        if has_room and needed > 0:
            sequence.blocks += self.pool.take(needed)
        sequence.reply_tokens += count
        self.cache_reply(sequence, tokens)
        return has_room

    def cache_reply(self, sequence: CachedSequence, tokens: int) -> None:
        """Caches the full blocks among the first `tokens` of prompt and reply."""
        first = sequence.cached_blocks
        size = self.block_size
        full = tokens // size
        if full > first and sequence.caches:
            full = min(full, len(sequence.blocks))
            if full > first:
                extras = sequence.prompt.keys.hashed(first, full)
                ids = self._token_ids(sequence, first * size, full * size)
                self._store(sequence, self._hasher.hashes(ids, extras, sequence.last_hash))

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """Caches the next blocks of a sequence under `hashes`, and records the event."""
        first = sequence.cached_blocks
        last = first + len(hashes)
        for block, block_hash in zip(sequence.blocks[first:last], hashes, strict=True):
            self.pool.cache(block, block_hash)
        if self._has_events:
            self.pending.append(self._stored(sequence, hashes))
        sequence.cached_blocks = last
        sequence.last_hash = hashes[-1]

    def _stored(self, sequence: CachedSequence, hashes: list[bytes]) -> BlockStored:
        """Returns the event of the next blocks of a sequence, before they are counted."""
        first = sequence.cached_blocks
        last = first + len(hashes)
        size = self.block_size
        prompt = sequence.prompt
        adapter = prompt.adapter
        return BlockStored(
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

    def _token_ids(self, sequence: CachedSequence, start: int, stop: int) -> list[int]:
        """Returns the ids of tokens `start` to `stop` (exclusive) of prompt and reply."""
        prompt_ids = sequence.prompt.token_ids
        if stop <= len(prompt_ids):
            return list(prompt_ids[start:stop])
        reply_start = sequence.prompt_tokens
        reply_ids = sequence.reply_ids(
            max(start, len(prompt_ids)) - reply_start, stop - reply_start
        )
        return [*prompt_ids[start:], *reply_ids]

    # For operators.

    def reset(self, under_requests: bool = False, external: bool = False) -> bool:
        """Empties the cache, and stops caching for running sequences.

        Returns False without emptying while sequences run, unless `under_requests`. `external`
        empties tiers outside of the devices in any case.
        """
        if self.running and not under_requests:
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Empties the cache, but no tiers outside of the devices; see `reset`."""
        for sequence in self.running:
            sequence.caches = False
        self.pool.clear(block for sequence in self.running for block in sequence.blocks)
        if self._has_events:
            self.pending.append(AllBlocksCleared())

    def take_events(self) -> list[KVEvent]:
        """Returns and clears the events since the last call, in order.

        They are published as one step.
        """
        events = self.pending
        self.pending = []
        return events

    def _note_evicted(self, hashes: Sequence[bytes]) -> None:
        if self._has_events:  # one event per block, as in vLLM
            self.pending += [BlockRemoved([name], MEDIUM, GROUP) for name in self._wire(hashes)]

    def _wire(self, hashes: Sequence[bytes]) -> list[BlockHash]:
        """Returns hashes as events carry them."""
        if self._has_int_hashes:
            return list(map(low64, hashes))
        return list(hashes)


class KVCacheManager(KVCache):
    """The KV cache of a simulated engine: counts lookups, and publishes events step by step.

    A sequence on its own timeline takes all prompt blocks at once (`allocate`).
    """

    counts_lookups = True
    """False if blocks are never found on the devices."""

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        recorder: Recorder,
        *,
        adapter_of: Callable[[str], Adapter],
        publish: Publish | None = None,
        store: ConnectorStore | None = None,
    ) -> None:
        """`adapter_of` returns an adapter by name; `publish` receives a step's events."""
        super().__init__(
            num_blocks, hasher, event_hashes=None if publish is None else "int", store=store
        )
        self._recorder = recorder
        self._adapter_of = adapter_of
        self._publish = publish
        self.caches_drafts = True
        """A block that right drafts fill is cached at once, not by the next step."""
        self._steps: list[list[KVEvent]] = []
        """Events of each prefill that await publishing."""

    def attach(self, clock: Clock, wheel: TimerWheel) -> None:
        """Receives the clock of the engine, for caches that need the time."""

    def prompts(self, requests: Sequence[EngineRequest]) -> list[Prompt]:
        """Returns the prompts of requests in order of index, with pauses."""
        prompts: list[Prompt] = []
        for request in requests:
            if prompts and request.index % request.n:
                prompts.append(prompts[-1])
                continue
            prompt = self.make_prompt(
                request.prompt_ids,
                adapter=None if request.adapter is None else self._adapter_of(request.adapter),
                salt=request.cache_salt,
                placeholders=[Placeholder(*place) for place in request.media],
                # Prompt log probabilities require computing the whole prompt, as in vLLM.
                reads=request.sampling.prompt_logprobs is None,
            )
            prompts.append(prompt)
        return prompts

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """Counts the first lookup of a prompt, too.

        A remote prefill transfers the tokens that the cache lacks.
        """
        super().begin(sequence, cached, count)
        prompt = sequence.prompt
        if sequence.preemptions:
            return
        recorder = self._recorder
        cached_tokens = sequence.cached_tokens
        if self.counts_lookups and prompt.hashes is not None and prompt.reads:
            recorder.looked_up(sequence.prompt_tokens, cached_tokens)
        if sequence.remote:
            sequence.fetched_tokens -= cached_tokens
            sequence.created_tokens = 0
            return
        if self.store is not None:
            recorder.looked_up_in_store(
                sequence.prompt_tokens - cached_tokens, sequence.loaded, self.store.tier
            )
            self.store.keep(prompt)
        sequence.fetched_tokens = sequence.loaded

    def allocate(self, sequence: CachedSequence) -> None:
        """Takes the blocks of the prompt, which fits. Its events are one step."""
        tokens = sequence.prompt_tokens
        sequence.computed = tokens
        cached = self.find(sequence, tokens)
        self.begin(sequence, cached, -(-tokens // self.block_size) - cached)
        self.filled(sequence)
        if self.pending:
            self._steps.append(self.take_events())

    def step_over(self, due: Sequence[tuple[CachedSequence, int]]) -> None:
        """Adds the reply tokens of a step, by sequence, and publishes its events."""
        size = self.block_size
        for sequence, count in due:
            sequence.reply_tokens += count
            tokens = sequence.prompt_tokens + sequence.reply_tokens - 1
            if tokens // size > sequence.cached_blocks:
                if not self.caches_drafts:
                    tokens -= count - 1
                self.cache_reply(sequence, tokens)
        if self.pending or self._steps:
            self.publish()

    def publish(self) -> None:
        """Publishes all recorded events, step by step."""
        if self.pending:
            self._steps.append(self.take_events())
        if self._steps:
            steps = self._steps
            self._steps = []
            if self._publish is not None:
                for events in steps:
                    self._publish(events)
