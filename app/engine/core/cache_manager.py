"""The simulated engine's KV cache: prompts of requests, metrics of lookups, and published events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.base.metrics.recorder import Recorder
from app.engine.core.batch import SequenceState
from app.engine.core.errors import PromptExceedsCache
from app.engine.core.request import EngineRequest
from app.engine.kvcache.block_pool import BlockObserver
from app.engine.kvcache.cache import ConnectorStore, KVCache
from app.engine.kvcache.events import KVEvent
from app.engine.kvcache.hashing import Adapter, BlockHasher, Placeholder, Prompt

Publish = Callable[[Sequence[KVEvent]], None]


class KVCacheManager(KVCache):
    """One engine's KV cache. Without steps a sequence takes all prompt blocks at once (`allocate`)."""

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
        super().__init__(num_blocks, hasher, events=publish is not None, observer=observer, store=store)
        self._recorder, self._adapter_of, self._publish = recorder, adapter_of, publish
        self._steps: list[list[KVEvent]] = []
        """Events of each prefill that await publishing."""

    def prompts(self, requests: Sequence[EngineRequest]) -> list[Prompt]:
        """Returns the prompts of requests in order of index, with pauses. Raises PromptExceedsCache."""
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
            prompts.append(self.make_prompt(request.prompt_ids, adapter, request.cache_salt, media, reads))
        return prompts

    def begin(self, sequence: SequenceState, found: int, count: int) -> None:
        """Counts the first lookup of a prompt, too. A remote prefill transfers what the cache lacks."""
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
            recorder.looked_up_in_store(sequence.prompt_tokens - cached, sequence.loaded, self.store.tier)
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

    def sleep(self) -> None:
        """Empties the cache and stops caching; the event is published with the next step, as in vLLM."""
        self.discard()
        self.caching = False

    def wake(self) -> None:
        self.caching = True
