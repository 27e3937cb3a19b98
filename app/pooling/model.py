"""The simulated pooling model: vectors of texts; probabilities of classes, and scores, of their tokens."""

from __future__ import annotations

import math
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from app.pooling.numbers import Turns
from app.pooling.vectors import embedding
from app.tokenization.base import Tokenizer

TASKS = ("embed", "classify", "token_embed", "token_classify")
"""What a text, or each of its tokens, can be turned into."""
LOGIT_RANGE = 8.0
"""Logits, of classes and of pairs, are between -4 and 4."""


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """Makes vectors of `dimensions` numbers and tells `classes` classes apart.

    `activation` is a request's `use_activation`. None is the model's own way, which is true: vectors of
    length 1, and probabilities instead of logits.
    """

    dimensions: int
    classes: int
    tokenizer: Tokenizer
    matryoshka: bool = True
    """Its vectors may be cut to any length."""

    def embed(
        self, text: str, activation: bool | None, turns: Turns, dimensions: int | None = None
    ) -> array[float]:
        """The vector of a text; `dimensions` instead of the model's own."""
        return embedding(text, dimensions or self.dimensions, turns, unit=activation is not False)

    def classify(self, ids: Sequence[int], activation: bool | None) -> list[float]:
        """The probability of each class."""
        logits = class_logits(ids, self.classes)
        return logits if activation is False else probabilities(logits)

    def label(self, scores: Sequence[float], names: Sequence[str] = ()) -> str:
        """The name of the class that scores best; `names` instead of the model's own."""
        best = max(range(len(scores)), key=scores.__getitem__)
        return names[best] if names else f"LABEL_{best}"

    def pool(
        self, task: str, ids: Sequence[int], activation: bool | None, turns: Turns
    ) -> Iterator[array[float]]:
        """What `task`, one of `TASKS`, gives: one row for the text, or one for each token."""
        of_each = task.startswith("token")
        if task.endswith("embed"):
            tokenizer = self.tokenizer
            for text in tokenizer.token_texts(ids) if of_each else [tokenizer.decode(ids)]:
                yield self.embed(text, activation, turns)
        else:
            for part in [[each] for each in ids] if of_each else [ids]:
                yield array("f", self.classify(part, activation))

    def shape(self, task: str, tokens: int) -> tuple[int, ...]:
        """The shape of what `pool` gives for so many tokens."""
        width = self.dimensions if task.endswith("embed") else self.classes
        return (tokens, width) if task.startswith("token") else (width,)


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
