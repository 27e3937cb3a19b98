"""The KV cache as the engine uses it: the blocks of each sequence, and what others learn of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, count, groupby

from app.clock.pause import pause_if_possible
from app.engine.errors import PromptExceedsCache
from app.engine.request import EngineRequest
from app.kvcache.block_pool import Block
from app.kvcache.cache import KVCache
from app.kvcache.events import KVEvent
from app.kvcache.prompt import Adapter, Placeholder, Prompt
from app.kvcache.stores import Store
from app.metrics.recorder import Recorder

Publish = Callable[[Sequence[KVEvent]], None]


class KVCacheManager:
    """One engine's cache. `adapter_of` knows adapters by name, `publish` takes a step's events."""

    def __init__(
        self,
        cache: KVCache,
        recorder: Recorder,
        adapter_of: Callable[[str], Adapter],
        publish: Publish | None = None,
        store: Store | None = None,
    ) -> None:
        """`store` is where a connector keeps blocks besides."""
        self.cache = cache
        self.store = store
        self.recorder = recorder
        self._adapter_of = adapter_of
        self._publish = publish
        self._numbers = count()
        self._steps: list[list[KVEvent]] = []
        """The events of each prefill that are not published yet."""

    def blocks_of(self, requests: Sequence[EngineRequest]) -> list[SequenceBlocks]:
        """What each of `requests`, in order of index, will have. PromptExceedsCache for what never fits.

        Each prompt is hashed once, with pauses in which others have their turn.
        """
        blocks: list[SequenceBlocks] = []
        for _, choices in groupby(requests, key=lambda it: it.index // it.n):
            first = next(choices)
            prompt = self._prompt(first)
            for request in chain((first,), choices):
                key = f"{request.request_id} {next(self._numbers)}"
                store = None if first.remote_prefill else self.store
                blocks.append(SequenceBlocks(self, key, prompt, store, first.prompt_logprobs is None))
        return blocks

    def _prompt(self, request: EngineRequest) -> Prompt:
        tokens = len(request.prompt_ids)
        if not self.cache.fits_ever(tokens):
            raise PromptExceedsCache(tokens, self.cache.capacity * self.cache.block_size)
        name = request.adapter
        adapter = None if name is None else self._adapter_of(name)
        media = [Placeholder(*item) for item in request.media]
        # Log probabilities of a prompt take all of it to compute, as in vLLM.
        reads = request.prompt_logprobs is None
        prompt = self.cache.prompt(request.prompt_ids, adapter, request.cache_salt, media, reads)
        for _ in prompt.hashing():
            pause_if_possible()
        return prompt

    def begin_prefill(self) -> None:
        """Keep the events of a prompt apart: alone in its step, as where one prompt comes after another."""
        self.recorder.cache_used(self.cache.usage)
        if events := self.cache.take_events():
            self._steps.append(events)

    def end_step(self) -> None:
        """Counts and publishes what has happened to the blocks."""
        self.begin_prefill()
        self.publish()

    def publish(self) -> None:
        """Publishes what has happened to the blocks."""
        if events := self.cache.take_events():
            self._steps.append(events)
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        if self._publish is not None:
            for events in steps:
                self._publish(events)

    def reset(self, under_requests: bool = False) -> bool:
        """Forget all that is cached; False, and nothing is forgotten, while requests run, if that matters.

        The event waits for the next step, as in vLLM.
        """
        if under_requests:
            self.cache.discard()
            return True
        return self.cache.reset()

    def sleep(self) -> None:
        """Forget everything and cache nothing more; see `reset` for the event."""
        self.cache.discard()
        self.cache.caching = False

    def wake(self) -> None:
        """Cache again."""
        self.cache.caching = True


class SequenceBlocks:
    """The blocks of one sequence, known to the cache as `key`.

    A sequence on its own timeline takes those of its prompt at once (`allocate`), and one after another for
    its reply (`append`). In steps a scheduler decides (`HashedBlocks`).
    """

    __slots__ = ("_manager", "_reads", "_store", "hits", "key", "loaded", "prompt")

    def __init__(
        self,
        manager: KVCacheManager,
        key: str,
        prompt: Prompt,
        store: Store | None = None,
        reads: bool = True,
    ) -> None:
        """Unless it `reads`, nothing of its prompt comes from `store`, where it is kept all the same."""
        self.key = key
        self.prompt = prompt
        self.hits: list[Block] = []
        """Blocks that were found for the prompt, until they are taken."""
        self.loaded = 0
        """Tokens of the prompt that come from the store of a connector."""
        self._reads = reads
        self._store = store
        self._manager = manager

    def numbers(self, first: int) -> list[int]:
        """Returns the numbers of its blocks, from its `first`-th one on; none while it has none."""
        try:
            return self._manager.cache.block_numbers(self.key, first)
        except KeyError:
            return []

    def fits(self) -> bool:
        """Returns whether the prompt's blocks could be had now."""
        return self._manager.cache.can_allocate(self.prompt)

    def count_hits(self) -> int:
        """Returns the tokens of the prompt that are cached now."""
        cache = self._manager.cache
        return len(cache.hits(self.prompt)) * cache.block_size

    def allocate(self) -> tuple[int, int]:
        """Takes the prompt's blocks; returns its cached tokens, and those that are cached from now on."""
        manager = self._manager
        found = manager.cache.begin(self.key, self.prompt) or 0
        self.load(found)
        self.count_lookup(found)
        manager.begin_prefill()
        return found, manager.cache.created(self.prompt, found + self.loaded)

    def load(self, found: int) -> int:
        """Returns the tokens that the store of a connector has behind the `found` ones of the cache."""
        if self._store is not None and self._reads:
            self.loaded = self._store.find(self.prompt, found)
        return self.loaded

    def count_lookup(self, found: int) -> None:
        """Counts `found` cached tokens of the prompt, and what its store had; keeps the prompt there."""
        recorder, tokens = self._manager.recorder, len(self.prompt.token_ids)
        if self.prompt.looks_up:
            recorder.looked_up(tokens, found)
        if self._store is not None:
            recorder.looked_up_in_store(tokens - found, self.loaded, self._store.tier)
            self._store.keep(self.prompt)

    def append(self, ids: Sequence[int]) -> None:
        """Gives room to the tokens of a step that is over, and publishes its events."""
        # Without a free block the reply goes on all the same: nothing is preempted yet.
        if ids:
            self._manager.cache.append(self.key, ids)
        self._manager.end_step()

    def write(self, ids: Sequence[int]) -> None:
        """Notes known tokens of the reply, of which all but the last are computed; they have blocks."""
        self._manager.cache.write(self.key, ids)

    def release(self) -> None:
        """Gives the blocks back, and publishes the events."""
        self._manager.cache.finish(self.key)
        self._manager.end_step()
