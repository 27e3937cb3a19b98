"""Named streams of randomness, so that one feature's draws do not shift another's."""

from __future__ import annotations

from random import Random


class Streams:
    """Makes the streams of one rank: the same seed, rank and name make the same stream.

    Without a seed every stream is unlike any other.
    """

    def __init__(self, seed: int | None, rank: int) -> None:
        self._seed, self._rank = seed, rank

    def __call__(self, name: str) -> Random:
        """The stream `name`, from its start."""
        return Random(None if self._seed is None else f"{self._seed} of rank {self._rank}: {name}")
