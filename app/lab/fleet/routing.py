"""Routing policies of a fleet, including those of plugins."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from msgspec import Struct

from app.lab.load.policies import (
    POLICIES,
    PREFIX_AWARE,
    RANDOM,
    ROUND_ROBIN,
    make_policy,
)
from config import UsageError

DEFAULT_POLICIES = (RANDOM, ROUND_ROBIN, PREFIX_AWARE)
"""Policies that are compared by default, before those of plugins."""


class Incoming(Struct, frozen=True):
    """A request to route."""

    path: str
    body: bytes


Scores = Callable[[Incoming], Mapping[str, float]]
"""Returns cached blocks of a prompt by pod, without pods that have none. Raises IndexerError."""


class Policy(Protocol):
    """Chooses the pod of each request."""

    @property
    def fallbacks(self) -> int:
        """Requests routed without scores, because the indexer failed."""

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Returns one of `pods`, of which there is at least one.

        `in_flight` counts the current requests of every pod.
        """


PolicyMaker = Callable[[Scores, Random], Policy]
"""Makes a policy from a source of scores and a random generator."""


def policies_of(
    names: Sequence[str], plugin_policies: Mapping[str, PolicyMaker]
) -> dict[str, PolicyMaker]:
    """Returns the makers of these policies; without names, of the default and all plugin policies.

    Raises:
        UsageError: A name is unknown.
    """
    makers: dict[str, PolicyMaker] = {name: partial(make_policy, name) for name in POLICIES}
    makers |= plugin_policies
    for name in names:
        if name not in makers:
            raise UsageError(
                f"argument --policies: invalid choice: {name!r}"
                f" (choose from {', '.join(map(repr, makers))})"
            )
    return {name: makers[name] for name in names or (*DEFAULT_POLICIES, *plugin_policies)}
