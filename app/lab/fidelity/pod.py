"""One engine of an offline run: requests, KV blocks, the step loop, and a timeline of its use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import inf
from random import Random

import msgspec

from app.engine.core.batch import Batch, Blocks, Drafts, SchedulerLimits, SequenceState
from app.engine.core.scheduler import Scheduler
from app.engine.core.step_cost import CostModel, PrefillTime
from app.engine.core.step_loop import StepLoop
from app.engine.kvcache.block_pool import BlockPool
from app.engine.kvcache.counted_blocks import CountedBlocks
from config.profile import EngineLimits, Profile


class OfflineRequest(SequenceState):
    """A request, with times in seconds, and the beginning that its prompt shares with other
    prompts.
    """

    __slots__ = (
        *("arrival_s", "first_s", "kept", "keys", "last_s", "node_tokens", "number"),
        *("path", "prefix_tokens", "send_s", "session"),
    )

    def __init__(
        self, arrival_s: float, prompt_tokens: int, output_tokens: int, number: int = 0
    ) -> None:
        super().__init__(prompt_tokens, output_tokens)
        self.number = number
        self.arrival_s = self.send_s = arrival_s
        """Time planned by the load; `send_s` may be later."""
        self.first_s = self.last_s = -1.0
        self.path: Sequence[int] = ()
        """Nodes of the prefix tree from the root on; each has the next `node_tokens` tokens of the
        prompt.
        """
        self.node_tokens = self.prefix_tokens = 0
        self.session = -1
        """Conversation whose beginning this prompt is, after `prefix_tokens`; its answer continues
        it.
        """
        self.keys: list[bytes] | None = None
        """Keys of the blocks that may be cached; made while the request waits, dropped with its
        blocks.
        """
        self.kept = 0
        """Unshared blocks that the request may find again after a preemption."""


class PrefixBlocks:
    """A cache of `num_blocks` blocks, including vLLM's null block, with prefix caching between
    requests.

    Without shared prompts its results equal those of `CountedBlocks` (a property test). A whole
    block of a shared prefix can be found as soon as the step that computes the block is made.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, on_evict=lambda hashes: None)
        self.capacity = self.pool.capacity
        self.hits = 0
        """Blocks found at the first admission of requests."""

    @property
    def free(self) -> int:
        return self.pool.free

    def find(self, sequence: OfflineRequest, tokens: int) -> int:
        whole = (tokens - 1) // self.block_size
        if sequence.keys is None:
            keys = sequence.keys = shared_keys(sequence, self.block_size, tokens)
            keys += [_own_key(sequence, place) for place in range(len(keys), sequence.kept)]
        sequence.hits = self.pool.longest_prefix(sequence.keys[:whole])
        return len(sequence.hits)

    def fits(self, sequence: OfflineRequest, tokens: int, found: int) -> bool:
        used = sum(block.references > 0 for block in sequence.hits)
        return -(-tokens // self.block_size) - used <= self.free

    def begin(self, sequence: OfflineRequest, found: int, count: int) -> None:
        blocks, sequence.hits = sequence.hits, []
        sequence.kept = 0
        if not sequence.preemptions:
            self.hits += found
            sequence.cached_tokens = found * self.block_size
        self.pool.use(blocks)
        sequence.blocks = blocks
        self.grow(sequence, count)

    def grow(self, sequence: OfflineRequest, count: int) -> None:
        sequence.blocks += self.pool.take(count)

    def filled(self, sequence: OfflineRequest) -> None:
        whole, keys = (
            min(sequence.computed, sequence.prefix_tokens) // self.block_size,
            sequence.keys or (),
        )
        for block, key in zip(sequence.blocks[:whole], keys, strict=False):
            if block.hash is None:
                self.pool.cache(block, key)

    def release(self, sequence: OfflineRequest, held: int, findable: int = 0) -> None:
        blocks, keys = sequence.blocks, sequence.keys or []
        sequence.blocks, sequence.keys, sequence.kept = [], None, findable
        whole = findable
        if sequence.last:  # the last token of the answer is not computed
            whole = (sequence.prompt_tokens + sequence.output_tokens - 1) // self.block_size
        keys = keys[:whole]
        if sequence.session >= 0:
            keys += [_session_key(sequence, place) for place in range(len(keys), whole)]
        keys += [_own_key(sequence, place) for place in range(len(keys), len(blocks))]
        for block, key in zip(blocks, keys, strict=True):
            if block.hash is None:
                self.pool.cache(block, key)
        self.pool.release(blocks)

    def forget(self, sequence: OfflineRequest) -> None:
        sequence.kept = 0


def shared_keys(request: OfflineRequest, block_size: int, tokens: int) -> list[bytes]:
    """Returns the keys of whole blocks, of the first `tokens` tokens, that other requests may have
    cached.
    """
    shared, path, node_tokens = (
        request.prefix_tokens // block_size,
        request.path,
        request.node_tokens,
    )
    keys = [
        b"g%d/%d" % (path[((place + 1) * block_size - 1) // node_tokens], place)
        for place in range(shared)
    ]
    if request.session >= 0:
        keys += [_session_key(request, place) for place in range(shared, tokens // block_size)]
    return keys


def _session_key(sequence: OfflineRequest, place: int) -> bytes:
    return b"s%d/%d" % (sequence.session, place)


def _own_key(sequence: OfflineRequest, place: int) -> bytes:
    return b"%d/%d" % (sequence.number, place)


FIRST_BIN_S = 1 / 16
MOST_BINS = 512


class Timeline:
    """Use of pods over time, in at most `MOST_BINS` bins, whose width doubles as needed."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.bin_s = FIRST_BIN_S
        self.sequences: list[float] = []
        """Sequences of a step times its seconds, summed by bin."""
        self.blocks: list[float] = []
        """Used blocks times seconds, summed by bin."""
        self.most_sequences = 0
        self.most_blocks = 0
        """Most blocks used at any time in any pod."""

    def add(self, start_s: float, end_s: float, sequences: int, blocks: int) -> None:
        place = int((start_s - self.begin_s) / self.bin_s)
        while place >= MOST_BINS:
            self.bin_s *= 2
            for bins in (self.sequences, self.blocks):
                bins[:] = map(sum, zip_longest(bins[::2], bins[1::2], fillvalue=0.0))
            place >>= 1
        if place >= len(self.sequences):
            missing = [0.0] * (place + 1 - len(self.sequences))
            self.sequences += missing
            self.blocks += missing
        took_s = end_s - start_s
        self.sequences[place] += sequences * took_s
        self.blocks[place] += blocks * took_s
        self.most_sequences = max(self.most_sequences, sequences)
        self.most_blocks = max(self.most_blocks, blocks)


class Pod(StepLoop[OfflineRequest]):
    """A simulated engine with the limits of `profile`.

    `ended` receives each request at its last token.
    """

    def __init__(
        self,
        profile: Profile,
        cost: CostModel,
        seed: str,
        grouped: bool,
        timeline: Timeline,
        ended: Callable[[OfflineRequest], None],
        watch: Watch | None = None,
    ) -> None:
        at = profile.engine
        sizes, caches = (at.num_gpu_blocks, at.block_size), at.enable_prefix_caching
        self.blocks: CountedBlocks | PrefixBlocks = CountedBlocks(*sizes, caches)
        if grouped and caches:
            self.blocks = PrefixBlocks(*sizes)
        blocks: Blocks[OfflineRequest] = self.blocks
        rates = profile.speculation
        drafts = None if rates is None else Drafts(rates.acceptance, Random(seed))
        scheduler = Scheduler(scheduler_limits(at), blocks, speculation=drafts)
        if at.engine_step_time:
            scheduler.prefill_limit = PrefillTime(scheduler, profile.cost, at.engine_step_time)
        super().__init__(scheduler, cost, profile.front, depth=2 if at.async_scheduling else 1)
        self.due_s = inf
        """Time of the next work, as far as the simulation knows; inf without any."""
        self._timeline, self._watch, self.ended = timeline, watch, ended
        self.watch_step = self._note

    @property
    def cached_tokens(self) -> int:
        blocks = self.blocks
        return blocks.hits * blocks.block_size if isinstance(blocks, PrefixBlocks) else 0

    def gauges(self) -> dict[str, float]:
        """Returns the gauges of `/metrics` that autoscalers look at."""
        scheduler, blocks = self.scheduler, self.blocks
        usage = 1 - blocks.free / blocks.capacity
        counts = {"waiting": len(scheduler.waiting.members), "running": len(scheduler.running)}
        return {**counts, "kv_cache_usage": usage}

    def cached_blocks(self, keys: Sequence[bytes]) -> int:
        """Returns the number of blocks in the longest cached prefix of `keys`."""
        blocks = self.blocks
        if not keys or not isinstance(blocks, PrefixBlocks):
            return 0
        find = blocks.pool.longest_prefix
        # Tails are evicted first, so the last block implies all earlier ones.
        return len(keys) if find(keys[-1:]) else len(find(keys))

    def _note(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        blocks = self.blocks
        self._timeline.add(start_s, end_s, batch.sequences, blocks.capacity - blocks.free)
        if self._watch is not None:
            self._watch(self, batch, start_s, end_s)

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        decodes, prefilled = batch.decodes, batch.prefilled
        for place, request in enumerate(prefilled, len(decodes)):
            if request.first_s < 0:
                request.first_s = first_s + place * gap_s
        for request in batch.ends:
            late = request in prefilled
            place = len(decodes) + prefilled.index(request) if late else decodes.index(request)
            request.last_s = first_s + place * gap_s
            self.ended(request)


Watch = Callable[[Pod, Batch[OfflineRequest], float, float], None]
"""Receives every step with its start and its end, in seconds."""


def scheduler_limits(at: EngineLimits) -> SchedulerLimits:
    return msgspec.convert(at, SchedulerLimits, from_attributes=True)
