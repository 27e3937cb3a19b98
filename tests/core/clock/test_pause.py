"""Long and blocking work beside an event loop: in slices, in place, or in a native thread."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, get_ident
from typing import TypeVar

import gevent
import pytest

from app.core.base.clock.pause import Slices, call_off_hub, pause_with, share_loop, wait_off_hub

T = TypeVar("T")

PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """Restores the interpreter's setting, which calls in native threads change."""
    interval_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)


def in_separate_loop(work: Callable[[], T]) -> T:
    """Runs `work` in a new thread, whose event loop ends with it."""

    def run() -> T:
        try:
            return work()
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(run).result()


def test_other_greenlets_run_during_a_blocking_call_in_a_shared_loop() -> None:
    def work() -> bool:
        share_loop()
        has_run = Event()
        gevent.spawn(has_run.set)
        return wait_off_hub(has_run.wait, PATIENCE_S)

    assert in_separate_loop(work)


def test_blocking_call_runs_in_its_own_thread_if_the_loop_is_not_shared() -> None:
    def work() -> bool:
        gevent.get_hub()
        return call_off_hub(get_ident) == get_ident()

    assert in_separate_loop(work)


def test_sliced_work_pauses_at_the_end_of_each_slice() -> None:
    pauses: list[int] = []

    def work() -> None:
        slices = Slices(steps=2)
        for step in range(1, 10):
            pause_with(partial(pauses.append, step))
            slices.spend()

    in_separate_loop(work)
    assert pauses == [3, 6, 9]
