"""Background loops: restarted after an error with growing waits, counted, and seen by readiness."""

import logging

import gevent
import pytest

from app.core.api.health import readiness
from app.core.base.background import FIRST_WAIT_S, GOOD_RUN_S, MAX_WAIT_S, BackgroundLoops
from app.core.base.limited_log import LimitedLog
from tests.core.engine.harness import Harness


class Time:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds


def test_failing_loop_is_restarted_with_growing_waits(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    loops = BackgroundLoops(time.now, time.sleep)
    runs = 0

    def loop() -> None:
        nonlocal runs
        runs += 1
        if runs == 12:
            time.now_s += GOOD_RUN_S
        if runs < 14:
            raise OSError("no more descriptors")

    loops.run("listener", loop)
    assert runs == 14
    assert loops.restarts == {"listener": 13}
    assert time.waits_s[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert time.waits_s[10:] == [MAX_WAIT_S, FIRST_WAIT_S, 2 * FIRST_WAIT_S]
    assert "listener: ended by an error; restarting in 0.1 s" in caplog.text
    assert "no more descriptors" in caplog.text
    assert 'understudy_loop_restarts_total{loop="listener"} 13.0' in loops.metrics_text()


def test_server_is_not_ready_while_a_loop_waits_for_its_restart() -> None:
    harness = Harness()
    states: list[bool] = []

    def sleep(seconds: float) -> None:
        states.append(is_ready())

    loops = BackgroundLoops(sleep=sleep)
    is_ready = readiness(harness.engine, harness.clock, startup_s=0.0, loops=loops)
    runs = 0

    def loop() -> None:
        nonlocal runs
        runs += 1
        states.append(is_ready())
        if runs == 1:
            raise ValueError

    loops.run("listener", loop)
    assert states == [True, False, True]
    assert is_ready()


def test_loop_that_is_killed_is_not_restarted() -> None:
    loops = BackgroundLoops()
    greenlet = loops.spawn("listener", gevent.sleep, 60)
    gevent.sleep(0)
    greenlet.kill()
    assert greenlet.dead
    assert loops.are_running
    assert loops.restarts == {"listener": 0}


def test_limited_log_writes_one_line_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    limited = LimitedLog(logging.getLogger("strangers"), now=time.now)
    for _ in range(100):
        limited.warning("garbage from %s", "a pod")
        time.sleep(0.1)
    assert len(caplog.records) in (10, 11)
    assert caplog.records[0].getMessage() == "garbage from a pod"
