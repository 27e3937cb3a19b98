"""What a scheduler schedules: sequences, as it sees them, and steps; and what it relies on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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


class SequenceState:
    """What the scheduler knows of a sequence."""

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

    def count(self, sequence: S) -> int:
        """Tokens of its reply that a sequence gets."""
        return 1 + self.drafts[sequence][1] if sequence in self.drafts else 1


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


class Waiting(Protocol[S]):
    """The sequences that wait, and which of them is next."""

    def __len__(self) -> int: ...

    def add(self, sequence: S, number: int | None = None, first: bool = False) -> None:
        """Adds a sequence, at the place of its `number` in order of arrival, or before all others."""

    def head(self) -> S | None:
        """Returns the next one; None when none may start."""

    def pop(self, sequence: S) -> None:
        """Takes out the `head`: it has a place now."""

    def left(self, sequence: S) -> None:
        """Notes that a sequence no longer has its place."""

    def remove(self, sequence: S) -> bool:
        """Takes a sequence out; False when it does not wait."""


class Speculation(Protocol):
    """Drafts that are checked in the step of a decode (rule 5)."""

    drafts: int
    """Tokens drafted a step."""

    def accepted(self, drafts: int) -> int:
        """How many of `drafts` tokens were right."""


class FirstCome(Generic[S]):
    """First come, first served; who was preempted, or has blocks, comes first."""

    def __init__(self) -> None:
        self._queue: deque[S] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: S, number: int | None = None, first: bool = False) -> None:
        if sequence.preemptions or first:
            self._queue.appendleft(sequence)
        else:
            self._queue.append(sequence)

    def head(self) -> S | None:
        return self._queue[0] if self._queue else None

    def pop(self, sequence: S) -> None:
        self._queue.popleft()

    def left(self, sequence: S) -> None:
        """Places are all the same here."""

    def remove(self, sequence: S) -> bool:
        try:
            self._queue.remove(sequence)
        except ValueError:
            return False
        return True
