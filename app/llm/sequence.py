"""One reply in the engine, and its blocks as the scheduler asks for them."""

from __future__ import annotations

from app.engine.batch import SequenceState
from app.kvcache.block_pool import Block
from app.kvcache.cache import KVCache
from app.kvcache.prompt import Prompt
from app.llm.detokenizer import Detokenizer
from app.llm.requests import EngineRequest, TokenLogprobs
from app.llm.sampler import SamplingState


class Sequence(SequenceState):
    """A choice of a request."""

    adapter: str | None = None
    """The engine has no LoRA adapters."""
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
