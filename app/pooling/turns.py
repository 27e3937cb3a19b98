"""Long work in short pieces, so that other requests are not kept waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from app.clock.pause import pause

T = TypeVar("T")

TURN = 8_192
"""Numbers or tokens after which others have their turn: about a millisecond of work."""
LEAST = TURN // 64
"""What even the smallest item counts."""


class Turns:
    """The work of one request: pauses for other greenlets whenever `TURN` parts of it are done."""

    def __init__(self) -> None:
        self._done = 0

    def spend(self, parts: int) -> None:
        """So much is done; pause when it is enough for now."""
        self._done += max(parts, LEAST)
        if self._done >= TURN:
            self._done = 0
            pause()

    def each(self, items: Iterable[T], parts: Callable[[T], int]) -> Iterator[T]:
        """`items`, each of which costs `parts` of it."""
        for item in items:
            yield item
            self.spend(parts(item))
