"""vLLM's rules for a step told in the plainest way: every sequence is looked at in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.engine.core.batch import SchedulerLimits


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
    first: bool = False

    @property
    def known(self) -> int:
        return self.prompt + self.written

    @property
    def decodes(self) -> bool:
        """It computes the token that came last, and no part of its prompt, as far as its steps are made."""
        return self.written > 0 and self.computed == self.known - 1 and not self.again

    again: bool = False
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
        accepted: Callable[[int], int],
    ) -> None:
        """Each decode has so many `drafts`, of which `accepted` are right."""
        self.limits, self.size, self.caching = limits, size, caching
        self.paused = False
        self.free: list[tuple[Plain, int] | None] = [None] * blocks
        """Free for the longest time first; what a sequence that comes back would find there, if anything."""
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.fetching: list[Plain] = []
        self.under_way: list[list[Plain]] = []
        """Who gets its last token, by step."""
        self.preemptions = self.arrivals = 0
        self._drafts, self._accepted = drafts, accepted

    @property
    def idle(self) -> bool:
        return not (self.running or self.fetching) and (self.paused or not self.waiting)

    def add(self, it: Plain) -> None:
        self.arrivals += 1
        it.arrived = self.arrivals
        self._wait(it)

    def remove(self, it: Plain) -> None:
        for some in (self.waiting, self.running, self.fetching):
            if it in some:
                some.remove(it)
        self._release(it, 0)
        self.free = [None if label and label[0] is it else label for label in self.free]

    def fetched(self, it: Plain) -> None:
        self.fetching.remove(it)
        it.computed, it.remote = it.prompt - 1, False
        it.first = True  # those before it may want the very blocks that it has
        self._wait(it)

    def complete(self) -> None:
        for it in self.under_way.pop(0):
            if it in self.running or it in self.waiting:
                self.remove(it)

    def _wait(self, it: Plain) -> None:
        self.waiting.append(it)
        self.waiting.sort(key=lambda it: (not it.first, it.arrived))

    def schedule(self) -> tuple[object, ...] | None:
        """A step: tokens, what decodes have behind them, what prefills look back at, and who is in it."""
        budget, preempted = self.limits.max_num_batched_tokens, self.preemptions
        given: dict[Plain, int] = {}
        place = 0
        while place < len(self.running) and budget > 0:
            it = self.running[place]
            place += 1
            tokens = 0 if it.last else min(self._wanted(it), budget, self._most)
            while tokens and it in self.running and self._lacks(it, it.computed + tokens) > len(self.free):
                victim = self._victim()
                if victim in given:  # who is less important may stand before
                    budget += given.pop(victim)
                    place -= 1
                self._preempt(victim)
            if it not in self.running:
                break
            if tokens:
                self._take(it, self._lacks(it, it.computed + tokens))
                given[it] = tokens
                budget -= tokens
        if self.preemptions == preempted and not self.paused:
            self._admit(given, budget)
        step = self._computed(given)
        if step is None and self.preemptions > preempted and not self.under_way:
            return self.schedule()
        return step

    @property
    def _most(self) -> int:
        return self.limits.long_prefill_token_threshold or self.limits.max_num_batched_tokens

    def _wanted(self, it: Plain) -> int:
        drafts = min(self._drafts, it.output - it.written - 1) if it.decodes else 0
        return it.known - it.computed + drafts

    def _victim(self) -> Plain:
        if self.limits.by_priority:
            return max(self.running, key=lambda it: (it.priority, it.arrived))
        return self.running[-1]

    def _admit(self, given: dict[Plain, int], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            it = self.waiting[0]
            found = 0
            if not it.held:
                if self._blocks(it.known) > len(self.free):
                    return
                found = self._found(it)
                if it.remote:
                    self.fetching.append(self.waiting.pop(0))
                    self._find(it, found)
                    self._take(it, self._lacks(it, it.prompt))
                    continue
                it.computed = found * self.size
            tokens = min(it.known - it.computed, self._most)
            if tokens > budget and not self.limits.enable_chunked_prefill:
                return
            self.running.append(self.waiting.pop(0))
            given[it] = tokens = min(tokens, budget)
            budget -= tokens
            self._find(it, found)
            self._take(it, self._lacks(it, it.computed + tokens))

    def _computed(self, given: dict[Plain, int]) -> tuple[object, ...] | None:
        """Count the step; whoever has computed all that it knew gets a token."""
        decodes = [it for it in given if it.decodes]
        prefills = [it for it in given if it not in decodes]
        context = sum(it.computed for it in decodes)
        attention = sum(given[it] * (it.computed + given[it] / 2) for it in prefills)
        drafted = []
        for it in decodes:
            right = self._accepted(given[it] - 1) if given[it] > 1 else 0
            drafted.append((given[it] - 1, right) if given[it] > 1 else None)
            it.computed += 1 + right
            it.written += 1 + right
        for it in prefills:
            it.computed += given[it]
        sampled = [it for it in prefills if it.computed == it.known]
        for it in sampled:
            it.again = False
            it.written += 1
        ends = [it for it in (*decodes, *sampled) if it.written >= it.output]
        for it in ends:
            it.last, it.written = True, max(it.written, it.output)
        if not given:
            return None
        self.under_way.append(ends)
        tokens = sum(given.values())
        counted = tokens, len(given), len(prefills), context, attention
        return (*counted, drafted, *(_numbers(some) for some in (decodes, sampled, ends, self.running)))

    # Blocks.

    def _blocks(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def _lacks(self, it: Plain, tokens: int) -> int:
        return max(0, self._blocks(tokens) - it.held)

    def _found(self, it: Plain) -> int:
        """Its blocks that nobody took meanwhile, from the first one on."""
        found = 0
        while (it, found) in self.free and (found + 1) * self.size < it.known:
            found += 1
        return found

    def _find(self, it: Plain, found: int) -> None:
        """Have what was found; the others of its own are like any."""
        for place in range(found):
            self.free.remove((it, place))
        self.free = [None if label and label[0] is it else label for label in self.free]
        it.held += found

    def _take(self, it: Plain, count: int) -> None:
        assert len(self.free) >= count
        del self.free[:count]
        it.held += count

    def _release(self, it: Plain, findable: int) -> None:
        self.free += [
            (it, place) if self.caching and place < findable else None for place in reversed(range(it.held))
        ]
        it.held = 0

    def _preempt(self, it: Plain) -> None:
        """What its newest token has brought is not known while a step is under way: no block has its hash."""
        computed = it.computed
        if it.decodes and self.under_way:
            computed = max(computed - 1, min(computed, it.prompt))
        self.running.remove(it)
        self._release(it, computed // self.size)
        it.computed, it.again = 0, True
        it.preempted += 1
        self.preemptions += 1
        it.first = False
        self._wait(it)


def _numbers(some: Sequence[Plain]) -> list[int]:
    return [it.number for it in some]
