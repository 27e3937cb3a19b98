"""Measures block residency: lifetime in the cache, idle time before eviction, and gaps between uses.

Follows a sample of the blocks, as vLLM does with kv-cache-metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.base.metrics.recorder import Recorder

USES = 4
"""Number of recent uses remembered per block, for the gaps between uses."""
MOST_BLOCKS = 60_000
"""Most blocks that are followed, at about 1.1 KB each."""


class BlockObserver(Protocol):
    """Receives block events by block number."""

    def allocated(self, block: int) -> None:
        """Called when a sequence gets the block to fill."""

    def accessed(self, block: int) -> None:
        """Called when another sequence uses the cached block."""

    def released(self, block: int, findable: bool) -> None:
        """Called when a sequence releases the block; `findable` if its content stays cached."""

    def evicted(self, block: int) -> None:
        """Called when the block's content, if any, is dropped."""

    def cleared(self) -> None:
        """Called when all blocks become empty."""


class Residency:
    """Follows a share `sample` (0 to 1) of the blocks, at most `most`, from allocation to eviction.

    `now` returns monotonic seconds.
    """

    def __init__(
        self,
        metrics: Recorder,
        sample: float,
        rng: Random,
        now: Callable[[], float],
        most: int = MOST_BLOCKS,
    ) -> None:
        self._most = most
        self._metrics = metrics
        self._sample = sample
        self._rng = rng
        self._now = now
        self._lives: dict[int, tuple[float, deque[float]]] = {}

    def allocated(self, block: int) -> None:
        if self._rng.random() < self._sample and len(self._lives) < self._most:
            self._lives[block] = self._now(), deque(maxlen=USES)

    def accessed(self, block: int) -> None:
        life = self._lives.get(block)
        if life:
            life[1].append(self._now())

    def released(self, block: int, findable: bool) -> None:
        """Does nothing: a cached block lives until its eviction."""

    def evicted(self, block: int) -> None:
        life = self._lives.pop(block, None)
        if life is None:
            return
        (born, uses), now = life, self._now()
        gaps_s = [later - earlier for earlier, later in pairwise(uses)]
        self._metrics.block_evicted(now - born, now - (uses[-1] if uses else born), gaps_s)

    def cleared(self) -> None:
        self._lives.clear()
