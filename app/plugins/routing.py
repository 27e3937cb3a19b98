"""Routing policies of plugins, for `python -m app fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from app.fleet.routing import Incoming, Policy
from app.plugins.guard import Guard, HookFailed


class GuardedPolicy:
    """A plugin's policy; any pod, by chance, for a request for which it fails. Each such one is a fallback."""

    def __init__(self, inner: Policy, guard: Guard, rng: Random) -> None:
        self._inner, self._guard, self._rng = inner, guard, rng
        self._failures = 0

    @property
    def fallbacks(self) -> int:
        return self._failures + int(getattr(self._inner, "fallbacks", 0))

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """The pod that the plugin chooses."""
        try:
            return self._guard.call(self._chosen, incoming, pods, in_flight)
        except HookFailed:
            self._failures += 1
            return self._rng.choice(pods)

    def _chosen(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        pod = self._inner.choose(incoming, pods, in_flight)
        if pod not in pods:
            raise ValueError(f"chose {pod!r}, which is none of the pods")
        return pod
