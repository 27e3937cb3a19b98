"""The simulated pooling model: vectors, probabilities of classes and scores, all functions of token ids.

The vector of a text (simulator.md 2.8): component i < n of a text of n tokens t is
``2 * (t[i] mod 1024) / 1024 - 1``; the ones behind repeat the tokens more coarsely,
``2 * (t[i mod n] mod 256) / 256 - 1``. All are in [-1, 1) and exact in 32 bits, and a shorter vector is the
beginning of a longer one.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

TASKS = ("embed", "classify", "token_embed", "token_classify")
"""What a text, or each of its tokens, can be turned into."""
LOGIT_RANGE = 8.0
"""Logits, of classes and of pairs, are between -4 and 4."""


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """Makes vectors of `dimensions` numbers and tells `classes` classes apart.

    `activation` is a request's `use_activation`. None is the model's own way: vectors as the reference makes
    them, not normalized, and probabilities, not logits.
    """

    dimensions: int
    classes: int

    def embed(
        self, ids: Sequence[int], activation: bool | None, dimensions: int | None = None
    ) -> array[float]:
        """The vector of a text; `dimensions` instead of the model's own."""
        vector = embedding(ids, dimensions or self.dimensions)
        return normalized(vector) if activation else vector

    def classify(self, ids: Sequence[int], activation: bool | None) -> list[float]:
        """The probability of each class."""
        logits = class_logits(ids, self.classes)
        return logits if activation is False else probabilities(logits)

    def label(self, scores: Sequence[float]) -> str:
        """The name of the class that scores best."""
        return f"LABEL_{max(range(len(scores)), key=scores.__getitem__)}"

    def pool(self, task: str, ids: Sequence[int], activation: bool | None) -> Iterator[array[float]]:
        """What `task`, one of `TASKS`, gives: one row for the text, or one for each token."""
        for part in [[each] for each in ids] if task.startswith("token") else [ids]:
            if task.endswith("embed"):
                yield self.embed(part, activation)
            else:
                yield array("f", self.classify(part, activation))

    def shape(self, task: str, tokens: int) -> tuple[int, ...]:
        """The shape of what `pool` gives for so many tokens."""
        width = self.dimensions if task.endswith("embed") else self.classes
        return (tokens, width) if task.startswith("token") else (width,)


def embedding(ids: Sequence[int], dimensions: int) -> array[float]:
    """The vector of `ids`, with `dimensions` >= 1 components, as the reference makes it: not normalized."""
    fine = array("f", (token % 1024 / 512 - 1 for token in ids[:dimensions]))
    missing = dimensions - len(fine)
    if not missing:
        return fine
    coarse = array("f", (token % 256 / 128 - 1 for token in ids[:missing])) or array("f", (0.0,))
    return fine + (coarse * (missing // len(coarse) + 1))[:missing]


def normalized(vector: array[float]) -> array[float]:
    """The vector with length 1; one without length stays as it is."""
    length = math.sqrt(math.fsum(number * number for number in vector))
    return array("f", (number / length for number in vector)) if length else vector


def class_logits(ids: Sequence[int], classes: int) -> list[float]:
    """A number in [-4, 4) for each of at most 16 classes: by chance, but the same for the same tokens."""
    drawn = blake2b(str(list(ids)).encode(), digest_size=4 * classes).digest()
    return [LOGIT_RANGE * (number / 2**32 - 0.5) for number in struct.unpack(f">{classes}I", drawn)]


def probabilities(logits: Sequence[float]) -> list[float]:
    """A probability in (0, 1) for each class; they add up to 1, but for a single class, which is a score."""
    if len(logits) == 1:
        return [sigmoid(logits[0])]
    weights = [math.exp(logit) for logit in logits]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


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
    """How well two texts match: the more tokens they share, the higher, from -4 (none) to 4 (all).

    It is what a cross-encoder would give before its activation.
    """
    return LOGIT_RANGE * (query.similarity(document) - 0.5)


def sigmoid(logit: float) -> float:
    """The activation: a score in (0, 1)."""
    return 1 / (1 + math.exp(-logit))
