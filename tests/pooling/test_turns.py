"""Long work lets others have their turn."""

from __future__ import annotations

import gevent

from app.pooling.numbers import LEAST, TURN, Turns


def turns_of_another_during(sizes: list[int]) -> int:
    """How often a second greenlet came to run while items of `sizes` were gone through."""
    seen: list[int] = []

    def other() -> None:
        while True:
            seen.append(1)
            gevent.sleep(0)

    greenlet = gevent.spawn(other)
    assert list(Turns().each(sizes, int)) == sizes
    greenlet.kill()
    return len(seen)


def test_small_work_is_done_at_once() -> None:
    assert turns_of_another_during([1, 2, 3]) == 0


def test_long_work_pauses() -> None:
    assert turns_of_another_during([TURN] * 3) >= 3


def test_many_small_items_are_long_work() -> None:
    assert turns_of_another_during([0] * (TURN // LEAST)) >= 1
