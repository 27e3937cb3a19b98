"""Protocols of engines and KV caches, of one rank or several, for an operator's commands.

For types only: no server imports this module.
"""

from typing import Protocol


class Pausable(Protocol):
    """Starts the sequences of an engine, or of several."""

    def pause(self) -> None:
        """Starts no more sequences."""

    def hold(self) -> None:
        """Starts no more sequences, and computes no tokens of running ones in steps."""

    def preempt_all(self) -> None:
        """Preempts the running sequences, if they share steps."""

    def resume(self) -> None:
        """Starts sequences again."""


class PausableEngine(Protocol):
    """Engine of one rank, or the engines of several, for `Lifecycle`."""

    refuses_requests: bool

    @property
    def executor(self) -> Pausable:
        """Starts sequences."""

    @property
    def running(self) -> int:
        """Number of running sequences."""

    def interrupt(self, *, counted: bool) -> int:
        """Ends all requests."""


class ResettableCache(Protocol):
    """KV cache of one rank, or the caches of several, for `Lifecycle`."""

    caching: bool

    def reset(self, under_requests: bool, external: bool) -> bool:
        """Empties the prefix cache; see `Operations.reset_prefix_cache`."""
