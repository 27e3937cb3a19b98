"""Speculative decoding, as far as a scheduler sees it: how many drafts of a step are right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


class Drafts:
    """A draft for each of `rates`, which say how likely it is right, given that all before it were."""

    def __init__(self, rates: Sequence[float], rng: Random) -> None:
        self.drafts = len(rates)
        self._rates = rates
        self._rng = rng

    def accepted(self, drafts: int) -> int:
        """How many of the first `drafts` are right, up to the first that is not."""
        for number, rate in enumerate(self._rates[:drafts]):
            if self._rng.random() >= rate:
                return number
        return drafts
