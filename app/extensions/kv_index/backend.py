"""The interface of the index's storage: operations on blocks, their outcomes, and backends.

A *request key* names a block's content, the same on every pod. An *engine key* is one engine's name
for a block. Scores look blocks up by request keys; engines remove blocks by engine keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from app.extensions.kv_index.copies import Copies
from app.extensions.kv_index.holders import Holders, IndexedEngine, Window

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
    window: Window | None = None


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


class IndexSize(Struct, frozen=True):
    """Content of a backend: `blocks`, `copies` (a block in a tier of a holder), and `weight`.

    `weight` and `bound` have the same unit, which depends on the backend; both are None if the
    backend has no bound.
    """

    blocks: int
    copies: int
    evicted: int = 0
    weight: int | None = None
    bound: int | None = None


class BackendUnavailableError(Exception):
    """Raised when the backend does not answer; the same call may succeed later."""


class Lookup(NamedTuple):
    """Result of a lookup.

    `copies` has the copies of the prompt's first blocks, `holders` the holders of their bits, and
    `tiers` the names of the tiers in order.
    """

    copies: list[Copies]
    holders: Holders
    tiers: Sequence[str]


class Backend(Protocol):
    """Storage for the copies of blocks, by holder and tier.

    Every method may raise `BackendUnavailableError`.
    """

    tiers: list[str]
    """Names of the known tiers."""
    epoch: str = ""
    """Changes after the backend has lost all data."""
    loss_count: int = 0
    """Number of times that the backend lost all data."""
    is_transactional: bool = False
    """True if `apply` must get all operations of a batch at once: readers see all or none."""

    def covered_keys(
        self, source: IndexedEngine, engine_keys: Sequence[tuple[int, int]]
    ) -> list[CoveredKeys | None]:
        """Returns the entry of each (group, engine key) of a source; None for an unknown block."""

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        """Applies the operations in order; a shared backend applies all or none.

        Pauses during long work.

        Raises:
            HolderLimitError: no number is free for the source.
        """

    def lookup(self, request_keys: Sequence[int]) -> Lookup:
        """Returns the copies of blocks, up to the first block without a holder."""

    def position(self, source: IndexedEngine) -> Stamp | None:
        """Returns the latest batch of an engine that any indexer has applied; None if unknown."""
        return None

    def clear(self, pod: str) -> int:
        """Removes a pod and returns its number of copies. Pauses during long work."""

    def pods(self) -> list[str]:
        """Returns names of pods that have or had blocks, except removed pods."""

    def size(self) -> IndexSize:
        """Returns the content of the backend in numbers."""

    def close(self) -> None:
        """Closes connections; shared data stays."""
