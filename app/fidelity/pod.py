"""One engine of an offline run: a loop of steps, requests on their way to it, what it did over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from app.engine.batch import Batch, Blocks, Drafts, SchedulerLimits
from app.engine.scheduler import Scheduler
from app.engine.step_cost import CostModel
from app.engine.step_loop import StepLoop
from app.fidelity.prefix_blocks import GroupedRequest, PrefixBlocks
from app.kvcache.block_pool import CountedBlocks
from config.profile import EngineLimits, Profile

FIRST_BIN_S = 1 / 16
MOST_BINS = 512


class Timeline:
    """What the steps of pods held over time, in bins that become wider as time goes on."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.bin_s = FIRST_BIN_S
        self.sequences: list[float] = []
        """Sequences in a step times its seconds, by bin."""
        self.blocks: list[float] = []
        """Used blocks times seconds."""
        self.busy_s = 0.0
        self.most_sequences = 0
        self.most_blocks = 0
        """Of a pod, at any time."""

    def add(self, start_s: float, end_s: float, sequences: int, blocks: int) -> None:
        """A step, whole in the bin in which it starts."""
        place = int((start_s - self.begin_s) / self.bin_s)
        while place >= MOST_BINS:
            self._fold()
            place >>= 1
        missing = place + 1 - len(self.sequences)
        if missing > 0:
            self.sequences += [0.0] * missing
            self.blocks += [0.0] * missing
        took_s = end_s - start_s
        self.sequences[place] += sequences * took_s
        self.blocks[place] += blocks * took_s
        self.busy_s += took_s
        if sequences > self.most_sequences:
            self.most_sequences = sequences
        if blocks > self.most_blocks:
            self.most_blocks = blocks

    def join(self, other: Timeline) -> None:
        """Add what another pod did; both begin at the same moment."""
        while self.bin_s < other.bin_s:
            self._fold()
        while other.bin_s < self.bin_s:
            other._fold()
        self.sequences = _sums(self.sequences, other.sequences)
        self.blocks = _sums(self.blocks, other.blocks)
        self.busy_s += other.busy_s
        self.most_sequences = max(self.most_sequences, other.most_sequences)
        self.most_blocks = max(self.most_blocks, other.most_blocks)

    def _fold(self) -> None:
        self.bin_s *= 2
        self.sequences = _sums(self.sequences[::2], self.sequences[1::2])
        self.blocks = _sums(self.blocks[::2], self.blocks[1::2])


def _sums(some: list[float], others: list[float]) -> list[float]:
    if len(some) < len(others):
        some, others = others, some
    return [a + b for a, b in zip(some, others, strict=False)] + some[len(others) :]


class Pod(StepLoop[GroupedRequest]):
    """An engine as `profile` describes it. `ended` is called with each request that has its last token."""

    def __init__(
        self,
        profile: Profile,
        cost: CostModel,
        grouped: bool,
        seed: str,
        timeline: Timeline,
        ended: Callable[[GroupedRequest], None],
        watch: Watch | None = None,
    ) -> None:
        at = profile.engine
        self.blocks: CountedBlocks | PrefixBlocks = (
            PrefixBlocks(at.num_gpu_blocks, at.block_size)
            if grouped and at.enable_prefix_caching
            else CountedBlocks(at.num_gpu_blocks, at.block_size, at.enable_prefix_caching)
        )
        blocks: Blocks[GroupedRequest] = self.blocks
        rates = profile.speculation
        drafts = None if rates is None else Drafts(rates.acceptance, Random(seed))
        scheduler = Scheduler(scheduler_limits(at), blocks, speculation=drafts)
        super().__init__(scheduler, cost, profile.front, depth=2 if at.async_scheduling else 1)
        self.due_s: float | None = None
        """When it has something to do."""
        self._timeline = timeline
        self._watch = watch
        self._ended = ended

    @property
    def cached_tokens(self) -> int:
        """Of prompts: those that others had left in the cache."""
        blocks = self.blocks
        return blocks.hits * blocks.block_size if isinstance(blocks, PrefixBlocks) else 0

    def cached_blocks(self, keys: Sequence[bytes]) -> int:
        """How many of these blocks, from the first on, are here."""
        blocks = self.blocks
        if not keys or not isinstance(blocks, PrefixBlocks):
            return 0
        find = blocks.pool.longest_prefix
        # Tails are taken first, so who has the last block has those before it.
        return len(keys) if find(keys[-1:]) else len(find(keys))

    def step_made(self, batch: Batch[GroupedRequest], start_s: float, end_s: float) -> None:
        blocks = self.blocks
        self._timeline.add(start_s, end_s, batch.sequences, blocks.capacity - blocks.free)
        if self._watch is not None:
            self._watch(self, batch, start_s, end_s)

    def step_over(self, batch: Batch[GroupedRequest], first_s: float, gap_s: float) -> None:
        decodes, prefilled = batch.decodes, batch.prefilled
        for place, request in enumerate(prefilled, len(decodes)):
            if request.first_s < 0:
                request.first_s = first_s + place * gap_s
        for request in batch.ends:
            late = request in prefilled
            place = len(decodes) + prefilled.index(request) if late else decodes.index(request)
            request.last_s = first_s + place * gap_s
            self._ended(request)


Watch = Callable[[Pod, Batch[GroupedRequest], float, float], None]
"""Is told of every step that is made, with its begin and its end."""


def scheduler_limits(at: EngineLimits) -> SchedulerLimits:
    return SchedulerLimits(
        max_num_seqs=at.max_num_seqs,
        max_num_batched_tokens=at.max_num_batched_tokens,
        long_prefill_token_threshold=at.long_prefill_token_threshold,
        enable_chunked_prefill=at.enable_chunked_prefill,
    )
