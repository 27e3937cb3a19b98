"""One reply in the engine, and how the scheduler asks for its blocks and its turn."""

from __future__ import annotations

import heapq
from typing import Final

from app.engine.batch import SequenceState
from app.kvcache.block_pool import Block
from app.kvcache.cache import KVCache
from app.kvcache.prompt import Prompt
from app.llm.detokenizer import Detokenizer
from app.llm.requests import EngineRequest, TokenLogprobs
from app.llm.sampler import SamplingState


class Sequence(SequenceState):
    """A choice of a request."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "created_tokens",
        "deadline_s",
        "detokenizer",
        "ended",
        "hits",
        "index",
        "key",
        "output_ids",
        "prompt",
        "prompt_logprobs",
        "queued_s",
        "request",
        "sampling",
        "scheduled_s",
        "stored",
    )

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        *,
        output_tokens: int,
        prompt: Prompt,
        detokenizer: Detokenizer | None,
        sampling: SamplingState,
        deadline_s: float | None,
    ) -> None:
        super().__init__(len(request.prompt_ids), output_tokens, request.priority)
        self.request, self.index = request, index
        self.key = f"{request.request_id} {index}"
        self.prompt = prompt
        self.detokenizer = detokenizer
        self.deadline_s = deadline_s
        self.sampling = sampling
        self.output_ids = sampling.output_ids
        self.hits: list[Block] = []
        self.blocks: list[int] = []
        """The numbers of its blocks."""
        self.stored = 0
        """Tokens whose keys and values are in them."""
        self.cached_tokens = 0
        """Of its prompt: what was found when it began."""
        self.created_tokens = 0
        """Of its prompt: what of the rest is cached once it is computed."""
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        self.queued_s = 0.0
        self.scheduled_s: float | None = None
        """When it was first admitted."""
        self.ended = False

    @property
    def token_ids(self) -> list[int]:
        """All that it has."""
        return [*self.request.prompt_ids, *self.output_ids]

    def part(self, start: int, end: int) -> list[int]:
        prompt = self.request.prompt_ids
        return prompt[start:end] if end <= len(prompt) else self.token_ids[start:end]


SPARE_PLACES: Final = 64
"""Of sequences that left the queue, beside as many as are in it."""


class PagedBlocks:
    """The blocks of `KVCache`, as the scheduler asks for them."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.block_size = cache.block_size
        self.capacity = cache.capacity

    @property
    def free(self) -> int:
        return self._cache.free

    def find(self, sequence: Sequence, tokens: int) -> int:
        if tokens != len(sequence.prompt.token_ids):  # it was preempted, and has written since
            sequence.prompt = self._cache.again(sequence.prompt, sequence.token_ids)
        sequence.hits = self._cache.hits(sequence.prompt)
        return len(sequence.hits)

    def fits(self, sequence: Sequence, tokens: int, found: int) -> bool:
        return self._cache.fits(sequence.prompt, sequence.hits)

    def begin(self, sequence: Sequence, found: int, count: int) -> None:
        self._cache.begin(sequence.key, sequence.prompt, blocks=found + count)
        sequence.blocks = self._cache.block_numbers(sequence.key)
        sequence.stored = found * self.block_size
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.stored
            sequence.created_tokens = self._cache.created(sequence.prompt, sequence.stored)

    def grow(self, sequence: Sequence, count: int) -> None:
        self._cache.grow(sequence.key, count)
        sequence.blocks = self._cache.block_numbers(sequence.key)

    def filled(self, sequence: Sequence) -> None:
        self._cache.compute(sequence.key, sequence.prompt, sequence.computed)

    def release(self, sequence: Sequence, held: int, findable: int = 0) -> None:
        self._cache.finish(sequence.key)
        sequence.blocks, sequence.stored = [], 0

    def forget(self, sequence: Sequence) -> None:
        """What it left is found by its hashes, by whoever."""


class PriorityQueue:
    """Who waits: the lower priority first, then who came first; who was preempted keeps its place."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        self.sequences: set[Sequence] = set()
        """All that wait; the heap may hold some that left."""

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence) -> None:
        self.sequences.add(sequence)
        heapq.heappush(self._heap, (sequence.priority, sequence.arrived, sequence))

    def head(self) -> Sequence | None:
        while self._heap and self._heap[0][2] not in self.sequences:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        sequence = self.head()
        assert sequence is not None
        heapq.heappop(self._heap)
        self.sequences.remove(sequence)
        return sequence

    def left(self, sequence: Sequence) -> None:
        """Places are all the same here."""

    def remove(self, sequence: Sequence) -> bool:
        if sequence not in self.sequences:
            return False
        self.sequences.remove(sequence)
        if len(self._heap) > 2 * len(self.sequences) + SPARE_PLACES:
            self._heap = [place for place in self._heap if place[2] in self.sequences]
            heapq.heapify(self._heap)
        return True
