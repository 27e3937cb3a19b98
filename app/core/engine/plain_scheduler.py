"""A scheduler whose decodes advance in bulk.

A decode takes one token a step, needs a block every `block_size` steps and ends at a known step.
Decodes can therefore advance in bulk. Two calendars list by step the decodes that need a block, and
the decodes that end. A step costs what changes, not what runs. Sequences are visited one by one
only where blocks run out, or where the budget is too small for all. A property test compares both
ways with a plain version of the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Generic

from app.core.engine.batch import Batch, Blocks, S, SchedulerLimits
from app.core.engine.exact_scheduler import ExactScheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue

MAX_FORESIGHT = 32
"""Greatest result of `DecodeCalendar.steps_before_end`."""
_place = attrgetter("place")


class PlainScheduler(ExactScheduler[S]):
    """Advances decodes in bulk; `computed` and `written` of a decode are outdated meanwhile."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[S],
        waiting: WaitingQueue[S],
        policies: Sequence[SchedulingPolicy[S]] = (),
    ) -> None:
        super().__init__(limits, blocks, waiting, policies)
        self._leads = 0
        """Sum of `lead` over the decodes."""
        self._calendar: DecodeCalendar[S] = DecodeCalendar(blocks)

    @property
    def decoding(self) -> tuple[int, int]:
        """See `Scheduler`."""
        decodes = len(self._decoding)
        return decodes, self.step * decodes + self._leads

    def steps_before_end(self) -> int:
        """See `Scheduler`."""
        return self._calendar.steps_before_end(self.step)

    def preempt_all(self, under_way: Iterable[Batch[S]]) -> None:
        """See `Scheduler`."""
        self._end_bulk()
        super().preempt_all(under_way)

    def _continue(self, batch: Batch[S]) -> bool:
        if self.prefilling and any([policy.visits_step for policy in self.policies]):
            self._end_bulk()
            return self._continue_singly(batch)
        needs = self._calendar.needs.get(self.step, ())
        budget = self.limits.max_num_batched_tokens - len(self._decoding)
        blocks = len(needs)
        allotted: Sequence[tuple[S, int]] = ()
        prefills_last = True
        if self.prefilling:
            allotted = self._allot(budget)
            for sequence, tokens in allotted:
                blocks += self.missing_blocks(sequence, sequence.computed + tokens)
            # In bulk, all decodes get blocks before all prompts. This is the order of admission
            # unless a prompt was admitted before a decode, as one in small chunks may have been.
            start = len(self.running) - len(self.prefilling)
            prefills_last = self.running[start:] == self.prefilling
        lacks_blocks = blocks > 0 and blocks > self.blocks.free
        if budget < 0 or lacks_blocks or not prefills_last:
            self._end_bulk()
            return self._continue_singly(batch)
        self._advance(batch, needs)
        for sequence, tokens in allotted:
            self._grow(sequence, sequence.computed + tokens)
            self._prefill(sequence, tokens, batch)
        return False

    def _allot(self, budget: int) -> list[tuple[S, int]]:
        """Returns unfinished prompts, each with the tokens that it computes next."""
        allotted: list[tuple[S, int]] = []
        left = min(budget, self._prefill_left)
        for sequence in self.prefilling:
            tokens = self._wanted(sequence, left)
            if tokens > 0:
                left -= tokens
                allotted.append((sequence, tokens))
        return allotted

    def _advance(self, batch: Batch[S], needs: Sequence[S]) -> None:
        """Gives every decode a token; those in `needs` require a block for it."""
        step = self.step
        decoding = self._decoding
        decodes = len(decoding)
        batch.decodes = decoding
        batch.tokens = decodes
        batch.sequences = decodes
        batch.context = step * decodes + self._leads
        if needs:
            self._calendar.assign(step)
        ends = self._calendar.ends.pop(step, None)
        if ends:
            for sequence in sorted(ends, key=_place):
                self._end(sequence, batch)
                if sequence.decodes:
                    self._calendar.ends.setdefault(step + 1, []).append(sequence)
                else:
                    self._leads -= sequence.lead
            # A new list: `batch` keeps the old one until its step is over.
            self._decoding = [sequence for sequence in decoding if sequence.decodes]

    def _end_visits(self) -> None:
        """Lets all decodes advance in bulk again."""
        super()._end_visits()
        for sequence in self._decoding:
            self._start_decode(sequence)

    def _end_bulk(self) -> None:
        """Brings all decodes up to date, and clears the calendars."""
        for sequence in self._decoding:
            sequence.computed = self.step + sequence.lead
            sequence.written = sequence.computed - sequence.prompt_tokens + 1
        self._calendar.clear()
        self._leads = 0

    def _start_decode(self, sequence: S) -> None:
        """Lets a decode advance in bulk (rule 6) from the next step on."""
        # A step computes one token of each decode, so the difference stays, and no step has to add
        # one to `computed` of thousands of sequences.
        sequence.lead = sequence.computed - self.step
        self._leads += sequence.lead
        self._calendar.add(sequence)

    def _stop_decode(self, sequence: S) -> None:
        """Takes a decode out of the calendars."""
        super()._stop_decode(sequence)
        self._leads -= sequence.lead
        self._calendar.remove(sequence)


class DecodeCalendar(Generic[S]):
    """Lists decodes by the numbers of steps. `lead` of a decode in it does not change."""

    def __init__(self, blocks: Blocks[S]) -> None:
        self._blocks = blocks
        self._block_size = blocks.block_size
        self.needs: dict[int, list[S]] = {}
        """Decodes that need a block, by step."""
        self.ends: dict[int, list[S]] = {}
        """Decodes that get their last token, by step."""

    def add(self, sequence: S) -> None:
        """Enters a decode."""
        self.ends.setdefault(_last_step(sequence), []).append(sequence)
        room = sequence.held * self._block_size
        if room < _tokens(sequence):
            self.needs.setdefault(room - sequence.lead, []).append(sequence)

    def remove(self, sequence: S) -> None:
        """Removes a decode, if it is there."""
        need = sequence.held * self._block_size - sequence.lead
        for decodes in (self.ends.get(_last_step(sequence), []), self.needs.get(need, [])):
            if sequence in decodes:
                decodes.remove(sequence)

    def clear(self) -> None:
        """Removes all decodes."""
        self.needs.clear()
        self.ends.clear()

    def assign(self, step: int) -> None:
        """Assigns a block to each decode that needs one in a step."""
        needs: Sequence[S] = self.needs.pop(step)
        if len(needs) > 1:
            # Blocks go out in the order of admission, which decides about evictions from the cache.
            needs = sorted(needs, key=_place)
        grow = self._blocks.grow
        size = self._block_size
        later = []
        for sequence in needs:
            grow(sequence, 1)
            sequence.held = held = sequence.held + 1
            # The body of `_tokens`: this loop runs for each block of a simulation.
            if held * size < sequence.prompt_tokens + sequence.output_tokens - 1 + sequence.stops:
                later.append(sequence)
        if later:
            self.needs.setdefault(step + size, []).extend(later)

    def steps_before_end(self, step: int) -> int:
        """Returns how many steps from `step` on come before the first possible end of a decode."""
        ends = self.ends
        number = step
        last = step + MAX_FORESIGHT
        while number < last and number not in ends:
            number += 1
        return number - step


def _last_step(sequence: S) -> int:
    """Returns the last step of a decode; a stopped one computes a token after its end."""
    step = sequence.prompt_tokens + sequence.output_tokens - 2 - sequence.lead
    return step + sequence.last


def _tokens(sequence: S) -> int:
    """Returns the tokens that a decode has computed at its end."""
    return sequence.prompt_tokens + sequence.output_tokens - 1 + sequence.stops
