"""How well two texts match: the more tokens they share, the better."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

STEEPNESS = 8.0
"""Distance of the logits of texts without a common token (-4) and of equal texts (4)."""


class Bag:
    """The tokens of a text, without their order."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._counts = Counter(ids)
        self._length = math.sqrt(sum(count * count for count in self._counts.values()))

    def similarity(self, other: Bag) -> float:
        """Cosine of the token counts, in [0, 1]; 0 where one of the texts is empty."""
        few, many = sorted((self._counts, other._counts), key=len)
        shared = sum(count * many[token] for token, count in few.items())
        return min(1.0, shared / (self._length * other._length)) if shared else 0.0


def logit(query: Bag, document: Bag) -> float:
    """What a cross-encoder would give before its activation, in [-4, 4]."""
    return STEEPNESS * (query.similarity(document) - 0.5)


def sigmoid(logit: float) -> float:
    """The activation: a score in (0, 1)."""
    return 1 / (1 + math.exp(-logit))
