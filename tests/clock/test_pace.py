"""Work that pauses by the clock."""

from __future__ import annotations

from app.clock.clock import VirtualClock
from app.clock.pause import Pace


def test_work_pauses_when_the_last_pause_is_long_ago() -> None:
    clock, pauses = VirtualClock(), list[float]()
    pace = Pace(clock.now, 0.004, lambda: pauses.append(round(clock.now(), 4)))
    for _ in range(10):
        clock.advance(0.0015)
        pace()
    assert pauses == [0.0045, 0.009, 0.0135]
