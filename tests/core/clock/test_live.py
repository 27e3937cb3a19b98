"""The real clock's alarm in the hub: at its moment, once, and the last one that was set."""

import os
import time

import gevent
import pytest

from app.core.base.clock import pause
from app.core.base.clock.clock import Alarm, LiveClock
from app.core.base.clock.pause import Pace, pause_if_possible
from app.shared.virtual_clock import VirtualClock

SOON_S = 0.01
PATIENCE_S = 2.0
EARLY_S = 0.001
"""libev rounds to its own, coarser time."""


@pytest.fixture(params=[True, False], ids=["timerfd", "libev"])
def timer(request: pytest.FixtureRequest) -> LiveClock:
    clock = LiveClock()
    clock.kernel_timer = request.param
    return clock


class Rings:
    def __init__(self) -> None:
        self.heard: list[tuple[str, float]] = []

    def alarm(self, name: str = "alarm") -> Alarm:
        def ring() -> None:
            self.heard.append((name, time.monotonic()))

        return ring

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]

    def wait_for(self, count: int) -> None:
        """Until so many have rung, and a moment longer for those that should not."""
        with gevent.Timeout(PATIENCE_S):
            while len(self.heard) < count:
                gevent.sleep(0.001)
        gevent.sleep(2 * SOON_S)


def test_alarm_fires_once_and_never_early(timer: LiveClock) -> None:
    rings = Rings()
    gevent.get_hub().loop.update_now()  # libev counts from when it last looked at the time
    moment_s = time.monotonic() + SOON_S
    timer.ring_at(moment_s, rings.alarm())
    rings.wait_for(1)
    [(_, rang_s)] = rings.heard
    assert moment_s - EARLY_S <= rang_s < moment_s + PATIENCE_S


@pytest.mark.parametrize(("first_s", "second_s"), [(SOON_S, 2 * SOON_S), (60.0, SOON_S)])
def test_newly_set_alarm_replaces_the_previous_alarm(
    timer: LiveClock, first_s: float, second_s: float
) -> None:
    rings = Rings()
    now_s = time.monotonic()
    timer.ring_at(now_s + first_s, rings.alarm("first"))
    timer.ring_at(now_s + second_s, rings.alarm("second"))
    rings.wait_for(1)
    assert rings.names == ["second"]


def test_clock_opens_one_timer_descriptor_at_its_first_alarm() -> None:
    clock = LiveClock()
    rings = Rings()
    gevent.sleep(0)  # the hub is there from now on
    descriptors = [len(os.listdir("/proc/self/fd"))]
    for _ in range(3):
        clock.ring_at(clock.now() + 60, rings.alarm("never"))
        descriptors.append(len(os.listdir("/proc/self/fd")))
    clock.ring_at(clock.now(), rings.alarm())
    rings.wait_for(1)
    assert rings.names == ["alarm"]
    assert descriptors == [descriptors[0], *[descriptors[0] + 1] * 3]


def test_waiting_greenlets_run_during_a_pause_of_the_current_greenlet() -> None:
    ran: list[str] = []
    other = gevent.spawn(ran.append, "other")
    pause_if_possible()
    assert ran == ["other"]
    other.join()


def test_pause_in_a_callback_of_the_event_loop_returns_immediately() -> None:
    outcomes: list[str] = []

    def callback() -> None:
        pause_if_possible()
        outcomes.append("done")

    gevent.get_hub().loop.run_callback(callback)
    gevent.sleep(0.001)
    assert outcomes == ["done"]


def test_work_pauses_at_the_first_check_after_4_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    pauses = list[float]()

    def note_pause() -> None:
        pauses.append(round(clock.now(), 4))

    monkeypatch.setattr(pause, "pause_if_possible", note_pause)
    pace = Pace(clock.now, 0.004)
    for _ in range(10):
        clock.advance(0.0015)
        pace()
    assert pauses == [0.0045, 0.009, 0.0135]
