"""Use of pods over time."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from itertools import zip_longest

FIRST_BIN_S = 1 / 16
MAX_BINS = 512


class Timeline:
    """Use of a pod over time, in at most `MAX_BINS` bins, whose width doubles as needed."""

    __slots__ = ("begin_s", "bin_s", "blocks", "max_blocks", "max_sequences", "sequences")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.bin_s = FIRST_BIN_S
        self.sequences: list[float] = []
        """Sequences of a step times its seconds, summed by bin."""
        self.blocks: list[float] = []
        """Used blocks times seconds, summed by bin."""
        self.max_sequences = 0
        self.max_blocks = 0
        """Most blocks used at any time."""

    def record(self, start_s: float, end_s: float, *, sequences: int, blocks: int) -> None:
        """Adds a span of use; it counts in the bin of its start."""
        index = int((start_s - self.begin_s) / self.bin_s)
        while index >= MAX_BINS:
            self._widen()
            index >>= 1
        if index >= len(self.sequences):
            missing_bins = [0.0] * (index + 1 - len(self.sequences))
            self.sequences += missing_bins
            self.blocks += missing_bins
        duration_s = end_s - start_s
        self.sequences[index] += sequences * duration_s
        self.blocks[index] += blocks * duration_s
        if sequences > self.max_sequences:
            self.max_sequences = sequences
        if blocks > self.max_blocks:
            self.max_blocks = blocks

    def add(self, other: Timeline) -> None:
        """Adds the use of another pod, whose bins may be narrower, or are made as wide as these."""
        while self.bin_s < other.bin_s:
            self._widen()
        while other.bin_s < self.bin_s:
            other._widen()
        self.sequences = _sums(self.sequences, other.sequences)
        self.blocks = _sums(self.blocks, other.blocks)
        self.max_sequences = max(self.max_sequences, other.max_sequences)
        self.max_blocks = max(self.max_blocks, other.max_blocks)

    def _widen(self) -> None:
        self.bin_s *= 2
        self.sequences = _sums(self.sequences[::2], self.sequences[1::2])
        self.blocks = _sums(self.blocks[::2], self.blocks[1::2])


def total_use(timelines: Iterable[Timeline]) -> Timeline:
    """Returns the use of one or more pods, which is the same for any order of their steps."""
    pods = iter(timelines)
    total = copy(next(pods))
    for timeline in pods:
        total.add(timeline)
    return total


def _sums(bins: list[float], others: list[float]) -> list[float]:
    return list(map(sum, zip_longest(bins, others, fillvalue=0.0)))
