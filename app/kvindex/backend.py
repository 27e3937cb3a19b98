"""Interface of the index's storage, and its operations.

A *request key* names a block's content, the same on every pod. An *engine key* is one engine's name for a
block. Scores look blocks up by request keys; engines remove blocks by engine keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from app.kvindex.holders import Copies, Holders, IndexedEngine

GPU, CPU = "gpu", "cpu"
MOST_TIERS = 16
"""Most storage tiers of an index, such as GPU and CPU."""
MOST_HOLDERS = 65_536
"""Most KV cache groups of all engines at once; each takes a bit of every mask."""

Owned: TypeAlias = int | tuple[int, ...]
"""Request keys of the index blocks that an engine's block overlaps, in order.

A single number where both blocks are the same. A tuple ends in `UNALIGNED` where the engine's block ends
inside an index block.
"""

UNALIGNED = 0
"""End mark of an `Owned` tuple; no block has this request key."""


def keys_of(owned: Owned) -> tuple[int, ...]:
    """Returns the request keys of an entry, without the end mark."""
    if isinstance(owned, int):
        return (owned,)
    return owned[:-1] if owned and owned[-1] == UNALIGNED else owned


class Store(Struct, gc=False):
    """Adds blocks to a tier: `owned` has the request keys of each block in `engine`.

    `keys` lists all full index blocks, without duplicates. `joined` pairs engine keys of earlier events with
    the request key of a further index block that they overlap.
    """

    group: int
    tier: str
    engine: Sequence[int]
    owned: Sequence[Owned]
    keys: Sequence[int]
    joined: Sequence[tuple[int, int]] = ()
    scored: bool | None = None
    adapter: str | None = None


class Offload(Struct, frozen=True, gc=False):
    """Adds known blocks to a further tier."""

    group: int
    tier: str
    engine: Sequence[int]


class Remove(Struct, gc=False):
    """Removes blocks from a tier."""

    group: int
    tier: str
    engine: Sequence[int]


class Clear(Struct, frozen=True, gc=False):
    """Removes all blocks of the engine."""


Operation: TypeAlias = Store | Offload | Remove | Clear


class Stamp(Struct, frozen=True, gc=False):
    """Number of an engine's batch and part; indexers that share a backend apply each part once.

    `restart` marks the first batch after an engine's restart.
    """

    sequence: int
    ts: float
    restart: bool = False
    part: int = 0


class Outcome(Struct):
    """Result of operations, in block copies; `unknown` counts named blocks that are not in the index.

    `applied` is False when another indexer has applied the batch before.
    """

    added: int = 0
    removed: int = 0
    unknown: int = 0
    applied: bool = True

    def add(self, later: Outcome) -> None:
        """Adds the outcome of a later part."""
        self.added += later.added
        self.removed += later.removed
        self.unknown += later.unknown
        self.applied = later.applied


class IndexSize(Struct, frozen=True):
    """Content of a backend: `blocks`, `copies` (a block in a tier of a holder), and `weight`.

    `weight` and `bound` have the same unit, which depends on the backend; both are None without a bound.
    """

    blocks: int
    copies: int
    evicted: int = 0
    weight: int | None = None
    bound: int | None = None


class BackendUnavailable(Exception):
    """Raised when the backend does not answer; the same call may succeed later."""


class Found(NamedTuple):
    """Result of a lookup: copies of a prompt's first blocks, holders of the bits, and tiers in order."""

    copies: list[Copies]
    holders: Holders
    tiers: Sequence[str]


class Backend(Protocol):
    """Storage for the copies of blocks, by holder and tier. Every method may raise `BackendUnavailable`."""

    tiers: list[str]
    """Names of the known tiers."""
    epoch: str
    """Changes after the backend has lost all data."""
    times_lost: int
    """Number of such losses."""

    def owned(self, source: IndexedEngine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        """Returns the entry of each (group, engine key) of a source; None for an unknown block."""

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        """Applies the operations in order; a backend that indexers share applies all or none.

        Long work pauses. Raises TooManyHolders when there is no bit left for the source.
        """

    def lookup(self, keys: Sequence[int]) -> Found:
        """Returns the copies of blocks, up to the first block without a holder."""

    def position(self, source: IndexedEngine) -> Stamp | None:
        """Returns the latest batch of an engine that any indexer has applied; None if unknown."""

    def clear(self, pod: str) -> int:
        """Removes a pod; returns its number of copies. Long work pauses."""

    def pods(self) -> list[str]:
        """Returns names of pods that have or had blocks, except removed pods."""

    def size(self) -> IndexSize: ...

    def close(self) -> None:
        """Closes connections; shared data stays."""


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Settings of the Redis backend. In this module, because the Redis client is slow to import.

    `url` has a scheme redis, rediss, valkey, valkeys or unix, or is only host and port.

    All keys begin with `namespace`. A block expires `ttl_s` seconds after its last store, with 0 never;
    `size` still counts expired blocks. `timeout_s` limits one attempt of a call.
    """

    url: str = "redis://127.0.0.1:6379"
    namespace: str = "understudy"
    ttl_s: int = 0
    timeout_s: float = 1.0
    most_holders: int = MOST_HOLDERS
    count_repeats: bool = True
