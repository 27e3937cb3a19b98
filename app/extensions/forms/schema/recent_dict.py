"""A dictionary within a limit of memory, for compiled schemas."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """A dictionary within a limit of memory, which evicts the least recently used entries.

    Threads may share it. Finding an entry takes no lock, which costs more than the look-up: both
    of its steps are atomic.
    """

    def __init__(self, limit_bytes: int, entry_bytes: Callable[[K, V], int]) -> None:
        """`entry_bytes` estimates the memory of an entry."""
        super().__init__()
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entry_bytes = entry_bytes
        self._lock = Lock()

    def find(self, key: K) -> V | None:
        """Returns the value of a key, which counts as used; None for an unknown key."""
        try:
            self.move_to_end(key)
            return self[key]
        except KeyError:
            return None

    def add(self, key: K, value: V) -> None:
        """Adds an entry, unless it alone exceeds the limit or the key is known."""
        entry_bytes = self._entry_bytes(key, value)
        with self._lock:
            if entry_bytes <= self.limit_bytes and key not in self:
                self[key] = value
                self.size_bytes += entry_bytes
                while self.size_bytes > self.limit_bytes:
                    self.size_bytes -= self._entry_bytes(*self.popitem(last=False))
