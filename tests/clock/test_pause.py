"""Long work gives way to others, and long calls are made beside the event loop."""

from __future__ import annotations

import gevent

from app.base.clock.clock import VirtualClock
from app.base.clock.pause import Pace, pause_if_possible


def test_others_run_in_a_pause() -> None:
    ran: list[str] = []
    other = gevent.spawn(ran.append, "other")
    pause_if_possible()
    assert ran == ["other"]
    other.join()


def test_a_callback_of_the_loop_makes_no_pause() -> None:
    outcomes: list[str] = []

    def callback() -> None:
        pause_if_possible()
        outcomes.append("done")

    gevent.get_hub().loop.run_callback(callback)
    gevent.sleep(0.001)
    assert outcomes == ["done"]


def test_work_pauses_when_the_last_pause_is_long_ago() -> None:
    clock, pauses = VirtualClock(), list[float]()
    pace = Pace(clock.now, 0.004, lambda: pauses.append(round(clock.now(), 4)))
    for _ in range(10):
        clock.advance(0.0015)
        pace()
    assert pauses == [0.0045, 0.009, 0.0135]
