"""Work of many greenlets in one turn of the loop has a limit."""

from functools import partial

import gevent
import pytest

from app.core.base.clock.pause import SharedWork, TurnOverError


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """Returns the time."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> SharedWork:
    return SharedWork(clock.now, max_work_s=0.004)


@pytest.mark.parametrize(
    ("work_s", "expected"),
    [
        (0.001, ["work 1", "work 2", "work 3", "health"]),
        (0.005, ["work 1", "health", "work 2", "work 3"]),
    ],
    ids=["within", "beyond"],
)
def test_work_beyond_the_limit_waits_for_another_turn(
    clock: Clock, shared: SharedWork, work_s: float, expected: list[str]
) -> None:
    done: list[str] = []

    def work(name: str) -> None:
        with shared:
            clock.now_s += work_s
            done.append(name)

    names = ("work 1", "work 2", "work 3")
    greenlets = [gevent.spawn(work, name) for name in names]
    greenlets.append(gevent.spawn(done.append, "health"))
    gevent.joinall(greenlets, timeout=5, raise_error=True)
    assert done == expected


def test_work_that_fails_counts(clock: Clock, shared: SharedWork) -> None:
    def fail() -> None:
        with shared:
            clock.now_s += 0.005
            raise ValueError

    done: list[str] = []
    other = gevent.spawn_later(0, done.append, "other")
    with pytest.raises(ValueError):
        fail()
    with shared:
        assert done == ["other"]
    other.join()


def test_callback_of_the_loop_does_not_wait(clock: Clock, shared: SharedWork) -> None:
    """A callback would stop the loop: a greenlet does its work instead."""
    outcomes: list[str] = []

    def attempt() -> None:
        try:
            with shared:
                clock.now_s += 0.005
            outcomes.append("done")
        except TurnOverError:
            outcomes.append("turn over")

    loop = gevent.get_hub().loop
    for callback in (attempt, attempt, partial(outcomes.append, "last")):
        loop.run_callback(callback)
    gevent.sleep(0.01)
    assert outcomes == ["done", "turn over", "last"]
    attempt()
    assert outcomes[3:] == ["done"]
