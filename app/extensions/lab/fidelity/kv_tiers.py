"""Tiers that keep the blocks of prefixes which the KV cache of a simulated engine evicts.

An evicted block moves to the first tier, whose least recent block moves to the next tier. A prompt
that continues a cached prefix with blocks of a tier loads them before the step that admits it: the
step takes the time of loading in addition, while vLLM loads beside other steps.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from app.core.engine.batch import Batch
from app.core.engine.kvcache.block_pool import BlockPool
from app.core.engine.step_cost import CostModel
from app.extensions.lab.fidelity.prefix_blocks import OfflineRequest, PrefixBlocks
from config.flags import size_of

PATTERN = re.compile(r"([a-z][a-z0-9-]{0,19})=([^@]+)@([^@]+)/s", re.ASCII)
PRIVATE_KEYS = tuple(b"0123456789")
"""First bytes of keys that no other prompt finds."""


class KvTier(Struct, frozen=True, kw_only=True):
    """A tier of one pod."""

    name: str
    size: float
    """Bytes."""
    bandwidth: float
    """Bytes per second from the tier to the devices."""


class TierUse(Struct, frozen=True, kw_only=True):
    """Tokens that a run loaded from a tier."""

    name: str
    tokens: int
    bytes: float

    def __str__(self) -> str:
        return f"loaded from {self.name}: {self.tokens:,} tokens, {self.bytes / 1e9:,.1f} GB"


def read_tier(text: str) -> KvTier:
    """Returns the tier of `NAME=SIZE@BANDWIDTH/s`, such as `cpu=200GB@50GB/s`.

    Raises:
        ValueError: The text has another form; the message completes "the value ...".
        ArgumentTypeError: A size is wrong, which the message names.
    """
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("must be NAME=SIZE@BANDWIDTH/s, such as cpu=200GB@50GB/s")
    return KvTier(name=match[1], size=size_of(match[2]), bandwidth=size_of(match[3]))


class _Level:
    """The blocks of a tier, the least recent first."""

    def __init__(self, tier: KvTier, block_bytes: float) -> None:
        self.tier = tier
        self.capacity = int(tier.size / block_bytes)
        self.keys: OrderedDict[bytes, None] = OrderedDict()
        self.loaded_blocks = 0


class TieredBlocks(PrefixBlocks):
    """A block pool whose evicted blocks stay in tiers."""

    def __init__(
        self, num_blocks: int, block_size: int, *, tiers: Sequence[KvTier], block_bytes: float
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.pool = BlockPool(num_blocks, on_evict=self._offload)
        self.block_bytes = block_bytes
        self.levels = [_Level(tier, block_bytes) for tier in tiers]
        self._tier_blocks: dict[OfflineRequest, list[tuple[_Level, bytes]]] = {}
        """Blocks that the latest `find` found in tiers, by request."""
        self._loading_s = 0.0

    def take_loading_s(self) -> float:
        """Returns the seconds of loading since the latest call."""
        seconds = self._loading_s
        self._loading_s = 0.0
        return seconds

    def find(self, sequence: OfflineRequest, tokens: int) -> int:
        """Returns the number of blocks of a prefix that the pool or the tiers have."""
        cached = super().find(sequence, tokens)
        whole_blocks = (tokens - 1) // self.block_size
        in_tiers = []
        for key in (sequence.keys or [])[cached:whole_blocks]:
            level = self._level_of(key)
            if level is None:
                break
            in_tiers.append((level, key))
        if in_tiers:
            self._tier_blocks[sequence] = in_tiers
        else:
            self._tier_blocks.pop(sequence, None)
        return cached + len(in_tiers)

    def begin(self, sequence: OfflineRequest, cached: int, count: int) -> None:
        """Assigns the blocks that `find` found, loads those of tiers, and assigns new ones."""
        in_tiers = self._tier_blocks.pop(sequence, [])
        super().begin(sequence, cached, count + len(in_tiers))
        first = cached - len(in_tiers)
        for block, (level, key) in zip(sequence.blocks[first:cached], in_tiers, strict=True):
            self.pool.cache(block, key)
            level.loaded_blocks += 1
            self._loading_s += self.block_bytes / level.tier.bandwidth
            if key in level.keys:
                level.keys.move_to_end(key)

    def uses(self) -> list[TierUse]:
        """Returns what each tier has provided."""
        return [
            TierUse(
                name=level.tier.name,
                tokens=level.loaded_blocks * self.block_size,
                bytes=level.loaded_blocks * self.block_bytes,
            )
            for level in self.levels
        ]

    def _level_of(self, key: bytes) -> _Level | None:
        for level in self.levels:
            if key in level.keys:
                return level
        return None

    def _offload(self, hashes: Sequence[bytes]) -> None:
        """Stores evicted blocks, and hands the least recent ones of full tiers on."""
        keys = [key for key in hashes if key[0] not in PRIVATE_KEYS]
        for level in self.levels:
            for key in keys:
                level.keys[key] = None
                level.keys.move_to_end(key)
            keys = []
            while len(level.keys) > level.capacity:
                key, _ = level.keys.popitem(last=False)
                keys.append(key)


class LoadingCosts:
    """Costs of steps that wait for the blocks of the requests they admit."""

    def __init__(self, costs: CostModel, blocks: TieredBlocks) -> None:
        self._costs = costs
        self._blocks = blocks

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """Returns the cost of a step; see `StepCost.seconds`."""
        return self._costs.seconds(batch, start_s, idle) + self._blocks.take_loading_s()
