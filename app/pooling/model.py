"""The model that is played: one method for each thing that a pooling model is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.pooling.classes import class_logits, probabilities
from app.pooling.vectors import embedding, normalized

TASKS = ("embed", "classify", "token_embed", "token_classify")
"""What a text, or each of its tokens, can be turned into."""


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
