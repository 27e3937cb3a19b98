"""Clocks, metrics and spans of all systems; the interface of containers with a memory limit."""

from collections.abc import Callable, Mapping
from typing import Protocol


class Bounded(Protocol):
    """A container that grows with traffic: its size and its limit, in estimated bytes."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory in use."""

    @property
    def limit_bytes(self) -> int:
        """Estimated memory when full."""


Caches = Callable[[], Mapping[str, Bounded]]
"""Returns the caches of a part of the server, by name; some exist only after the start."""
