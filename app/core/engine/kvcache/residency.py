"""How long blocks of a KV cache stay, and when they are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from app.core.engine.kvcache.block_pool import BlockObserver

if TYPE_CHECKING:
    from app.core.base.metrics.families import EngineFamilies

MAX_USES = 4
"""Number of recent uses remembered per block, for the gaps between uses."""
MAX_BLOCKS = 60_000
"""Maximum blocks that are followed, at about 1.1 KB each."""


class Residency(BlockObserver):
    """Follows a share `sample` of the blocks, as vLLM does with kv-cache-metrics."""

    def __init__(
        self, families: EngineFamilies, sample: float, rng: Random, now: Callable[[], float]
    ) -> None:
        self._lifetimes = families.histogram("kv_block_lifetime_seconds")
        self._idle_times = families.histogram("kv_block_idle_before_evict_seconds")
        self._gaps = families.histogram("kv_block_reuse_gap_seconds")
        self._sample = sample
        self._rng = rng
        self._now = now
        self._lives: dict[int, tuple[float, deque[float]]] = {}
        """Moment of the allocation, and recent uses, of each followed block."""

    def allocated(self, block: int) -> None:
        """Starts to follow the block, by chance."""
        if self._rng.random() < self._sample and len(self._lives) < MAX_BLOCKS:
            self._lives[block] = self._now(), deque(maxlen=MAX_USES)

    def accessed(self, block: int) -> None:
        """Notes a use."""
        life = self._lives.get(block)
        if life is not None:
            life[1].append(self._now())

    def evicted(self, block: int) -> None:
        """Records the life of the block in the metrics."""
        life = self._lives.pop(block, None)
        if life is None:
            return
        born_s, uses = life
        now_s = self._now()
        last_s = uses[-1] if uses else born_s
        self._lifetimes.observe(now_s - born_s)
        self._idle_times.observe(now_s - last_s)
        self._gaps.observe_all([later - earlier for earlier, later in pairwise(uses)])

    def cleared(self) -> None:
        """Forgets all blocks."""
        self._lives.clear()
