"""The scheduler of steps:

no block lost, no budget broken, nobody forgotten, however requests come and go.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from app.core.engine.batch import Batch, SchedulerLimits, SchedulerRules, SequenceState
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue
from app.shared.step_policies.choice import policies_of


@dataclass(eq=False)
class Plain:
    """A sequence: what it is asked for, and how far it is."""

    number: int
    prompt: int
    output: int
    priority: int
    remote: bool
    arrived: int = 0
    computed: int = 0
    written: int = 0
    held: int = 0
    preempted: int = 0
    last: bool = False
    overruns: bool = False
    """It computes one more step, because its drafts were right that completed it."""
    rejected: int = 0
    """Wrong drafts of the step under way."""
    first: bool = False
    place: int = 0
    """Number of the transfer of its cache."""
    order: int = 0
    """Place among those that wait: a preempted one goes before all that arrived."""

    @property
    def known_tokens(self) -> int:
        return self.prompt + self.written

    @property
    def decodes(self) -> bool:
        """It computes the token that came last, and no part of its prompt, as far as its steps are
        made.
        """
        return self.written > 0 and self.computed == self.known_tokens - 1 and not self.recomputes

    recomputes: bool = False
    """It lost its blocks, and has not computed again all that it had."""


class PlainScheduler:
    """`blocks` of `size` tokens, each of which has a place in the line of those that are free."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: int,
        size: int,
        caching: bool,
        drafts: int,
        accepted: Callable[[object, int], int],
    ) -> None:
        """Each decode has so many `drafts`, of which `accepted` are right."""
        self.limits = limits
        self.size = size
        self.caching = caching
        self.paused = False
        self.free: list[tuple[Plain, int] | None] = [None] * blocks
        """Free for the longest time first; what a sequence that comes back would find there, if
        anything.
        """
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.fetching: list[Plain] = []
        self.abandoned: list[Plain] = []
        """Sequences that were removed while their cache arrives."""
        self.under_way: list[tuple[list[Plain], dict[Plain, int]]] = []
        """Who gets its last token, and whose drafts were wrong, by step."""
        self.preemptions = self.arrivals = self.steps = self.transfers = 0
        self.prompts_at = -limits.prefill_schedule_interval
        """Number of the last step with prompts."""
        self.backlog = False
        self._pool = blocks
        self._slots = limits.draft_slots if drafts else 0
        self._paddings: dict[Plain, int] = {}
        """Drafts of those that the step admits as if they were decodes."""
        self._lookahead = limits.lookahead if drafts else 0
        self._drafts = drafts
        self._accepted = accepted

    @property
    def idle(self) -> bool:
        is_empty = not self.waiting or (self.paused and not self._holds_blocks())
        return is_empty and not (self.running or self.fetching)

    @property
    def transfers_left(self) -> list[Plain]:
        """Sequences whose cache arrives, the oldest first."""
        return sorted([*self.fetching, *self.abandoned], key=lambda sequence: sequence.place)

    def _holds_blocks(self) -> bool:
        return any(sequence.held for sequence in self.waiting)

    def add(self, sequence: Plain) -> None:
        self.arrivals += 1
        sequence.arrived = sequence.order = self.arrivals
        self._wait(sequence)

    def remove(self, sequence: Plain) -> None:
        if sequence in self.fetching:  # its cache still arrives in its blocks
            self.fetching.remove(sequence)
            self.abandoned.append(sequence)
            return
        for places in (self.waiting, self.running):
            if sequence in places:
                places.remove(sequence)
        self._release(sequence, 0)
        self.free = [None if label and label[0] is sequence else label for label in self.free]

    def fetched(self, sequence: Plain) -> None:
        if sequence in self.abandoned:
            self.abandoned.remove(sequence)
            self.remove(sequence)
            return
        self.fetching.remove(sequence)
        sequence.computed = sequence.prompt - 1
        sequence.remote = False
        sequence.first = True  # those before it may want the very blocks that it has
        sequence.order = sequence.place
        self._wait(sequence)

    def complete(self) -> None:
        ends, rejected = self.under_way.pop(0)
        for sequence, drafts in rejected.items():
            sequence.rejected -= drafts
        for sequence in ends:
            if sequence in self.running or sequence in self.waiting:
                self.remove(sequence)

    def _wait(self, sequence: Plain) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda sequence: (not sequence.first, sequence.order))

    def schedule(self) -> tuple[object, ...] | None:
        """A step:

        tokens, what decodes have behind them, what prefills look back at, and who is in it.
        """
        slots = self._slots
        budget = self.limits.max_num_batched_tokens
        preempted = self.preemptions
        scheduled: dict[Plain, int] = {}
        all_of_them = len(self.running) + len(self.waiting) + len(self.fetching)
        if not all_of_them:
            return None
        self._limit(all_of_them)
        held = self._holds_prompts()
        prompts = False
        for sequence in list(self.running):
            if sequence not in self.running or budget <= slots:
                continue
            tokens = (
                0
                if sequence.last and not sequence.overruns
                else min(self._wanted(sequence), budget - slots, self._max_tokens_a_sequence)
            )
            if held and not sequence.decodes:
                continue
            while (
                tokens
                and sequence in self.running
                and self._lacks(sequence, self._slot_count(sequence, tokens)) > len(self.free)
            ):
                victim = self._victim()
                if victim in scheduled:  # who is less important may stand before
                    given = scheduled.pop(victim)
                    budget += given + slots
                    if not victim.decodes:  # its blocks had their hashes when they were assigned
                        victim.computed += given
                self._preempt(victim)
            if sequence not in self.running and self.limits.rules.passes_self_preempted:
                continue
            if sequence not in self.running:
                break
            if tokens:
                self._take(sequence, self._lacks(sequence, self._slot_count(sequence, tokens)))
                scheduled[sequence] = tokens
                budget -= tokens + slots
        prompts = any(not sequence.decodes for sequence in scheduled)
        if self.preemptions == preempted and (not self.paused or self._holds_blocks()):
            prompts |= self._admit(scheduled, budget, held)
        if scheduled:
            self.steps += 1
        if prompts:
            self.prompts_at = self.steps
        if self.preemptions == preempted and not held:
            self.backlog = not all(sequence.first for sequence in self.waiting)
        step = self._computed(scheduled)
        if step is None and self.preemptions > preempted and not self.under_way:
            return self.schedule()
        return step

    def _limit(self, sequences: int) -> None:
        """Set how many tokens of one sequence are in the step."""
        limits = self.limits
        self._max_tokens_a_sequence = limits.long_prefill_token_threshold
        if limits.long_prefill_token_threshold_adaptive:
            self._max_tokens_a_sequence = max(
                self._max_tokens_a_sequence, limits.max_num_batched_tokens // sequences
            )
        if not limits.long_prefill_token_threshold or sequences == 1:
            self._max_tokens_a_sequence = limits.max_num_batched_tokens

    def _holds_prompts(self) -> bool:
        """Whether prompts wait for a later step."""
        interval = self.limits.prefill_schedule_interval
        if not self.limits.rules.spaces_prefill or self.backlog:
            return False
        others = any(sequence.decodes or sequence.last for sequence in self.running)
        return others and self.steps + 1 - self.prompts_at < interval

    def _wanted(self, sequence: Plain) -> int:
        drafts = self._drafts if sequence.decodes else 0
        return sequence.known_tokens - sequence.computed + drafts

    def _slot_count(self, sequence: Plain, tokens: int) -> int:
        return sequence.computed + sequence.rejected + tokens + self._lookahead

    def _victim(self) -> Plain:
        if self.limits.by_priority:
            return max(self.running, key=lambda sequence: (sequence.priority, sequence.arrived))
        return self.running[-1]

    def _reserve(self, whole: list[Plain]) -> int:
        """Blocks that a transfer leaves to others, and those of its own first drafts."""
        others = [sequence for sequence in self.waiting if sequence.held]
        others += self.fetching
        for sequence in self.running:
            if not (sequence.decodes or sequence.last or sequence in whole):
                others.append(sequence)
        extra = 1 + self._drafts + self._lookahead if self._drafts else 0
        reserved = sum(self._lacks(sequence, sequence.known_tokens + extra) for sequence in others)
        if others or self.running or self.under_way:  # only who is alone may take all blocks
            reserved += self._blocks(extra)
        return reserved

    def _admit(self, scheduled: dict[Plain, int], budget: int, held: bool) -> bool:
        """Let some in; returns whether one of them has more than a token to compute."""
        prompts = False
        slots = self._slots
        continued = list(scheduled)
        whole: list[Plain] = []  # prompts that are computed at once
        self._paddings = {}
        continues_prompts = any(not sequence.decodes for sequence in continued)
        while self.waiting and budget > slots and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            if self.paused and not sequence.held:
                return prompts
            cached = 0
            free = len(self.free)
            if self.running:
                free -= int(self.limits.watermark * (self._pool + 1))
            if sequence.held and free < 0:
                return prompts
            if not sequence.held:
                if sequence.remote:
                    free -= self._reserve(whole)
                if self._blocks(sequence.known_tokens) > free:
                    return prompts
                cached = self._count_cached_blocks(sequence)
                if sequence.remote:
                    self.fetching.append(self.waiting.pop(0))
                    self.transfers += 1
                    sequence.place = self.transfers
                    self._find(sequence, cached)
                    self._take(sequence, self._lacks(sequence, sequence.prompt))
                    continue
                sequence.computed = cached * self.size
            is_partial = sequence.computed < sequence.known_tokens - 1
            if is_partial and held:
                return prompts
            tokens = min(sequence.known_tokens - sequence.computed, self._max_tokens_a_sequence)
            padding = 0
            if not is_partial and not continues_prompts and (continued or sequence.computed):
                padding = self._drafts  # it looks like a decode
            if tokens > budget - slots and not self.limits.enable_chunked_prefill:
                return prompts
            if padding and 1 + padding > budget - slots:
                return prompts
            tokens = min(tokens, budget - slots)
            wanted_slots = self._slot_count(sequence, tokens + padding)
            if self._lacks(sequence, wanted_slots) > free:
                return prompts
            prompts |= is_partial
            self.running.append(self.waiting.pop(0))
            scheduled[sequence] = tokens + padding
            self._paddings[sequence] = padding
            if tokens == sequence.known_tokens - sequence.computed and not sequence.held:
                whole.append(sequence)
            budget -= tokens + padding + slots
            self._find(sequence, cached)
            self._take(sequence, self._lacks(sequence, wanted_slots))
        return prompts

    def _computed(self, scheduled: dict[Plain, int]) -> tuple[object, ...] | None:
        """Count the step; whoever has computed all that it knew gets a token."""
        decodes = [sequence for sequence in scheduled if sequence.decodes]
        prefills = [sequence for sequence in scheduled if sequence not in decodes]
        rejected = {sequence: padding for sequence, padding in self._paddings.items() if padding}
        self._paddings = {}
        fetched = [sequence for sequence in prefills if sequence.first]
        context = sum(sequence.computed for sequence in (*decodes, *fetched))
        attention = sum(
            (scheduled[sequence] - rejected.get(sequence, 0))
            * (sequence.computed + (scheduled[sequence] - rejected.get(sequence, 0)) / 2)
            for sequence in prefills
            if not sequence.first
        )
        drafted = []
        ends = []
        for sequence in decodes:
            left = max(0, sequence.output - sequence.written - 1)
            count = scheduled[sequence] - 1
            right = self._accepted(sequence, count) if count else 0
            given = min(right, left)
            drafted.append((count, right, given) if count else None)
            rejected[sequence] = count - given
            sequence.computed += 1 + given
            sequence.written += 1 + given
            sequence.overruns = left > 0 and given == left
            if given == left and not sequence.last:
                ends.append(sequence)
        for sequence in prefills:
            sequence.computed += scheduled[sequence] - rejected.get(sequence, 0)
        sampled = [sequence for sequence in prefills if sequence.computed == sequence.known_tokens]
        for sequence in sampled:
            sequence.recomputes = False
            sequence.written += 1
        ends += [sequence for sequence in sampled if sequence.written >= sequence.output]
        ends.sort(key=list(scheduled).index)
        for sequence in ends:
            sequence.last, sequence.written = True, max(sequence.written, sequence.output)
        if not scheduled:
            return None
        for sequence, drafts in rejected.items():
            sequence.rejected += drafts
        self.under_way.append((ends, rejected))
        tokens = sum(scheduled.values())
        counted = tokens, len(scheduled), len(prefills) - len(fetched), context, attention
        return (
            *counted,
            drafted,
            *(_numbers(sequences) for sequences in (decodes, sampled, ends, self.running)),
        )

    # Blocks.

    def _blocks(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def _lacks(self, sequence: Plain, tokens: int) -> int:
        return max(0, self._blocks(tokens) - sequence.held)

    def _count_cached_blocks(self, sequence: Plain) -> int:
        """Its blocks that nobody took meanwhile, from the first one on."""
        cached = 0
        while (sequence, cached) in self.free and (cached + 1) * self.size < sequence.known_tokens:
            cached += 1
        return cached

    def _find(self, sequence: Plain, cached: int) -> None:
        """Have what was found; the others of its own are like any."""
        for place in range(cached):
            self.free.remove((sequence, place))
        self.free = [None if label and label[0] is sequence else label for label in self.free]
        sequence.held += cached

    def _take(self, sequence: Plain, count: int) -> None:
        assert len(self.free) >= count
        del self.free[:count]
        sequence.held += count

    def _release(self, sequence: Plain, findable: int) -> None:
        """Blocks that are not full are taken next, the others last."""
        full = findable
        if sequence.last:
            full = min(sequence.held, (sequence.prompt + max(0, sequence.output - 1)) // self.size)
        places = reversed(range(min(full, sequence.held)))
        self.free[:0] = [None] * (sequence.held - full)
        self.free += [
            (sequence, place) if self.caching and place < findable else None for place in places
        ]
        sequence.held = 0

    def _preempt(self, sequence: Plain) -> None:
        """What its newest token has brought is not known while a step is under way:

        no block has its hash.
        """
        computed = sequence.computed
        if sequence.decodes and self.under_way:
            computed = max(computed - 1, min(computed, sequence.prompt))
        self.running.remove(sequence)
        self._release(sequence, computed // self.size)
        sequence.computed = 0
        sequence.recomputes = True
        sequence.preempted += 1
        self.preemptions += 1
        sequence.first = False
        sequence.order = -self.preemptions
        self._wait(sequence)


def _numbers(sequences: Sequence[Plain]) -> list[int]:
    return [sequence.number for sequence in sequences]


BLOCK = 4
POOL = 24
"""Tokens of a sequence that has the whole pool for itself."""


class Turns:
    """Drafts of which none, then one, then two and so on are right, as far as there are so many."""

    def __init__(self, drafts: int) -> None:
        self.padding = drafts
        self._call_count = 0

    def propose(self, sequence: SequenceState, most_drafts: int) -> int:
        return self.padding

    def accepted(self, sequence: object, drafts: int) -> int:
        self._call_count += 1
        return self._call_count % (drafts + 1)


class Visits(SchedulingPolicy[SequenceState]):
    """A rule that changes nothing, but that every sequence is visited for."""

    visits_decodes = True


MakeScheduler = Callable[
    [
        SchedulerLimits,
        CountedBlocks,
        WaitingQueue[SequenceState],
        Sequence[SchedulingPolicy[SequenceState]],
    ],
    Scheduler[SequenceState],
]


class Pair:
    """The scheduler and the plain one, driven by the same actions; each step of both."""

    def __init__(
        self,
        requests: Sequence[tuple[int, int, int, bool]],
        limits: SchedulerLimits,
        caching: bool,
        drafts: int,
        is_exact: bool,
        make: MakeScheduler = make_scheduler,
    ) -> None:
        self.blocks = CountedBlocks(POOL, BLOCK, caching)
        speculation = Turns(drafts) if drafts else None
        queue: WaitingQueue[SequenceState] = WaitingQueue()
        policies = policies_of(limits, self.blocks, speculation)
        if is_exact:
            policies.append(Visits())
        self.scheduler: Scheduler[SequenceState] = make(limits, self.blocks, queue, policies)
        self.plain = PlainScheduler(
            limits,
            POOL - 1,
            size=BLOCK,
            caching=caching,
            drafts=drafts,
            accepted=Turns(drafts).accepted,
        )
        self.all = [SequenceState(*request) for request in requests]
        self.plain_all = [Plain(number, *request) for number, request in enumerate(requests)]
        self.unfinished: set[int] = set()
        self._come = 0
        self._under_way: deque[Batch[SequenceState]] = deque()

    def act(self, action: str, number: int) -> None:
        if action == "add" and self._come < len(self.all):
            self.scheduler.waiting.add(self.all[self._come])
            self.plain.add(self.plain_all[self._come])
            self.unfinished.add(self._come)
            self._come += 1
        elif action == "abort" and number in self.unfinished:
            self.unfinished.remove(number)
            self.scheduler.remove(self.all[number])
            self.plain.remove(self.plain_all[number])
        elif action == "fetched" and self.plain.transfers_left:
            first = self.plain.transfers_left[0]
            self.scheduler.fetched(self.all[first.number])
            self.plain.fetched(first)
        elif action == "pause":
            self.scheduler.paused = self.plain.paused = not self.plain.paused
        elif action == "step":
            self.step()

    def step(self) -> bool:
        """Make one if two are not under way, else finish the oldest; False when there was nothing
        to do.
        """
        if len(self._under_way) < 2:
            batch = self.scheduler.schedule()
            assert self._figures_of(batch) == self.plain.schedule()
            assert self.scheduler.preemptions == self.plain.preemptions
            assert self.blocks.free == len(self.plain.free)
            if batch is not None:
                self._under_way.append(batch)
                return True
        if not self._under_way:
            return False
        batch = self._under_way.popleft()
        self.unfinished -= {self.all.index(sequence) for sequence in batch.ends}
        self.scheduler.complete(batch)
        self.plain.complete()
        return True

    def _figures_of(self, batch: Batch[SequenceState] | None) -> tuple[object, ...] | None:
        if batch is None:
            return None
        groups = batch.decodes, batch.prefilled, batch.ends, self.scheduler.running
        drafted = [
            astuple(batch.drafts[sequence]) if sequence in batch.drafts else None
            for sequence in batch.decodes
        ]
        counted = batch.tokens, batch.sequences, batch.prefills, batch.context, batch.attention
        return (
            *counted,
            drafted,
            *([self.all.index(sequence) for sequence in them] for them in groups),
        )


REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 20), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=9,
)
LIMITS = st.builds(
    SchedulerLimits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([8, 16, 64]),
    long_prefill_token_threshold=st.sampled_from([0, 5]),
    long_prefill_token_threshold_adaptive=st.booleans(),
    enable_chunked_prefill=st.booleans(),
    watermark=st.sampled_from([0.0, 0.0, 0.2]),
    prefill_schedule_interval=st.sampled_from([1, 4]),
    draft_slots=st.sampled_from([0, 0, 2]),
    lookahead=st.sampled_from([0, 0, 3]),
    by_priority=st.booleans(),
    rules=st.builds(
        SchedulerRules, spaces_prefill=st.booleans(), passes_self_preempted=st.booleans()
    ),
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "step", "step", "step", "step", "abort", "fetched", "pause"]
        ),
        st.integers(0, 8),
    ),
    min_size=40,
    max_size=120,
)


@settings(max_examples=100, deadline=None)
@given(REQUESTS, LIMITS, ACTIONS, st.booleans(), st.sampled_from([0, 0, 3]), st.booleans())
def test_every_step_equals_the_step_of_a_simple_reference_scheduler(
    requests: Sequence[tuple[int, int, int, bool]],
    limits: SchedulerLimits,
    actions: Sequence[tuple[str, int]],
    caching: bool,
    drafts: int,
    is_exact: bool,
) -> None:
    play(Pair(requests, limits, caching, drafts, is_exact=is_exact), actions)


def play(pair: Pair, actions: Sequence[tuple[str, int]]) -> None:
    for action, number in actions:
        pair.act(action, number)
    assert pair.scheduler.idle == pair.plain.idle
    pair.scheduler.paused = pair.plain.paused = False
    for _ in pair.all:
        pair.act("add", 0)
    while pair.step() or pair.plain.transfers_left:
        pair.act("fetched", 0)
    if (
        not pair.plain.waiting
    ):  # a prompt that is larger than a step waits for ever where it may not be cut
        assert (
            pair.scheduler.idle and pair.blocks.free == pair.blocks.capacity and not pair.unfinished
        )
