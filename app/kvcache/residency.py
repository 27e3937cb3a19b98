"""How long blocks stay in the cache, lie idle before they go, and wait to be used again.

What vLLM observes with kv-cache-metrics, of a sample of the blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.metrics.recorder import Recorder

USES = 4
"""Uses of a block that are remembered, for the gaps between them."""
LIFE_BYTES = 1100
"""What a block that is followed takes in memory."""
LIMIT_BYTES = 64 << 20


class BlockObserver(Protocol):
    """Is told what becomes of blocks, by their numbers."""

    def allocated(self, block: int) -> None:
        """A sequence fills the block."""

    def accessed(self, block: int) -> None:
        """Another sequence re-uses what it holds."""

    def released(self, block: int, findable: bool) -> None:
        """A sequence no longer uses it; `findable`: what it holds can be found."""

    def evicted(self, block: int) -> None:
        """What it held, if anything, makes room."""

    def cleared(self) -> None:
        """No block holds anything any more."""


class Residency:
    """Follows a share `sample` (0 to 1) of the blocks from allocation to eviction, `limit_bytes` of them.

    `now` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        metrics: Recorder,
        sample: float,
        rng: Random,
        now: Callable[[], float],
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._metrics = metrics
        self._sample = sample
        self._rng = rng
        self._now = now
        self._lives: dict[int, tuple[float, deque[float]]] = {}

    @property
    def size_bytes(self) -> int:
        return len(self._lives) * LIFE_BYTES

    def allocated(self, block: int) -> None:
        if self._rng.random() < self._sample and self.size_bytes + LIFE_BYTES <= self.limit_bytes:
            self._lives[block] = self._now(), deque(maxlen=USES)

    def accessed(self, block: int) -> None:
        life = self._lives.get(block)
        if life:
            life[1].append(self._now())

    def released(self, block: int, findable: bool) -> None:
        """It lives on until its room is needed."""

    def evicted(self, block: int) -> None:
        life = self._lives.pop(block, None)
        if life is None:
            return
        (born, uses), now = life, self._now()
        self._metrics.block_lifetime(now - born)
        self._metrics.block_idle_before_evict(now - (uses[-1] if uses else born))
        for earlier, later in pairwise(uses):
            self._metrics.block_reuse_gap(later - earlier)

    def cleared(self) -> None:
        self._lives.clear()
