"""What a scheduler schedules: sequences, as it sees them, and steps; and what it relies on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from random import Random
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """vLLM's options of the same names; tokens, sequences."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 is no limit."""
    enable_chunked_prefill: bool = True
    by_priority: bool = False


class Phase(IntEnum):
    """What a sequence does that is not over."""

    QUEUED = 0
    PREFILL = 1
    TRANSFER = 2
    """The cache of its prompt, which was computed elsewhere, is on its way."""
    DECODE = 3
    PREEMPTED = 4


class SequenceStatus(Struct, frozen=True, gc=False):
    """How far a sequence has come; read from outside now and then.

    `computed` tokens of the prompt are there or under way; `held` blocks count where steps are shared.
    Moments are monotonic seconds: since when it runs, and when its first token was due.
    """

    phase: Phase
    computed: int
    held: int
    scheduled_s: float | None
    first_s: float | None


class SequenceState:
    """What the scheduler knows of a sequence."""

    adapter: str | None = None
    """The LoRA adapter that must be in memory while it runs."""

    __slots__ = (
        "arrived",
        "computed",
        "decodes",
        "held",
        "last",
        "lead",
        "loaded",
        "output_tokens",
        "place",
        "preemptions",
        "priority",
        "prompt_tokens",
        "remote",
        "running",
        "written",
    )

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, remote: bool = False
    ) -> None:
        """Token counts; a sequence without output (as for pooling) ends with its prefill.

        With `remote` its prefill was done elsewhere: the cache of its prompt comes over the net.
        """
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.remote = remote
        self.arrived = 0
        """Its number in order of arrival."""
        self.computed = 0
        """Tokens whose KV is scheduled; of a decode that advances in bulk see `lead`."""
        self.written = 0
        """Tokens sampled or in flight; the same holds for it."""
        self.held = 0
        """Blocks."""
        self.running = False
        """It has a place among `max-num-seqs`."""
        self.place = 0
        """The number of its admission: those that run do so in this order."""
        self.decodes = False
        """It has its first token, or that is in flight, and its last is not."""
        self.last = False
        """Its last token is in flight."""
        self.lead = 0
        """Of a decode: `computed` less the number of the step that comes next."""
        self.preemptions = 0
        self.loaded = 0
        """Tokens behind the blocks that were found for it that come from elsewhere, and at once."""

    def preempted(self) -> None:
        """Is called when it has lost its blocks, and waits again."""

    @property
    def last_step(self) -> int:
        """The number of the step in which a decode gets its last token."""
        return self.prompt_tokens + self.output_tokens - 2 - self.lead

    @property
    def known(self) -> int:
        """Tokens that it has, computed or not."""
        return self.prompt_tokens + self.written


S = TypeVar("S", bound=SequenceState)


class Batch(Generic[S]):
    """One step: what it holds, and whose tokens are there at its end.

    `decodes`, then `prefilled` are in order of their tokens; `ends` are those that got their last one.
    """

    __slots__ = (
        "admitted",
        "attention",
        "context",
        "decodes",
        "drafts",
        "ends",
        "prefilled",
        "prefills",
        "sequences",
        "tokens",
    )

    def __init__(self) -> None:
        self.tokens = 0
        self.sequences = 0
        """That got tokens."""
        self.context = 0
        """Tokens computed before, of all decodes."""
        self.attention = 0.0
        """Tokens of each prefill, times those that they look back at on average."""
        self.prefills = 0
        """Sequences with a part of their prompt in it."""
        self.admitted: list[S] = []
        """Who got a place in it."""
        self.decodes: Sequence[S] = ()
        self.prefilled: list[S] = []
        self.ends: list[S] = []
        self.drafts: dict[S, tuple[int, int]] = {}
        """By speculation: tokens that were drafted for a decode, and how many of them were right."""


class Blocks(Protocol[S]):  # type: ignore[misc]
    """The pool that sequences take their blocks from."""

    block_size: int
    """Tokens."""
    capacity: int
    """Blocks, without the null block."""

    @property
    def free(self) -> int:
        """Blocks that could be taken now."""

    def find(self, sequence: S, tokens: int) -> int:
        """Blocks of the first `tokens` tokens that are there already; never the one of the last token."""

    def fits(self, sequence: S, tokens: int, found: int) -> bool:
        """Whether all its blocks could be had now, `found` of which it has found."""

    def begin(self, sequence: S, found: int, count: int) -> None:
        """Give it what it has found, and `count` blocks more."""

    def grow(self, sequence: S, count: int) -> None:
        """Give it `count` blocks more."""

    def filled(self, sequence: S) -> None:
        """More of its prompt is computed: `computed` tokens of what it has."""

    def release(self, sequence: S, held: int, findable: int) -> None:
        """Take its blocks back; a preempted one may find the first `findable` again."""

    def forget(self, sequence: S) -> None:
        """It does not come back."""


class Drafts:
    """A draft for each of `rates`, the chance that it is right, given that all before it were (rule 5)."""

    def __init__(self, rates: Sequence[float], rng: Random) -> None:
        self.drafts = len(rates)
        """Tokens drafted a step."""
        self._rates = rates
        self._rng = rng

    def accepted(self, drafts: int) -> int:
        """Returns how many of the first `drafts` are right, up to the first that is not."""
        for number, rate in enumerate(self._rates[:drafts]):
            if self._rng.random() >= rate:
                return number
        return drafts
