"""Decodes that advance in bulk: when they need a block, and when they end."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Generic

from app.core.engine.batch import Blocks, S

MAX_FORESIGHT = 32
"""Greatest result of `DecodeCalendar.steps_before_end`."""
_place = attrgetter("place")


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
