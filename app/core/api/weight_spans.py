"""Versions of the weights that write the tokens of an answer, as `weight_versions` shows them."""

from collections.abc import Sequence

from app.core.engine.outputs import Tokens
from app.core.protocol.common import WeightVersionSpan


class Weights:
    """The weights of the model."""

    def __init__(self) -> None:
        self.version = "default"
        """A trainer may change it."""


class WeightSpans:
    """Records which version of `weights` writes the tokens of each choice."""

    def __init__(self, weights: Weights, choices: int) -> None:
        self._weights = weights
        self._spans: list[list[WeightVersionSpan]] = [[] for _ in range(choices)]

    def record(self, output: Tokens, start: int) -> None:
        """Records the present version for tokens that follow the first `start` of their choice."""
        spans = self._spans[output.index]
        version = self._weights.version
        if not output.ids:
            return
        if not spans or spans[-1].version != version:
            spans.append(WeightVersionSpan(version, start, start))
        spans[-1].end = start + len(output.ids)

    def of_choice(self, index: int) -> Sequence[WeightVersionSpan]:
        """Returns the spans of a choice, without gaps."""
        return self._spans[index]
