"""How long blocks live, on a clock that we move."""

from __future__ import annotations

from random import Random

import pytest

from app.base.clock.clock import VirtualClock
from app.engine.kvcache.residency import Residency
from tests.kvcache.caches import begin, serve, small_cache, tokens


class Observed:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lifetimes: list[float] = []
        self.idle: list[float] = []
        self.gaps: list[float] = []

    def block_evicted(self, lifetime_s: float, idle_s: float, gaps_s: list[float]) -> None:
        self.lifetimes.append(lifetime_s)
        self.idle.append(idle_s)
        self.gaps += gaps_s


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_uses_and_the_gaps_between_the_last_four_of_them(clock: VirtualClock, observed: Observed) -> None:
    cache = small_cache(2, observer=Residency(observed, 1.0, Random(0), clock.now))
    serve(cache, tokens(0, 4))
    for pause in (1, 2, 3, 4, 5):
        clock.advance(pause)
        serve(cache, tokens(0, 5))
    clock.advance(6)
    observed.lifetimes.clear()
    observed.idle.clear()
    begin(cache, tokens(50, 8))
    assert sorted(observed.lifetimes) == [6, 1 + 2 + 3 + 4 + 5 + 6]
    assert observed.idle == [6, 6]
    assert observed.gaps == [3, 4, 5]


def test_only_a_share_of_the_blocks_is_followed(clock: VirtualClock, observed: Observed) -> None:
    cache = small_cache(10, observer=Residency(observed, 0.2, Random(0), clock.now))
    for start in range(0, 10_000, 100):
        serve(cache, tokens(start, 40))
    assert 0.1 < len(observed.lifetimes) / 990 < 0.3


def test_nothing_is_observed_of_blocks_that_are_cleared(clock: VirtualClock, observed: Observed) -> None:
    cache = small_cache(1, observer=Residency(observed, 1.0, Random(0), clock.now))
    serve(cache, tokens(0, 4))
    cache.reset()
    serve(cache, tokens(50, 4))
    assert observed.lifetimes == []
