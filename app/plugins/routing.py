"""Routing policies of plugins, for `python -m app fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from app.fleet.routing import Incoming, Policy, PolicyMaker, Scores
from app.plugins.guard import Guard, HookFailed
from config.declaration import ConfigError


def guarded_policy(make: PolicyMaker, guard: Guard, scores: Scores, rng: Random) -> Policy:
    """The policy that a plugin makes. ConfigError where it fails at that."""
    try:
        policy = make(scores, rng)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugin {guard.plugin}: hook routing failed at the start: {reason}") from None
    return GuardedPolicy(policy, guard, rng)


class GuardedPolicy:
    """A plugin's policy. A request for which it fails goes to any pod, by chance, and is a fallback."""

    def __init__(self, inner: Policy, guard: Guard, rng: Random) -> None:
        self._inner, self._guard, self._rng = inner, guard, rng
        self._failures = 0

    @property
    def fallbacks(self) -> int:
        """Its own, where it counts them, and those for which it failed."""
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
