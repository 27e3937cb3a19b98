"""What keeps the index: one small interface, and the words in which it is spoken to.

A *request key* names the content of a block, the same on every pod; an *engine key* is the name that one
engine gave it. Scores ask by request keys; engines take blocks away by engine keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from app.kvindex.holders import Copies, Engine, Holders

GPU, CPU = "gpu", "cpu"
MOST_TIERS = 16
"""Storage tiers of the index."""
MOST_HOLDERS = 65_536
"""KV cache groups of engines that there may be at once."""

Owned: TypeAlias = int | tuple[int, ...]
"""The request keys that an engine's block has a part in, in their order.

One number where the two are the same. A tuple that ends in `UNALIGNED` belongs to a block that ends inside a
block of the index.
"""

UNALIGNED = 0
"""No block has this request key."""


def keys_of(owned: Owned) -> tuple[int, ...]:
    """The request keys of an entry."""
    if isinstance(owned, int):
        return (owned,)
    return owned[:-1] if owned and owned[-1] == UNALIGNED else owned


class Store(Struct, frozen=True, gc=False):
    """Blocks are now in a tier: `owned` are the request keys of each of `engine`, `keys` all that are full.

    No key is twice among `keys`. `remapped` are blocks of earlier events that turn out to have a part in
    some of them.
    """

    group: int
    tier: str
    engine: Sequence[int]
    owned: Sequence[Owned]
    keys: Sequence[int]
    remapped: Sequence[tuple[int, tuple[int, ...]]] = ()
    scored: bool | None = None
    adapter: str | None = None


class Offload(Struct, frozen=True, gc=False):
    """Blocks that are known are now in a further tier."""

    group: int
    tier: str
    engine: Sequence[int]


class Remove(Struct, frozen=True, gc=False):
    """Blocks are no longer in a tier."""

    group: int
    tier: str
    engine: Sequence[int]


class Clear(Struct, frozen=True, gc=False):
    """The engine has no blocks any more."""


Operation: TypeAlias = Store | Offload | Remove | Clear


class Stamp(Struct, frozen=True, gc=False):
    """Which batch of an engine it is, and which part of it: indexers that share a backend apply it once.

    `restart` marks the first batch of an engine that has begun anew.
    """

    sequence: int
    ts: float
    restart: bool = False
    part: int = 0


class Outcome(Struct):
    """What some operations have done, in block copies; `unknown` blocks were named but are not held.

    `applied` is False when another indexer had applied the batch.
    """

    added: int = 0
    removed: int = 0
    unknown: int = 0
    applied: bool = True

    def plus(self, other: Outcome) -> Outcome:
        """With what was done after that."""
        return Outcome(
            self.added + other.added,
            self.removed + other.removed,
            self.unknown + other.unknown,
            other.applied,
        )


class Size(Struct, frozen=True):
    """What is held: `blocks`, `copies` of them (a block in a tier of a holder), and `weight`.

    `weight` is what the backend's bound is stated in; both are None where there is no bound.
    """

    blocks: int
    copies: int
    evicted: int = 0
    weight: int | None = None
    bound: int | None = None


class BackendUnavailable(Exception):
    """The backend does not answer now; the same call may succeed later."""


class Found(NamedTuple):
    """The copies of a prompt's first blocks, the holders of their bits, and the tiers in order."""

    copies: list[Copies]
    holders: Holders
    tiers: Sequence[str]


class Backend(Protocol):
    """Keeps which holder has which block in which tier. Every method may raise `BackendUnavailable`."""

    tiers: list[str]
    """The tiers that are known."""
    epoch: str
    """Changes when the backend turns out to have lost all that it held."""
    times_lost: int
    """How often that was."""

    def owned(self, source: Engine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        """What each engine key of a source, given as (group, key), has a part in; None for unknown ones."""

    def apply(self, source: Engine, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        """Applies the operations in order; where several indexers share the backend, all of them or none.

        Long work pauses. Raises TooManyHolders when there is no room for the source.
        """

    def lookup(self, keys: Sequence[int]) -> Found:
        """The holders of blocks, up to the first block without any."""

    def position(self, source: Engine) -> Stamp | None:
        """The latest batch of an engine that any indexer has applied; None if it is not known."""

    def clear(self, pod: str) -> int:
        """Forgets a pod; returns how many copies it had. Long work pauses."""

    def pods(self) -> list[str]:
        """The pods that have or had blocks and are not forgotten, by name."""

    def size(self) -> Size: ...

    def close(self) -> None:
        """Closes connections. Shared data stays."""


class RedisSettings(Struct, frozen=True, kw_only=True):
    """How the backend in Redis is reached: here, as its client takes long to import.

    `url` is of redis, rediss, valkey, valkeys or unix, or only host and port.

    All keys begin with `namespace`. A block that was not stored for `ttl_s` seconds is forgotten, with 0
    never; `size` then tells what was stored and not removed. `timeout_s` is for one call.
    """

    url: str = "redis://127.0.0.1:6379"
    namespace: str = "kvindex"
    ttl_s: int = 0
    timeout_s: float = 1.0
    most_holders: int = MOST_HOLDERS
    count_repeats: bool = True
