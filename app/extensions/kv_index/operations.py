"""Operations on the index's blocks, their stamps, and their outcomes.

A *request key* names a block's content, the same on every pod. An *engine key* is one engine's name
for a block. Scores look blocks up by request keys; engines remove blocks by engine keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

GPU = "gpu"
"""Name of the default tier."""
CPU = "cpu"
"""Name of the tier of blocks offloaded to main memory."""
MAX_TIERS = 16
"""Maximum number of storage tiers."""
UNALIGNED = 0
"""End mark of a `CoveredKeys` tuple; no block has this request key."""

CoveredKeys: TypeAlias = int | tuple[int, ...]
"""Request keys of the index blocks that an engine's block covers, in whole or in part, in order.

A single number where both blocks are the same. A tuple ends in `UNALIGNED` where the engine's block
ends inside an index block.
"""


def keys_of(covered: CoveredKeys) -> tuple[int, ...]:
    """Returns the request keys of an entry, without the end mark."""
    if isinstance(covered, int):
        return (covered,)
    if covered and covered[-1] == UNALIGNED:
        return covered[:-1]
    return covered


class BlockOperation(Struct, gc=False):
    """An operation on blocks of a KV cache group in a tier."""

    group: int
    tier: str
    engine_keys: Sequence[int]


class Store(BlockOperation, gc=False):
    """Adds blocks to a tier.

    `covered` has the request keys of each block in `engine_keys`. `request_keys` lists all full
    index blocks, without duplicates. `joined` pairs engine keys of earlier events with the request
    key of a further index block that they cover in part.
    """

    covered: Sequence[CoveredKeys]
    request_keys: Sequence[int]
    joined: Sequence[tuple[int, int]] = ()
    scored: bool | None = None
    adapter: str | None = None


class Offload(BlockOperation, gc=False):
    """Adds known blocks to a further tier."""


class Remove(BlockOperation, gc=False):
    """Removes blocks from a tier."""


class Clear(Struct, frozen=True, gc=False):
    """Removes all blocks of the engine."""


Operation: TypeAlias = Store | Offload | Remove | Clear


class Stamp(Struct, frozen=True, gc=False):
    """Number of an engine's batch; `restart` marks the first batch after an engine's restart."""

    sequence: int
    ts: float
    restart: bool = False


class Outcome(Struct):
    """Result of operations, in copies of blocks.

    `unknown` counts blocks that no entry exists for. `applied` is false if another indexer applied
    the batch first.
    """

    added: int = 0
    removed: int = 0
    unknown: int = 0
    applied: bool = True

    def merge(self, later: Outcome) -> None:
        """Adds the counts of later operations."""
        self.added += later.added
        self.removed += later.removed
        self.unknown += later.unknown
        self.applied = later.applied
