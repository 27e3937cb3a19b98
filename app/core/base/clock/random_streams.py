"""Random streams: independent random numbers for each feature."""

from random import Random


class Streams:
    """Creates the random streams of one rank.

    Draws of one feature do not change those of another. The same seed, rank and name give the same
    stream. Without a seed every stream is different.
    """

    def __init__(self, seed: int | None, rank: int) -> None:
        self._seed = seed
        self._rank = rank

    def __call__(self, name: str) -> Random:
        """Returns a new stream for the feature `name`."""
        return Random(None if self._seed is None else f"{self._seed} of rank {self._rank}: {name}")
