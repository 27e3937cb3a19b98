"""Turns of the event loop are shared between connections: short work first."""

from collections.abc import Sized
from functools import partial

import gevent
import pytest

from app.core.server.gunicorn.fair_turns import TURN_S, ConnectionCost, FairTurns

PATIENCE_S = 5.0


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def turns(time: Time) -> FairTurns:
    return FairTurns(time, time)


def run_until(done: Sized, count: int) -> None:
    """Runs turns of the event loop until `done` has `count` entries."""
    with gevent.Timeout(PATIENCE_S):
        while len(done) < count:
            gevent.sleep(0)


def test_connections_share_the_time_limit_of_an_event_loop_iteration(
    turns: FairTurns, time: Time
) -> None:
    began: list[int] = []
    done: list[int] = []
    watcher = gevent.get_hub().loop.prepare()
    watcher.start(began.append, 1)

    def work() -> None:
        time.now_s += 0.6 * TURN_S
        done.append(len(began))

    for _ in range(6):
        turns.schedule(ConnectionCost(), work)
    run_until(done, 6)
    watcher.close()
    assert len(done) == 6 and max(map(done.count, done)) == 2


def test_short_tasks_run_before_a_long_task_in_every_event_loop_iteration(
    turns: FairTurns, time: Time
) -> None:
    done: list[str] = []
    long = ConnectionCost(1.0)
    short = ConnectionCost()

    def work(name: str, seconds: float) -> None:
        done.append(name)
        time.now_s += seconds

    for _ in range(3):
        turns.schedule(long, partial(work, "long", TURN_S))
    for _ in range(6):
        turns.schedule(short, partial(work, "short", 0.6 * TURN_S))
    run_until(done, 9)
    assert done == ["short", "short", "long"] * 3


def test_greenlet_killed_while_waiting_does_not_block_the_next_one(
    turns: FairTurns, time: Time
) -> None:
    assert turns.has_time()
    time.now_s += TURN_S
    assert not turns.has_time()
    order: list[str] = []

    def patient(name: str) -> None:
        time.now_s += TURN_S
        turns.has_time()
        time.now_s += TURN_S
        turns.wait(ConnectionCost())
        order.append(name)

    first = gevent.spawn(patient, "first")
    second = gevent.spawn(patient, "second")
    gevent.sleep(0)
    first.kill()
    second.join(1.0)
    assert order == ["second"]
