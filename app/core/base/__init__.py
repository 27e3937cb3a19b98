"""Clocks, metrics and spans of all systems; the interface of containers with a memory limit."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable


class Bounded(Protocol):
    """A container that grows with traffic: its size and its limit, in estimated bytes."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory in use."""

    @property
    def limit_bytes(self) -> int:
        """Estimated memory when full."""


@runtime_checkable
class Recomputable(Bounded, Protocol):
    """A cache whose contents can be computed again, so that its limit may be lowered at any time.

    `full_limit_bytes` is the limit at which it works well, and `limit_bytes` the one in force.
    """

    full_limit_bytes: int
    limit_bytes: int

    def shrink(self) -> None:
        """Removes all entries, or the less recently used half."""


Caches = Callable[[], Mapping[str, Bounded]]
"""Returns the caches of a part of the server, by name; some exist only after the start."""
