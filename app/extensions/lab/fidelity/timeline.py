"""Use of pods over time."""

from itertools import zip_longest

FIRST_BIN_S = 1 / 16
MAX_BINS = 512


class Timeline:
    """Use of pods over time, in at most `MAX_BINS` bins, whose width doubles as needed."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.bin_s = FIRST_BIN_S
        self.sequences: list[float] = []
        """Sequences of a step times its seconds, summed by bin."""
        self.blocks: list[float] = []
        """Used blocks times seconds, summed by bin."""
        self.max_sequences = 0
        self.max_blocks = 0
        """Most blocks used at any time in any pod."""

    def record(self, start_s: float, end_s: float, *, sequences: int, blocks: int) -> None:
        """Adds a span of use; it counts in the bin of its start."""
        index = int((start_s - self.begin_s) / self.bin_s)
        while index >= MAX_BINS:
            self.bin_s *= 2
            for bins in (self.sequences, self.blocks):
                bins[:] = map(sum, zip_longest(bins[::2], bins[1::2], fillvalue=0.0))
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
