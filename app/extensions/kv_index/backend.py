"""The interface of the index's storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from app.extensions.kv_index.copies import Copies
from app.extensions.kv_index.holders import Holders, IndexedEngine
from app.extensions.kv_index.operations import CoveredKeys, Operation, Outcome, Stamp


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
    max_events_per_step: int
    """Maximum number of events to apply without a pause."""

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
