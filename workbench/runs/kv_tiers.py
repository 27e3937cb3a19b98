"""Tiers of a simulated engine that keep KV blocks outside of the devices.

The first tier is the host's memory, and a second one is a disk. Both decide by the code of the
server (`kv_offload`). Full blocks of prompts are stored after the step that computes them, and the
disk gets a copy. While a prompt loads blocks, other requests go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from msgspec import Struct

from config.flags import size_of
from workbench.engine.steps import (
    CpuTier,
    OffloadOptions,
    Offloads,
    SchedulerRules,
    StepLoop,
    StoredChunk,
    Tiers,
    chunk_count,
)
from workbench.runs.prefix_blocks import (
    OfflineRequest,
    PrefixBlocks,
    request_keys,
    shared_keys,
)

PATTERN = re.compile(r"([a-z][a-z0-9-]{0,19})=([^@]+)@([^@]+)/s", re.ASCII)
MAX_TIERS = 2


class KvTier(Struct, frozen=True, kw_only=True):
    """A tier of one pod."""

    name: str
    size: float
    """Bytes."""
    bandwidth: float
    """Bytes per second in each direction."""


class TierRules(Struct, frozen=True, kw_only=True):
    """Rules of the tier in host memory, as the server's settings of the same names."""

    policy: str = "lru"
    """Eviction policy: lru or arc."""
    store_threshold: int = 0
    """Requests that must contain a block before it is stored."""


class TierUse(Struct, frozen=True, kw_only=True):
    """Tokens that a run loaded from a tier."""

    name: str
    tokens: int
    bytes: float

    def __str__(self) -> str:
        return f"loaded from {self.name}: {self.tokens:,} tokens, {self.bytes / 1e9:,.1f} GB"


def total_uses(tiers: Sequence[KvTier], uses: Iterable[TierUse]) -> list[TierUse]:
    """Returns what the tiers of all pods have provided."""
    totals = {tier.name: TierUse(name=tier.name, tokens=0, bytes=0.0) for tier in tiers}
    for use in uses:
        total = totals[use.name]
        totals[use.name] = TierUse(
            name=use.name, tokens=total.tokens + use.tokens, bytes=total.bytes + use.bytes
        )
    return list(totals.values())


class TierCounts:
    """Bytes that the tiers of a pod moved between devices and host."""

    def __init__(self) -> None:
        self.loaded_bytes = 0.0
        self.stored_bytes = 0.0

    def moved(self, is_load: bool, size_bytes: float, seconds: float) -> None:
        """Counts a transfer between devices and host."""
        if is_load:
            self.loaded_bytes += size_bytes
        else:
            self.stored_bytes += size_bytes

    def offered(self, has_failed: bool, tier: CpuTier) -> None:
        """Clears the allocations, which a simulation does not report."""
        tier.allocations.clear()

    def looked_up(self, host: tuple[int, int], disk: tuple[int, int], delay_s: float) -> None:
        """Does nothing."""

    def used(self, tier: CpuTier) -> None:
        """Does nothing."""

    def disk_began(self, is_read: bool, jobs: int, share: float) -> None:
        """Does nothing."""

    def disk_moved(self, is_read: bool, size_bytes: float, seconds: float) -> None:
        """Does nothing."""

    def disk_reset(self) -> None:
        """Does nothing."""


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


def tier_options(
    tiers: Sequence[KvTier],
    rules: TierRules,
    block_bytes: float,
    scheduler_rules: SchedulerRules,
) -> OffloadOptions | None:
    """Returns the options of the tiers; None if the host has no room for a block."""
    counts = [chunk_count(tier.size, block_bytes) for tier in tiers]
    if not counts or not counts[0]:
        return None
    options: dict[str, Any] = {}
    if len(tiers) > 1:
        options = {"disk_chunks": counts[1], "disk_bandwidth": tiers[1].bandwidth}
    return OffloadOptions(
        chunks=counts[0],
        block_bytes=block_bytes,
        bandwidth=tiers[0].bandwidth,
        policy=rules.policy,
        store_threshold=rules.store_threshold,
        in_steps=True,
        offers_again=scheduler_rules.offers_again,
        orders_prompts=scheduler_rules.offers_again,
        chunk_uses=scheduler_rules.chunk_uses,
        **options,
    )


def _ignore_stored(stored: Sequence[StoredChunk]) -> None:
    """The events of chunks are not published."""


class TieredBlocks(PrefixBlocks):
    """A block pool whose prompts are also stored in tiers, as `TieredCache` of the server."""

    def __init__(self, num_blocks: int, block_size: int, options: OffloadOptions) -> None:
        super().__init__(num_blocks, block_size)
        self.counts = TierCounts()
        self._tiers = Tiers(options, self.counts)
        self._offloads = Offloads(
            self._tiers, options, block_size, now=self._now, on_end_step=_ignore_stored
        )
        self._block_bytes = options.block_bytes
        self._loaded_tokens = [0, 0]
        """Tokens loaded from the host and from disk."""
        self._loop: StepLoop[OfflineRequest]
        self.policies = [self._offloads]

    def attach(self, loop: StepLoop[OfflineRequest]) -> None:
        """Takes the loop whose time the transfers follow, before the first request."""
        self._loop = loop

    def find(self, sequence: OfflineRequest, tokens: int) -> int:
        """Returns the cached blocks; also looks up, in the tiers, the blocks after them."""
        self._tiers.settle(self._now())
        if sequence.loaded:  # from an earlier lookup
            sequence.remote = False
            sequence.loaded = 0
        cached = super().find(sequence, tokens)
        keys = self._prompt_keys(sequence)
        self._offloads.look_up(sequence, keys, cached)
        return cached

    def fits(self, sequence: OfflineRequest, tokens: int, cached: int, spare: int = 0) -> bool:
        """See `PrefixBlocks`; a prompt waits while its blocks are on their way."""
        if self._offloads.must_wait:
            return False
        return super().fits(sequence, tokens, cached, spare)

    def begin(self, sequence: OfflineRequest, cached: int, count: int) -> None:
        """See `PrefixBlocks`; also starts to load the blocks that `find` has found in tiers."""
        is_first = not sequence.preemptions
        super().begin(sequence, cached, count)
        if is_first:
            self.hits += sequence.loaded // self.block_size
            sequence.cached_tokens += sequence.loaded
        hit = self._offloads.begin(sequence, self._prompt_keys(sequence))
        if hit is not None:
            for tier, tokens in enumerate(self._offloads.loaded_tokens(sequence, hit)):
                self._loaded_tokens[tier] += tokens

    def filled(self, sequence: OfflineRequest) -> None:
        """See `PrefixBlocks`; also offers the full blocks to the tiers, at the end of the step."""
        super().filled(sequence)
        self._offloads.filled(sequence, sequence.computed // self.block_size)

    def release(self, sequence: OfflineRequest, held: int, findable: int = 0) -> None:
        """See `PrefixBlocks`."""
        self._offloads.release(sequence)
        super().release(sequence, held, findable)

    def step_over(self) -> None:
        """Starts to store what the step has computed, which is over now."""
        self._tiers.settle(self._now())
        self._offloads.step_over()
        self._tiers.take_events()  # a simulation publishes none

    def uses(self, tiers: Sequence[KvTier]) -> list[TierUse]:
        """Returns what each of the `tiers` has provided."""
        return [
            TierUse(
                name=tier.name, tokens=tokens, bytes=tokens / self.block_size * self._block_bytes
            )
            for tier, tokens in zip(tiers, self._loaded_tokens, strict=False)
        ]

    def end(self) -> None:
        """Ends all transfers, after the last request."""
        self._tiers.settle(inf)

    def _now(self) -> float:
        return self._loop.now_s

    def _prompt_keys(self, sequence: OfflineRequest) -> list[bytes]:
        """Returns the keys of all full blocks of a prompt, with the blocks that no other has."""
        keys = shared_keys(sequence, self.block_size, sequence.prompt_tokens)
        blocks = sequence.prompt_tokens // self.block_size
        return keys + request_keys(sequence, range(len(keys), blocks))
