"""Types that the scheduler works with: sequences, steps, adapter slots, interface of block pools.

Start with `SequenceState` and `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from app.core.engine.kvcache.cached_sequence import CachedSequence
from config import ConfigError

if TYPE_CHECKING:
    from app.core.engine.lora import AdapterMemory

S = TypeVar("S", bound="SequenceState")
_place = attrgetter("place")


class SchedulerRules(Struct, frozen=True, kw_only=True):
    """Rules of the scheduler that differ between versions of vLLM; the defaults are the newest.

    The release that changed a rule sets the older value: see `app/core/versions/releases`.
    """

    spaces_prefill: bool = True
    """`prefill_schedule_interval` has an effect."""
    passes_self_preempted: bool = True
    """The step goes on after a sequence that preempts itself."""
    visits_all_after_victims: bool = True
    """A victim that the step had passed over keeps no later sequence from its tokens."""
    holds_last_adapters: bool = True
    """A sequence whose last token is in flight still counts for the adapters that run."""
    caches_drafts: bool = True
    """A block that right drafts fill is cached at once, also where steps do not overlap."""
    shares_known_states: bool = True
    """A state of linear attention that was cached in an earlier step can always be found.

    Older versions note the state at the end of a prompt as new in each step of the request, until
    the reply fills a block. A prompt that would go on from a new state waits.
    """
    offers_again: bool = True
    """A preempted sequence offers all its blocks to a tier again."""
    chunk_uses: str = "requests"
    """Events that count as a use of a tier's chunks: the end of `requests`, or before 0.31
    `transfers` and lookups. Before 0.30 (`offers`), ARC evicts no recent chunk in place of a
    frequent one. Before 0.29 (`lookups`), lookups also count for the store threshold.
    """
    exempts_lone_prompt: bool = True
    """`long_prefill_token_threshold` does not hold for a prompt that is alone."""
    tags_hash_keys: bool = True
    """The extra keys of a block's hash name their kind, and an adapter's has its path."""
    reconciles_hits: bool = True
    """Beside a connector, all cache groups have the cached blocks of a prompt.

    Up to 0.27, groups may lack blocks that full attention has, if the connector loads more.
    """
    checkpoints_before_end: bool = True
    """A prompt of whole blocks keeps a state of linear attention before its last block."""
    frees_all_skipped_states: bool = True
    """States before a gap, which asynchronous steps leave, are freed before the end."""
    prefers_kv_holders: bool = True
    """A sequence whose cache has arrived waits before sequences of all priorities."""
    resumes_transfers_in_pause: bool = True
    """Sequences that hold blocks start during a pause."""
    reserves_drafts: bool = True
    """The start of a transfer leaves blocks free for the first drafts of others."""
    reserves_drafts_in_tokens: bool = True
    """These drafts count with the tokens of a sequence, not in blocks of their own."""
    padded_resumptions: str = "all"
    """Sequences that are padded with drafts when they resume with one token: `all`, those
    `beside` others, or `none`.
    """
    keeps_deferred_victims: bool = True
    """A sequence whose blocks a step under way computes is not preempted for others.

    Older versions preempt it. Without a tier, they drop its tokens of that step.
    """
    forgets_passes: bool = True
    """A preempted sequence waits before all others, also before those that were passed over."""
    passes_waiting_items: bool = True
    """Sequences may start before one that waits for room in the encoder cache."""
    splits_no_items: bool = True
    """`disable_chunked_mm_input` holds for an item at which a chunk starts, too."""
    avoids_known_splits: bool = True
    """`disable_chunked_mm_input` holds for items in the encoder cache, too."""
    notes_repeated_items: bool = True
    """A repeated item of a prompt holds its place in the encoder cache to its last occurrence.

    Older versions free the place after the first occurrence, if a step encodes the item.
    """
    keeps_repeated_items: bool = True
    """The same for items that were in the cache before."""
    counts_draft_slots: bool = True
    """Slots of drafts count for each sequence of a step, not for `max_num_seqs` in advance."""


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """vLLM's scheduler options of the same names, in tokens and sequences."""

    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    """Maximum number of running sequences, if it is less than `max_num_seqs`."""
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Maximum tokens of one prompt in one step, unless it is alone; 0 is no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """The threshold is at least an equal share of the step's tokens."""
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    """Share of the blocks that an admission leaves free while others run."""
    prefill_schedule_interval: int = 1
    """Minimum distance of steps with prefill, in steps, while others decode."""
    draft_slots: int = 0
    """Tokens of a step that each sequence takes for its drafts, besides its own."""
    lookahead: int = 0
    """Tokens for which each sequence holds blocks besides its own: a drafter writes there."""
    by_priority: bool = False
    defers_frees: bool = False
    """Blocks that a step under way computes are freed when that step is over.

    A connector may write into free blocks at once, so vLLM waits where steps overlap.
    """
    rules: SchedulerRules = SchedulerRules()

    @property
    def max_running(self) -> int:
        """Maximum number of running sequences."""
        if self.max_num_active_seqs is None:
            return self.max_num_seqs
        return min(self.max_num_active_seqs, self.max_num_seqs)

    def __post_init__(self) -> None:
        """Raises ConfigError if no sequence would ever fit into a step."""
        if self.draft_slots >= self.max_num_batched_tokens:
            raise ConfigError(
                f"draft-slots ({self.draft_slots}) in the profile must be less than "
                f"max-num-batched-tokens ({self.max_num_batched_tokens})"
            )


class Phase(IntEnum):
    """Current activity of a sequence."""

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


class SequenceState(CachedSequence):
    """One sequence, as the scheduler knows it."""

    adapter: str | None = None
    remote_decode = False
    """True if the blocks stay assigned after the end, until `Scheduler.release`."""

    __slots__ = (
        "arrived",
        "choice",
        "decodes",
        "held",
        "last",
        "lead",
        "lora",
        "output_tokens",
        "place",
        "priority",
        "rejected",
        "running",
        "stops",
        "written",
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, remote: bool = False
    ) -> None:
        """A sequence without output tokens (pooling) ends with its prefill."""
        super().__init__(prompt_tokens, remote)
        self.output_tokens = output_tokens
        self.priority = priority
        self.lora: AdapterKey | None = None
        """Adapter that needs a slot, from the arrival on."""
        self.arrived = 0
        """Number in order of arrival, from 1; 0 before the sequence is queued."""
        self.choice = 0
        """Number among the choices of a request, which arrive one after another."""
        self.written = 0
        """Output tokens sampled or in flight. Outdated for a decode that advances in bulk."""
        self.held = 0
        """Number of blocks that the sequence holds."""
        self.running = False
        """True while the sequence holds one of the `max-num-seqs` places."""
        self.place = 0
        """Admission number; `Scheduler.running` is in this order."""
        self.decodes = False
        """True from the step that samples the first token until the step that samples the last.

        A sequence that `stops` decodes until the step after that.
        """
        self.last = False
        """True while the last token is in flight."""
        self.rejected = 0
        """Drafts of the steps under way that are wrong, or follow the last token.

        Until those steps are over, blocks are assigned as if these drafts were right.
        """
        self.stops = False
        """True if the last token ends the reply before `max_tokens`."""
        self.lead = 0
        """For a decode that advances in bulk: `computed` minus the number of the next step."""

    def accept(self, drafts: int) -> None:
        """Notes the right drafts of a decode that does not advance in bulk."""
        self.computed += drafts
        self.written += drafts

    def preempted(self) -> None:
        """Called after the sequence has lost its blocks and is queued again."""


class Drafted(Struct, frozen=True, gc=False):
    """Drafts of a sequence in a step."""

    drafts: int
    accepted: int
    """Number of right drafts before the first wrong one."""
    delivered: int
    """Accepted drafts that the reply contains: none after its last token."""


class Batch(Struct, Generic[S]):
    """One step. The sequences in `ends` receive their last token, and free blocks in this order."""

    # Each step has its own lists: msgspec copies a default that is an empty list or dict.
    tokens: int = 0
    sequences: int = 0
    context: int = 0
    """Tokens computed before this step, summed over its decodes and the sequences just fetched."""
    attention: float = 0.0
    """Sum over prefills: tokens times the mean number of tokens that a token attends to."""
    prefills: int = 0
    """Sequences that compute a part of their prompt."""
    encoder_s: float = 0.0
    """Seconds of encoding the images and other items of prompts."""
    admitted: list[S] = []
    decodes: Sequence[S] = ()
    prefilled: list[S] = []
    """Sequences whose prompts are complete after this step."""
    is_overtaken: bool = False
    """True if a sequence in `prefilled` was admitted before one in `decodes`."""
    ends: list[S] = []
    overruns: list[S] = []
    """Decodes whose last token is in flight; theirs of this step are dropped."""
    drafts: dict[S, Drafted] = {}
    """Speculative decoding: the drafts of each decode."""

    def receivers(self) -> list[S]:
        """Returns the sequences that receive tokens, in the order of sending."""
        receivers = [*self.decodes, *self.prefilled]
        if self.is_overtaken:
            receivers.sort(key=_place)
        if self.overruns:
            receivers = [sequence for sequence in receivers if sequence not in self.overruns]
        return receivers

    def drop(self, sequence: S) -> None:
        """Lets a sequence receive no token of this step: it computes the token again."""
        if sequence not in self.receivers():
            return
        sequence.written -= 1
        sequence.last = False
        drafted = self.drafts.pop(sequence, None)
        if drafted is not None:
            sequence.written -= drafted.delivered
            sequence.rejected -= drafted.drafts - drafted.delivered
        self.decodes = [decode for decode in self.decodes if decode is not sequence]
        for receivers in (self.prefilled, self.ends):
            if sequence in receivers:
                receivers.remove(sequence)

    def take_back(self) -> None:
        """Lets no sequence receive a token of this step: running ones compute theirs again."""
        for sequence in self.receivers():
            if sequence.running:
                sequence.written -= 1
                sequence.last = False
        for sequence, drafted in self.drafts.items():
            if sequence not in self.overruns:
                sequence.written -= drafted.delivered
            sequence.rejected -= drafted.drafts - drafted.delivered
        self.decodes = ()
        self.prefilled = []
        self.ends = []
        self.overruns = []
        self.drafts = {}


class Blocks(Protocol[S]):  # type: ignore[misc]
    """The scheduler's interface to a block pool."""

    block_size: int
    capacity: int
    """Blocks without the null block."""

    num_blocks: int
    """All blocks of the pool, with the null block."""

    @property
    def policies(self) -> Sequence[Any]:
        """The `SchedulingPolicy` objects that these blocks need, such as that of cache groups."""

    @property
    def free(self) -> int:
        """Number of blocks that are free now."""

    def find(self, sequence: S, tokens: int) -> int:
        """Returns how many blocks of the first `tokens` tokens are cached.

        The block of the last token does not count: that token is always computed.
        """

    def fits(self, sequence: S, tokens: int, cached: int, spare: int = 0) -> bool:
        """Returns whether all blocks of the sequence fit now, besides `spare` free ones.

        `cached` is the result of `find`.
        """

    def begin(self, sequence: S, cached: int, count: int) -> None:
        """Assigns the `cached` blocks that `find` returned, and `count` new ones."""

    def lacks(self, sequence: S, tokens: int) -> bool:
        """Returns whether too few blocks are free for the first `tokens` tokens of a sequence."""

    def grow(self, sequence: S, count: int) -> None:
        """Assigns `count` more blocks."""

    def filled(self, sequence: S) -> None:
        """Notes that the sequence's first `computed` tokens are computed."""

    def release(self, sequence: S, held: int, findable: int) -> None:
        """Frees the blocks; a preempted sequence may find the first `findable` again."""

    def release_late(self, sequence: S, held: int) -> None:
        """Frees the blocks of a sequence that left before, and which no step computes now."""

    def forget(self, sequence: S) -> None:
        """Drops all entries of a sequence that will not run again."""


class AdapterKey(NamedTuple):
    """An adapter that requests name: one that is loaded again has another number."""

    name: str
    number: int


class LoRASlots:
    """Slots of at most `capacity` running adapters; a new one replaces the longest idle one.

    A request keeps the adapter that its name had when it arrived, as in vLLM: it needs a slot also
    after the adapter was unloaded, or was loaded again.
    """

    def __init__(
        self,
        capacity: int,
        number_of: Callable[[str], int],
        memory: AdapterMemory | None = None,
    ) -> None:
        """`number_of` returns the number of a loaded adapter, by its name; 0 of any other name.

        The registry of adapters bounds the names. Without capacity, no request needs a slot.
        """
        self.capacity = capacity
        self._number_of = number_of
        self._memory = memory
        self._running: dict[AdapterKey, int] = {}
        """Running requests of each resident adapter, in order of entry or latest `leave`."""

    def __iter__(self) -> Iterator[str]:
        return iter({key.name: None for key in self._running})

    def running(self, adapter: str) -> int:
        """Returns the number of running requests with `adapter`."""
        return sum(running for key, running in self._running.items() if key.name == adapter)

    def key(self, adapter: str | None) -> AdapterKey | None:
        """Returns the adapter that a name has now; None if its requests need no slot."""
        if adapter is None or not self.capacity:
            return None
        return AdapterKey(adapter, self._number_of(adapter))

    def is_ready(self, key: AdapterKey | None) -> bool:
        """Returns whether a request with an adapter can run without loading it."""
        return key is None or key in self._running

    def has_room(self) -> bool:
        """Returns whether an adapter can be loaded now."""
        return len(self._running) < self.capacity or 0 in self._running.values()

    def enter(self, key: AdapterKey) -> None:
        """Counts a request that starts to run, and loads its adapter."""
        if key not in self._running and len(self._running) >= self.capacity:
            del self._running[next(key for key, running in self._running.items() if not running)]
        self._running[key] = self._running.get(key, 0) + 1
        if self._memory is not None:
            self._memory.enter(key.name)

    def leave(self, key: AdapterKey) -> None:
        """Counts the end of a request that has entered."""
        running = self._running.pop(key) - 1
        # An idle adapter keeps its slot until another one needs it, but not after it was unloaded
        # or loaded again: no new request can name it then.
        if running or self._number_of(key.name) == key.number > 0:
            self._running[key] = running
        if self._memory is not None:
            self._memory.leave(key.name)
