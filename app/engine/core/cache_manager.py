"""Manages the KV cache for the engine: the blocks of each sequence, and the events published about blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby

from app.base.clock.pause import pause_if_possible
from app.base.metrics.recorder import Recorder
from app.engine.core.batch import SequenceState
from app.engine.core.errors import PromptExceedsCache
from app.engine.core.request import EngineRequest
from app.engine.kvcache.block_pool import Block
from app.engine.kvcache.cache import KVCache
from app.engine.kvcache.events import KVEvent
from app.engine.kvcache.prompt import Adapter, Placeholder, Prompt
from app.engine.kvcache.stores import Store

Publish = Callable[[Sequence[KVEvent]], None]


class CachedSequence(SequenceState):
    """The KV cache's state of one sequence; counts are prompt tokens unless noted."""

    __slots__ = (
        "cached_tokens",
        "created_tokens",
        "fetched_tokens",
        "handed",
        "hits",
        "prompt",
        "request",
        "stored",
    )

    def __init__(self, request: EngineRequest, output_tokens: int, prompt: Prompt | None = None) -> None:
        """Without a `prompt` the sequence uses no cached blocks."""
        super().__init__(len(request.prompt_ids), output_tokens, request.priority, request.remote_prefill)
        self.request = request
        self.prompt = prompt
        self.hits: list[Block] = []
        """Cached blocks found for the prompt, until `begin` takes them."""
        self.cached_tokens = 0
        """Prompt tokens found in the cache."""
        self.fetched_tokens = 0
        """Prompt tokens fetched from another engine or from a connector's store."""
        self.created_tokens = 0
        """Prompt tokens that this sequence added to the cache."""
        self.handed = self.stored = 0
        """Reply tokens whose steps are over, and the number already stored in the cache."""

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        raise NotImplementedError


class KVCacheManager:
    """One engine's KV cache, which also serves the scheduler as its `Blocks`.

    `adapter_of` returns an adapter by name. Without steps a sequence takes all prompt blocks at once
    (`allocate`) and reply blocks one by one (`append`). With steps the scheduler calls `find` to `forget`.
    """

    def __init__(
        self,
        cache: KVCache,
        recorder: Recorder,
        adapter_of: Callable[[str], Adapter],
        publish: Publish | None = None,
        store: Store | None = None,
    ) -> None:
        """`publish` receives a step's events; `store` is the connector's additional block store."""
        self.cache = cache
        self.store = store
        self.recorder = recorder
        self.block_size, self.capacity = cache.block_size, cache.capacity
        self._queue, self._log = cache.pool.queue, cache.log
        self._adapter_of = adapter_of
        self._publish = publish
        self._steps: list[list[KVEvent]] = []
        """Events of each prefill that await publishing."""

    def prompts(self, requests: Sequence[EngineRequest]) -> list[Prompt]:
        """Returns one prompt per request; `requests` are in order of index.

        Hashes each prompt once, and pauses for other work. Raises PromptExceedsCache.
        """
        prompts: list[Prompt] = []
        for _, choices in groupby(requests, key=lambda it: it.index // it.n):
            first = next(choices)
            prompt = self._prompt(first)
            prompts += [prompt for _ in chain((first,), choices)]
        return prompts

    def _prompt(self, request: EngineRequest) -> Prompt:
        tokens = len(request.prompt_ids)
        if not self.cache.fits_ever(tokens):
            raise PromptExceedsCache(tokens, self.capacity * self.block_size)
        name = request.adapter
        adapter = None if name is None else self._adapter_of(name)
        media = [Placeholder(*item) for item in request.media]
        # Prompt log probabilities require computing the whole prompt, as in vLLM.
        reads = request.prompt_logprobs is None
        prompt = self.cache.prompt(request.prompt_ids, adapter, request.cache_salt, media, reads)
        for _ in prompt.hashing():
            pause_if_possible()
        return prompt

    # For sequences on their own timeline.

    def allocate(self, sequence: CachedSequence) -> None:
        """Takes the blocks of the prompt, and notes the found tokens in the sequence."""
        assert sequence.prompt is not None
        found = self.cache.begin(sequence, sequence.prompt) or 0
        self._note(sequence, found, self._load(sequence, found))
        self.begin_prefill()

    def append(self, sequence: CachedSequence, ids: Sequence[int]) -> None:
        """Takes blocks for the tokens of a finished step, and publishes its events."""
        # Without a free block the reply continues anyway: nothing is preempted yet.
        if ids:
            self.cache.append(sequence, ids)
        self.end_step()

    def finish(self, sequence: CachedSequence) -> None:
        """Frees the blocks, and publishes the events."""
        self.cache.finish(sequence)
        self.end_step()

    # The scheduler's `Blocks`.

    @property
    def free(self) -> int:
        return self._queue.free

    def find(self, sequence: CachedSequence, tokens: int) -> int:
        prompt = sequence.prompt
        assert prompt is not None
        sequence.stored = sequence.handed = written = tokens - sequence.prompt_tokens
        if len(prompt.token_ids) != tokens:  # preempted after it wrote tokens
            ids = [*sequence.request.prompt_ids, *sequence.reply_ids(0, written)]
            sequence.prompt = prompt = self.cache.again(prompt, ids)
        sequence.hits = hits = self.cache.hits(prompt)
        sequence.loaded = 0 if sequence.preemptions else self._load(sequence, len(hits) * self.block_size)
        return len(hits)

    def fits(self, sequence: CachedSequence, tokens: int, found: int) -> bool:
        assert sequence.prompt is not None
        return self.cache.fits(sequence.prompt, sequence.hits)

    def begin(self, sequence: CachedSequence, found: int, count: int) -> None:
        assert sequence.prompt is not None
        cached = self.cache.begin(sequence, sequence.prompt, found + count, sequence.hits) or 0
        sequence.hits = []
        if not sequence.preemptions:
            self._note(sequence, cached, sequence.loaded)

    def grow(self, sequence: CachedSequence, count: int) -> None:
        self.cache.grow(sequence, count)

    def filled(self, sequence: CachedSequence) -> None:
        assert sequence.prompt is not None
        self.cache.compute(sequence, sequence.prompt, sequence.computed)

    def release(self, sequence: CachedSequence, held: int, findable: int) -> None:
        self.cache.finish(sequence)

    def forget(self, sequence: CachedSequence) -> None:
        """Does nothing: cached blocks are found by hash."""

    def handed_out(self, sequence: CachedSequence, count: int) -> None:
        """Notes reply tokens whose step is over, and caches the blocks that they fill.

        All tokens but the newest are computed and have blocks.
        """
        sequence.handed += count
        before, size = sequence.prompt_tokens - 1, self.block_size
        if (before + sequence.handed) // size * size > before + sequence.stored:
            self.cache.write(sequence, sequence.reply_ids(sequence.stored, sequence.handed))
            sequence.stored = sequence.handed

    # For both.

    def _load(self, sequence: CachedSequence, found: int) -> int:
        """Returns how many tokens after the `found` cached ones the connector's store holds."""
        prompt, store = sequence.prompt, self.store
        if store is None or prompt is None or not prompt.reads or sequence.request.remote_prefill:
            return 0
        return store.find(prompt, found)

    def _note(self, sequence: CachedSequence, found: int, loaded: int) -> None:
        """Counts the prompt's cache lookup, and keeps the prompt in the store.

        A remote prefill transfers all tokens that the cache lacks.
        """
        prompt, recorder = sequence.prompt, self.recorder
        assert prompt is not None
        if prompt.cached and prompt.reads:
            recorder.looked_up(sequence.prompt_tokens, found)
        sequence.cached_tokens = found
        if sequence.request.remote_prefill:
            sequence.fetched_tokens -= found
            return
        if self.store is not None:
            recorder.looked_up_in_store(sequence.prompt_tokens - found, loaded, self.store.tier)
            self.store.keep(prompt)
        sequence.fetched_tokens = loaded
        sequence.created_tokens = self.cache.created(prompt, found + loaded)

    def begin_prefill(self) -> None:
        """Sets the prompt's events apart as one step, as if prompts ran one after another."""
        self.recorder.cache_used(self.cache.usage)
        if self._log.pending:
            self._steps.append(self._log.take())

    def end_step(self) -> None:
        """Records the cache usage, and publishes pending events."""
        self.recorder.cache_used(self.cache.usage)
        self.publish()

    def publish(self) -> None:
        if self._log.pending:
            self._steps.append(self._log.take())
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        if self._publish is not None:
            for events in steps:
                self._publish(events)

    def reset(self, under_requests: bool = False) -> bool:
        """Empties the cache; returns False without emptying if requests run, unless `under_requests`.

        The event is published with the next step, as in vLLM.
        """
        if under_requests:
            self.cache.discard()
            return True
        return self.cache.reset()

    def sleep(self) -> None:
        """Empties the cache and stops caching; see `reset` for the event."""
        self.cache.discard()
        self.cache.caching = False

    def wake(self) -> None:
        self.cache.caching = True
