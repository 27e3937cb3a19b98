"""Types that the scheduler works with:

sequences, steps, adapter slots, and the pool's interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from app.engine.kvcache.block_pool import Block
    from app.engine.kvcache.hashing import Prompt
    from app.engine.lora import AdapterMemory


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """vLLM's scheduler options of the same names, in tokens and sequences."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 is no limit."""
    enable_chunked_prefill: bool = True
    by_priority: bool = False


class Phase(IntEnum):
    QUEUED = 0
    PREFILL = 1
    TRANSFER = 2
    """Waiting for the KV cache of a remote prefill."""
    DECODE = 3
    PREEMPTED = 4


class SequenceStatus(Struct, frozen=True, gc=False):
    """Progress of one sequence, read from outside the engine now and then.

    `computed` prompt tokens are computed or in flight. `held` counts blocks, and is 0 unless
    sequences share steps. `scheduled_s` (start of running) and `first_s` (due time of the first
    token) are monotonic seconds.
    """

    phase: Phase
    computed: int
    held: int
    scheduled_s: float | None
    first_s: float | None


class SequenceState:
    """One sequence, as scheduler and KV cache know it."""

    adapter: str | None = None
    remote_decode = False
    """True if the blocks stay taken after the end, until `Scheduler.release`."""

    __slots__ = (
        *("arrived", "computed", "decodes", "held", "last", "lead", "loaded", "output_tokens"),
        *("place", "preemptions", "priority", "prompt_tokens", "remote", "running", "written"),
        *("blocks", "cached_blocks", "cached_tokens", "caches", "created_tokens", "fetched_tokens"),
        *("handed", "hits", "last_hash", "prompt"),
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, remote: bool = False
    ) -> None:
        """Without output tokens (pooling) a sequence ends with its prefill; `remote` is where that
        ran.
        """
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.priority, self.remote = priority, remote
        self.arrived = 0
        """Number in order of arrival, from 1; 0 before the sequence is queued."""
        self.computed = 0
        """Tokens whose KV is computed or scheduled; for a decode that advances in bulk see `lead`.
        """
        self.written = 0
        """Output tokens sampled or in flight. Out of date for a decode that advances in bulk."""
        self.held = 0
        self.running = False
        """True while the sequence holds one of the `max-num-seqs` places."""
        self.place = 0
        """Admission number; `Scheduler.running` is in this order."""
        self.decodes = False
        """True from the step that samples the first token until the step that samples the last."""
        self.last = False
        """True while the last token is in flight."""
        self.lead = 0
        """For a decode: `computed` minus the number of the next step."""
        self.preemptions = 0
        self.loaded = 0
        """Tokens after the found blocks that a connector's store loads at once."""
        self.prompt: Prompt | None = None
        """The prompt, where a cache is used; after a preemption with the reply tokens written
        before.
        """
        self.hits: list[Block] = []
        """Cached blocks found for the prompt, until they are taken."""
        self.blocks: list[Block] = []
        self.cached_blocks = 0
        """Number of blocks, from the first on, that are cached or were found; the last under
        `last_hash`.
        """
        self.last_hash = b""
        self.caches = False
        """True while full blocks of the sequence are cached."""
        self.handed = 0
        """Reply tokens whose steps are over. The newest is not computed yet and has no place."""
        self.cached_tokens = 0
        """Prompt tokens found in the cache at the first admission."""
        self.fetched_tokens = 0
        """Prompt tokens fetched from another engine or from a connector's store."""
        self.created_tokens = 0
        """Prompt tokens that this sequence added to the cache."""

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        """Returns the ids of reply tokens `start` to `stop` (exclusive)."""
        raise NotImplementedError

    def block_numbers(self, first: int = 0) -> list[int]:
        return [block.number for block in self.blocks[first:]]

    def preempted(self) -> None:
        """Called after the sequence has lost its blocks and is queued again."""


S = TypeVar("S", bound=SequenceState)


class Batch(Struct, Generic[S]):
    """One step.

    Tokens leave in the order `decodes`, then `prefilled`; `ends` get their last one.
    """

    tokens: int = 0
    sequences: int = 0
    context: int = 0
    """Tokens computed before this step, summed over its decodes and the sequences just fetched."""
    attention: float = 0.0
    """Sum over prefills: tokens times the mean number of tokens each one attends to."""
    prefills: int = 0
    """Sequences that compute a part of their prompt."""
    admitted: list[S] = []
    decodes: Sequence[S] = ()
    prefilled: list[S] = []
    ends: list[S] = []
    drafts: dict[S, tuple[int, int]] = {}
    """Speculative decoding: drafted and accepted tokens per decode."""


class Blocks(Protocol[S]):  # type: ignore[misc]
    """The scheduler's interface to a block pool."""

    block_size: int
    capacity: int
    """Blocks without the null block."""

    @property
    def free(self) -> int:
        """Blocks that are free now."""

    def find(self, sequence: S, tokens: int) -> int:
        """Returns how many blocks of the first `tokens` tokens are cached, never the last token's
        block.
        """

    def fits(self, sequence: S, tokens: int, found: int) -> bool:
        """Returns whether all blocks of the sequence fit now, `found` blocks being cached."""

    def begin(self, sequence: S, found: int, count: int) -> None:
        """Assigns the `found` cached blocks and `count` new ones."""

    def grow(self, sequence: S, count: int) -> None:
        """Assigns `count` more blocks."""

    def filled(self, sequence: S) -> None:
        """Notes that the sequence's first `computed` tokens are computed."""

    def release(self, sequence: S, held: int, findable: int) -> None:
        """Frees the blocks; a preempted sequence may find the first `findable` again."""

    def forget(self, sequence: S) -> None:
        """Drops everything kept for a sequence that will not run again."""


class Speculation(Protocol):
    """Proposes tokens of decodes (drafts), which one step checks together."""

    def propose(self, sequence: SequenceState, most: int) -> int:
        """Returns the number of drafts for the next step of a decode, at most `most`."""

    def accepted(self, drafts: int) -> int:
        """Returns the number of right drafts before the first wrong one; 0 if only the step shows
        it.
        """


class Drafts:
    """Drawn drafts:

    each of `rates` is the chance that a draft is right after right ones (rule 5).
    """

    def __init__(self, rates: Sequence[float], rng: Random) -> None:
        self.drafts = len(rates)
        self._rates = rates
        self._rng = rng

    def propose(self, sequence: SequenceState, most: int) -> int:
        return min(self.drafts, most)

    def accepted(self, drafts: int) -> int:
        for number, rate in enumerate(self._rates[:drafts]):
            if self._rng.random() >= rate:
                return number
        return drafts


class LoRASlots:
    """Slots of at most `most` running adapters; the longest idle one yields to another.

    `known` is true for a loaded adapter; any other name runs as the base model. The registry bounds
    the names.
    """

    def __init__(
        self, most: int, known: Callable[[str], bool], memory: AdapterMemory | None = None
    ) -> None:
        self.most, self._known, self._memory = most, known, memory
        self._running: dict[str, int] = {}
        """Running requests of each resident adapter, in order of entry or latest `leave`."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    def running(self, adapter: str) -> int:
        return self._running.get(adapter, 0)

    def is_ready(self, adapter: str | None) -> bool:
        """True when a request with `adapter` can run without loading an adapter."""
        return adapter is None or adapter in self._running or not self._known(adapter)

    def has_room(self) -> bool:
        return len(self._running) < self.most or 0 in self._running.values()

    def enter(self, adapter: str | None) -> bool:
        """Counts a request that begins to run, and loads its adapter. False when it needs none.

        Call `leave` only after True: the adapter may be unloaded in between.
        """
        if adapter is None or adapter not in self._running and not self._known(adapter):
            return False
        if adapter not in self._running and len(self._running) >= self.most:
            del self._running[next(name for name, running in self._running.items() if not running)]
        self._running[adapter] = self.running(adapter) + 1
        if self._memory is not None:
            self._memory.enter(adapter)
        return True

    def leave(self, adapter: str) -> None:
        running = self._running.pop(adapter) - 1
        if running or self._known(adapter):
            self._running[adapter] = running
        if self._memory is not None:
            self._memory.leave(adapter)
