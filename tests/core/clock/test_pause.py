"""Long and blocking work beside an event loop: in slices, in place, or in a native thread."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier, Event, get_ident
from typing import TypeVar

import gevent
import pytest
from greenlet import greenlet

from app.core.base.callers import current_caller
from app.core.base.clock.pause import (
    Slices,
    call_off_hub,
    hand_to_hub,
    is_loop_shared,
    paced,
    pause,
    wait_off_hub,
)
from app.core.base.fair_slots import NativeThreads
from app.core.base.overload import ClientLeftError
from tests.core.memory.test_fair_slots import Connection, Request

T = TypeVar("T")

PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """Restores the interpreter's setting, which calls in native threads change."""
    interval_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)


class CountingLoop:
    """Counts pauses instead of pausing."""

    def __init__(self) -> None:
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1


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
        has_run = Event()
        waiting = gevent.spawn(wait_off_hub, has_run.wait, PATIENCE_S)
        gevent.spawn(has_run.set)
        return bool(waiting.get())

    assert in_separate_loop(work), "the second greenlet did not run during the call of the first"


def test_blocking_call_runs_in_its_own_thread_if_the_loop_is_not_shared() -> None:
    def work() -> bool:
        gevent.get_hub()
        return call_off_hub(get_ident) == get_ident()

    assert in_separate_loop(work), "the main greenlet of a thread called in another thread"


def test_calls_of_one_kind_share_a_number_of_native_threads() -> None:
    threads = NativeThreads(2)
    is_full = Barrier(2)

    def call() -> int:
        """Runs when two threads are busy, and breaks the barrier for a third."""
        running.append(get_ident())
        is_full.wait(PATIENCE_S)
        most.append(len(running))
        is_full.wait(PATIENCE_S)
        running.remove(get_ident())
        return get_ident()

    running: list[int] = []
    most: list[int] = []

    def work() -> set[int]:
        calls = [gevent.spawn(threads.call, call) for _ in range(6)]
        return {waiting.get() for waiting in calls}

    used = in_separate_loop(work)
    assert max(most) == 2
    assert get_ident() not in used


def test_loop_is_shared_in_all_greenlets_but_the_main_one() -> None:
    shared: dict[str, bool] = {}

    def note(kind: str) -> None:
        shared[kind] = is_loop_shared()

    def work() -> None:
        note("main")
        gevent.spawn(note, "spawned").join()
        hub = gevent.get_hub()
        hub.loop.run_callback(greenlet(note, hub).switch, "raw")
        gevent.sleep(0.01)

    in_separate_loop(work)
    assert shared == {"main": False, "spawned": True, "raw": True}


def test_every_greenlet_of_a_thread_pauses_with_the_loop_of_the_thread() -> None:
    loop = CountingLoop()

    def work() -> None:
        hub = gevent.get_hub()
        started_before = gevent.spawn(pause)
        hand_to_hub(loop)
        pause()
        started_before.join()
        gevent.spawn(pause).join()
        hub.loop.run_callback(gevent.spawn, pause)
        hub.loop.run_callback(greenlet(pause, hub).switch)
        gevent.sleep(0.01)

    in_separate_loop(work)
    assert loop.pauses == 5, "main, spawned before and after, spawned by the hub, and a raw one"


def test_loop_of_a_thread_is_unknown_in_another_thread() -> None:
    loop = CountingLoop()
    in_separate_loop(lambda: hand_to_hub(loop))

    in_separate_loop(pause)
    assert loop.pauses == 0, "a pause called the loop of a thread that has ended"


def test_paced_work_ends_when_the_client_of_its_request_has_left() -> None:
    connection = Connection()

    def work() -> None:
        current_caller.set(Request("10.0.0.1", connection))
        for number in paced(count()):
            if number == 3:
                connection.leave()

    with pytest.raises(ClientLeftError):
        gevent.spawn(work).get(timeout=PATIENCE_S)


def test_sliced_work_pauses_at_the_end_of_each_slice() -> None:
    steps_of_pauses: list[int] = []

    def work() -> None:
        loop = CountingLoop()
        hand_to_hub(loop)
        slices = Slices(steps=2)
        for step in range(1, 10):
            before = loop.pauses
            slices.spend()
            if loop.pauses > before:
                steps_of_pauses.append(step)

    in_separate_loop(work)
    assert steps_of_pauses == [3, 6, 9]
