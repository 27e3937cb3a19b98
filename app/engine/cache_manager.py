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
        """Publish what has happened to the blocks."""
        self.begin_prefill()
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
    its reply (`append`). In steps a scheduler says how many there are (`begin`, `grow`), what is computed
    (`compute`) and what is written (`write`).
    """

    __slots__ = ("_hits", "_key", "_manager", "_prompt", "_reads", "_store", "_tokens", "loaded")

    def __init__(
        self,
        manager: KVCacheManager,
        key: str,
        prompt: Prompt,
        store: Store | None = None,
        reads: bool = True,
    ) -> None:
        """Unless it `reads`, nothing of its prompt comes from `store`, where it is kept all the same."""
        self._reads = reads
        self.loaded = 0
        """Tokens of the prompt that come from the store of a connector."""
        self._store = store
        self._manager = manager
        self._key = key
        self._prompt = prompt
        self._tokens = prompt.token_ids
        self._hits: list[Block] = []

    def numbers(self, first: int) -> list[int]:
        """The numbers of its blocks, from its `first`-th one on; none while it has none."""
        try:
            return self._manager.cache.block_numbers(self._key, first)
        except KeyError:
            return []

    def fits(self) -> bool:
        """Whether the prompt's blocks could be had now."""
        return self._manager.cache.can_allocate(self._prompt)

    def allocate(self) -> int:
        """Take the prompt's blocks; how many of its tokens were cached."""
        manager = self._manager
        found = manager.cache.begin(self._key, self._prompt) or 0
        if self._prompt.looks_up:
            manager.recorder.looked_up(len(self._prompt.token_ids), found)
        self.load(found)
        self._count_loaded(found)
        manager.begin_prefill()
        return found

    def append(self, ids: Sequence[int]) -> None:
        """The step that made these tokens is over."""
        # Without a free block the reply goes on all the same: nothing is preempted yet.
        if ids:
            self._manager.cache.append(self._key, ids)
        self._manager.end_step()

    def release(self) -> None:
        """Give the blocks back."""
        self._manager.cache.finish(self._key)
        self._manager.end_step()

    def find(self, written: Sequence[int]) -> int:
        """Blocks that are there already of the prompt, and of what a preempted sequence has `written`."""
        cache, tokens = self._manager.cache, len(self._tokens) + len(written)
        if len(self._prompt.token_ids) != tokens:
            again = self._prompt
            self._prompt = cache.again(again, [*self._tokens, *written])
        self._hits = cache.hits(self._prompt)
        return len(self._hits)

    def fits_found(self) -> bool:
        """Whether there is room for the rest of what `find` has looked for."""
        return self._manager.cache.fits(self._prompt, self._hits)

    def begin(self, blocks: int) -> None:
        """Use what was found and take more, `blocks` in all."""
        self._manager.cache.begin(self._key, self._prompt, blocks=blocks)

    def looked_up(self) -> int:
        """Count what was found; its tokens."""
        found = len(self._hits) * self._manager.cache.block_size
        if self._prompt.looks_up:
            self._manager.recorder.looked_up(len(self._tokens), found)
        self._count_loaded(found)
        return found

    def created(self, found: int) -> int:
        """See `KVCache.created`."""
        return self._manager.cache.created(self._prompt, found)

    def load(self, found: int) -> int:
        """Tokens that the store of a connector has behind the `found` ones of the cache."""
        if self._store is not None and self._reads:
            self.loaded = self._store.find(self._prompt, found)
        return self.loaded

    def _count_loaded(self, found: int) -> None:
        if self._store is not None:
            self._manager.recorder.looked_up_in_store(
                len(self._tokens) - found, self.loaded, self._store.tier
            )
            self._store.keep(self._prompt)

    def grow(self, count: int) -> None:
        """Take `count` more blocks."""
        self._manager.cache.grow(self._key, count)

    def compute(self, computed: int) -> None:
        """So many tokens of what `begin` began with are computed."""
        self._manager.cache.compute(self._key, self._prompt, computed)

    def write(self, ids: Sequence[int]) -> None:
        """These tokens of the reply are known; all but the last of them are computed."""
        self._manager.cache.write(self._key, ids)

    def finish(self) -> None:
        """Give the blocks back, in a step whose end is told later."""
        self._manager.cache.finish(self._key)
