"""Named random streams: draws of one feature do not change those of another."""

from __future__ import annotations

from random import Random


class Streams:
    """Makes the random streams of one rank. The same seed, rank and name give the same stream.

    Without a seed every stream is different.
    """

    def __init__(self, seed: int | None, rank: int) -> None:
        self._seed, self._rank = seed, rank

    def __call__(self, name: str) -> Random:
        return Random(None if self._seed is None else f"{self._seed} of rank {self._rank}: {name}")
