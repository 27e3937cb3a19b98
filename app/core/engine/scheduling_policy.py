"""Rules of the scheduler beyond the plain case. Start with `SchedulingPolicy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from msgspec import Struct

from app.core.engine.batch import Batch, Blocks, S, SchedulerLimits
from app.core.engine.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from app.core.engine.profile import SpeculationRates


class Admission(Struct, Generic[S], kw_only=True):
    """A waiting sequence that the step being made may start."""

    sequence: S
    cached: int
    """Blocks that `Blocks.find` returned."""
    spare: int
    """Blocks that must stay free."""
    budget: int
    """Tokens that the step has left, for `tokens` and `padding` of the sequence."""
    tokens: int
    padding: int = 0
    """Tokens of the step that are no tokens of the sequence, such as wrong drafts."""
    reserve: int = 0
    """The sequence needs blocks for so many tokens after `tokens`."""
    is_fetched: bool
    """True if the cache of the sequence has arrived, so that it holds blocks."""
    has_prefill: bool
    """True if the sequence computes more than its last token."""
    lets_pass: bool = False
    """Set by a policy: if the sequence does not fit, sequences behind it may start."""


class Steps(Protocol[S]):
    """The part of the scheduler that policies use."""

    limits: SchedulerLimits
    blocks: Blocks[S]
    waiting: WaitingQueue[S]
    running: list[S]
    prefilling: list[S]
    held: bool
    step: int
    """Number of the latest step, from 1. A step that is being made counts from `end_step` on."""
    under_way: int

    def missing_blocks(self, sequence: S, tokens: int) -> int:
        """Returns how many blocks a sequence lacks for its first `tokens` tokens."""


class SchedulingPolicy(Generic[S]):
    """A rule for steps: a subclass overrides the methods at which the rule has an effect.

    An engine has the same policies from its start on. The scheduler calls them in this order:
    `begin_step`; for running sequences `wanted`, `slots` and `grown`; for waiting ones `fits` and
    `started`; then `end_step`. For a sequence that leaves, it calls `finish` and `left`.
    """

    visits_decodes = False
    """True if `wanted`, `slots`, `grown` or `delivered` change decodes, not only prompts.

    Decodes cannot advance in bulk then: `make_scheduler` takes the `ExactScheduler`.
    """
    visits_step = False
    """True if the step being made visits running sequences one by one; set by `begin_step`."""
    keeps_tokens = False
    """True if a preempted sequence gets its tokens in flight, although a connector is there."""
    needs_adapters = False
    """True if only `end_step` matters, and only while an adapter runs."""
    must_wait = False
    """True if the sequence of the latest `Blocks.find` is to be looked up again later.

    Its blocks are on their way; sequences behind it may start.
    """
    next_s = inf
    """Time in seconds at which `must_wait` may change; infinity if only a step changes it."""
    step_slots = 0
    """Tokens of a step that each sequence takes besides its own."""
    start_tokens = 0
    """Tokens beyond its own for which a sequence needs blocks when it starts."""

    scheduler: Steps[S]

    def attach(self, scheduler: Steps[S]) -> None:
        """Takes the scheduler, before its first step."""
        self.scheduler = scheduler

    def begin_step(self) -> None:
        """Called before a step is made."""

    def skip_step(self) -> None:
        """Called instead of the other hooks of a step if there is nothing to compute."""

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Called when a step was made, also if it computes nothing.

        With `runs_out`, the step had no place or no token left for the next sequence.
        """

    def complete_step(self, batch: Batch[S]) -> None:
        """Called when the oldest step under way is over."""

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Returns how many tokens a running sequence computes: `tokens`, fewer, or up to `limit`.

        Blocks may still prevent them.
        """
        return tokens

    def slots(self, sequence: S, slots: int) -> int:
        """Returns the first tokens for which a running sequence needs blocks; `slots`, or more.

        May free blocks that the sequence no longer needs.
        """
        return slots

    def grown(self, sequence: S, slots: int) -> None:
        """Called when a sequence has blocks for its first `slots` tokens in a step."""

    def delivered(self, sequence: S, drafts: int, batch: Batch[S]) -> int:
        """Returns how many tokens a decode with drafts receives in a step, besides one."""
        return 0

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Returns whether a waiting sequence may start in a step; may lower its `tokens`."""
        return True

    def lacks_room(self, sequence: S, limit: int) -> bool:
        """Returns whether others may start before a waiting sequence whose blocks do not fit.

        The sequence could compute up to `limit` tokens.
        """
        return False

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Called when a waiting sequence has left the queue, and got blocks."""

    def prefill(self, sequence: S, tokens: int) -> None:
        """Called before the next `tokens` of a prompt are added to a step."""

    def defer(self, sequence: S) -> None:
        """Called for a waiting sequence that others may overtake."""

    def protects(self, sequence: S) -> bool:
        """Returns whether a running sequence must not be preempted for others now."""
        return False

    def preempt(self, sequence: S) -> None:
        """Called before a sequence is preempted."""

    def finish(self, sequence: S) -> None:
        """Called for a sequence that will not run again, before its blocks are released."""

    def keeps_blocks(self, sequence: S) -> bool:
        """Returns whether this policy frees, later, the blocks of a sequence that has left."""
        return False

    def left(self, sequence: S) -> None:
        """Called when a sequence has left the running ones, at its end or by preemption."""


def overriding(policies: Iterable[SchedulingPolicy[S]], hook: str) -> list[Any]:
    """Returns the method `hook` of each policy that overrides it.

    For hooks that are called for each sequence of each step: most policies do nothing there.
    """
    default = getattr(SchedulingPolicy, hook)
    return [
        getattr(policy, hook) for policy in policies if getattr(type(policy), hook) is not default
    ]


MakePolicies: TypeAlias = Callable[
    [SchedulerLimits, Blocks[Any], "SpeculationRates | None", Random],
    "list[SchedulingPolicy[Any]]",
]
"""Makes the policies of a simulated engine; the random numbers decide which drafts are right."""
