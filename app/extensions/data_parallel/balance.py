"""The choice of a rank for a request, as in vLLM 0.32 (`v1/engine/core_client.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WAITING_WEIGHT = 6
"""Requests that one waiting request counts as, at most, where the KV cache is almost full."""
FULL_FROM = 0.5
"""Use of the KV cache, from 0 to 1, from which waiting requests count more."""


class RankLoad(NamedTuple):
    """The load of one rank, in requests."""

    in_flight: int
    """Unfinished requests that this API server has sent to the rank."""
    waiting: int
    running: int
    kv_usage: float
    """Used share of the KV cache, from 0 to 1."""


def score(load: RankLoad, api_servers: int = 1) -> float:
    """Returns how busy a rank is.

    `api_servers` is the number of servers that send requests to it, each as many as this one.
    """
    busy = max(api_servers * load.in_flight, load.waiting + load.running)
    return busy + load.waiting * WAITING_WEIGHT * max(0.0, load.kv_usage - FULL_FROM)


def least_busy(loads: Sequence[RankLoad], start: int, api_servers: int = 1) -> int:
    """Returns the position of the least busy rank: of several, the first from `start` on."""
    scores = [score(load, api_servers) for load in loads]
    order = [(start + offset) % len(loads) for offset in range(len(loads))]
    return min(order, key=scores.__getitem__)
