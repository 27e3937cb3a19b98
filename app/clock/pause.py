"""Pauses in long work, so that other greenlets have their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import gevent
from gevent._hub_local import get_hub_if_exists

T = TypeVar("T")

PAUSE_S = 1e-6
"""Not 0: after a sleep of 0 the loop may run fifty more callbacks before it looks at sockets and timers."""
SLICE_STEPS = 400
"""Steps of about 10 us each after which a slice of work ends: about 4 ms."""


def pause() -> None:
    """Let whatever is due have its turn."""
    gevent.sleep(PAUSE_S)


def pause_if_possible() -> None:
    """`pause` where greenlets run; nothing in threads without a loop, or in the loop's own callbacks."""
    hub = get_hub_if_exists()
    if hub is not None and gevent.getcurrent() is not hub:
        pause()


class Slices:
    """Counts steps of work (about 10 us each), and pauses after so many.

    One object may serve all work of one kind, also in several greenlets: they then pause more often.
    """

    __slots__ = ("_left", "_pause", "_steps")

    def __init__(self, steps: int = SLICE_STEPS, pause: Callable[[], None] = pause_if_possible) -> None:
        self._steps = self._left = steps
        self._pause = pause

    def spend(self, steps: int = 1) -> None:
        """So much is done; pause when that is enough for now."""
        self._left -= steps
        if self._left < 0:
            self._left = self._steps
            self._pause()

    def parts(self, items: Sequence[T], size: int, steps: int) -> Iterator[Sequence[T]]:
        """`items` in parts of `size`, each of which costs `steps`."""
        for start in range(0, len(items), size):
            yield items[start : start + size]
            self.spend(steps)
