"""Frees of blocks that wait for the steps under way, as beside a KV connector in vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

S = TypeVar("S")


class DeferredFrees(Generic[S]):
    """Keeps the blocks of sequences that have left until no step writes into them.

    Steps are numbers that grow. `oldest` is that of the oldest step under way.
    """

    def __init__(self) -> None:
        self._last_steps: dict[S, int] = {}
        """Number of the latest step of each running sequence."""
        self._kept: deque[tuple[int, S, int]] = deque()
        """Sequences that have left, with their blocks, until the end of a step."""

    def note(self, sequences: Iterable[S], step: int) -> None:
        """Notes that a step computes tokens of sequences."""
        self._last_steps.update(dict.fromkeys(sequences, step))

    def is_computing(self, sequence: S, oldest: int) -> bool:
        """Returns whether a step under way computes tokens of a sequence."""
        return self._last_steps.get(sequence, -1) >= oldest

    def keep(self, sequence: S, held: int, step: int) -> None:
        """Keeps the `held` blocks of a sequence until a step has ended."""
        self._kept.append((step, sequence, held))

    def forget(self, sequence: S) -> None:
        """Removes a sequence that has left."""
        self._last_steps.pop(sequence, None)

    def due(self, oldest: int) -> Iterator[tuple[S, int]]:
        """Yields the sequences, with their blocks, whose steps have ended."""
        while self._kept and self._kept[0][0] < oldest:
            _, sequence, held = self._kept.popleft()
            yield sequence, held
