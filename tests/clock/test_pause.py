"""Long work gives way to others, and long calls are made beside the event loop."""

from __future__ import annotations

import gevent
import pytest

from app.base.clock.clock import VirtualClock
from app.base.clock.pause import Pace, Slices, call_off_hub, pause_if_possible


def test_a_pause_comes_after_so_many_steps() -> None:
    pauses: list[int] = []
    slices = Slices(10, lambda: pauses.append(len(pauses)))
    for _ in range(11):
        slices.spend()
    assert len(pauses) == 1
    slices.spend(11)
    assert len(pauses) == 2


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


def test_a_call_returns_and_raises_as_it_does_anywhere() -> None:
    assert call_off_hub(int, "7", base=8) == 7
    with pytest.raises(ValueError, match="x"):
        call_off_hub(int, "x")


def test_work_pauses_when_the_last_pause_is_long_ago() -> None:
    clock, pauses = VirtualClock(), list[float]()
    pace = Pace(clock.now, 0.004, lambda: pauses.append(round(clock.now(), 4)))
    for _ in range(10):
        clock.advance(0.0015)
        pace()
    assert pauses == [0.0045, 0.009, 0.0135]
