"""The interfaces of routing and autoscaling policies, of simulated and of real fleets.

The workbench has the built-in policies; plugins may add others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from msgspec import Struct

ROUTING_POLICIES = ("random", "round-robin", "least-requests", "prefix-aware")
"""Names of the built-in routing policies."""
AUTOSCALERS = ("hpa", "schedule")
"""Names of the built-in autoscaling policies."""


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
        """Returns one of `pods`, which is never empty.

        `in_flight` counts the current requests of every pod.
        """


PolicyMaker = Callable[[Scores, Random], Policy]
"""Makes a policy from a source of scores and a random generator."""

Sample = Mapping[str, float]
"""`METRICS` of a pod at a scrape: counts, a share from 0 to 1, and quantiles of the TTFT in
seconds.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet at a look of its autoscaler."""

    at_s: float
    """Seconds since the first request."""
    pods: int
    """Pods that load or are ready; draining pods do not count."""
    samples: Sequence[Sample]
    """Last scrapes of the ready pods; a pod that was not scraped yet has none."""


Decide = Callable[[Look], int]
"""Returns the wanted number of pods. Called for each look in order."""
AutoscalerStart = Callable[[int], Decide]
"""Returns the decisions of a run that starts with this number of pods."""
