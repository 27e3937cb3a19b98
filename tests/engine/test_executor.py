"""Slots keep the contract of `concurrent.futures`, and none is ever lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, wait
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.engine.executor import MOST_AT_ONCE, SlotExecutor


def test_it_is_an_executor_whose_futures_behave_as_usual() -> None:
    slots = SlotExecutor(2)
    assert isinstance(slots, Executor)
    future = slots.submit(divmod, 17, 5)
    assert (future.done(), future.result(0)) == (True, (3, 2))
    assert slots.submit(int, "ff", base=16).result(0) == 255
    assert list(slots.map(abs, [-1, 2, -3])) == [1, 2, 3]
    assert wait([future]).not_done == set()
    assert (slots.running, slots.waiting, slots.free()) == (0, 0, 2)


def test_a_task_that_returns_a_future_keeps_its_slot_until_that_one_is_done() -> None:
    slots = SlotExecutor(1)
    over: Future[str] = Future()
    first = slots.submit(lambda: over)
    assert first.running() and (slots.running, slots.free()) == (1, 0)
    over.set_result("the end")
    assert first.result(0) == "the end"
    assert (slots.running, slots.free()) == (0, 1)


def test_a_future_that_is_done_already_keeps_no_slot() -> None:
    slots = SlotExecutor(1)
    over: Future[str] = Future()
    over.set_result("at once")
    assert slots.submit(lambda: over).result(0) == "at once"
    assert slots.running == 0


def test_who_waits_is_served_in_order() -> None:
    slots = SlotExecutor(1)
    overs: list[Future[None]] = [Future() for _ in range(4)]
    begun: list[int] = []

    def task(number: int) -> Future[None]:
        begun.append(number)
        return overs[number]

    futures = [slots.submit(task, number) for number in range(4)]
    assert (begun, slots.waiting) == ([0], 3)
    assert [future.running() for future in futures] == [True, False, False, False]
    for number in range(4):
        assert begun == list(range(number + 1))
        overs[number].set_result(None)
    assert all(future.done() for future in futures)


def test_errors_reach_whoever_asks_and_free_the_slot() -> None:
    slots = SlotExecutor(1)
    with pytest.raises(ZeroDivisionError):
        slots.submit(lambda: 1 // 0).result(0)
    over: Future[None] = Future()
    chained = slots.submit(lambda: over)
    behind = slots.submit(lambda: "served")
    over.set_exception(KeyError("lost"))
    assert isinstance(chained.exception(0), KeyError)
    assert behind.result(0) == "served"
    assert slots.running == 0


def test_a_chained_future_that_is_cancelled_frees_the_slot_too() -> None:
    slots = SlotExecutor(1)
    over: Future[None] = Future()
    chained, behind = slots.submit(lambda: over), slots.submit(lambda: "served")
    assert over.cancel()
    with pytest.raises(CancelledError):
        chained.result(0)
    assert behind.result(0) == "served"


def test_an_error_of_one_that_waited_stops_nobody_behind() -> None:
    slots = SlotExecutor(1)
    over: Future[None] = Future()
    slots.submit(lambda: over)
    broken, behind = slots.submit(lambda: 1 // 0), slots.submit(lambda: "served")
    over.set_result(None)
    assert isinstance(broken.exception(0), ZeroDivisionError)
    assert behind.result(0) == "served"


def test_whoever_is_forgotten_never_runs_and_leaves_its_seat() -> None:
    slots = SlotExecutor(1)
    over: Future[None] = Future()
    running = slots.submit(lambda: over)
    gone, behind = slots.submit(pytest.fail), slots.submit(lambda: "served")
    assert slots.forget(gone) and slots.waiting == 1
    assert not slots.forget(gone)
    assert not slots.forget(running)
    over.set_result(None)
    assert gone.cancelled() and behind.result(0) == "served"
    with pytest.raises(CancelledError):
        gone.result(0)


def test_a_future_cancelled_the_usual_way_never_runs_either() -> None:
    slots = SlotExecutor(1)
    over: Future[None] = Future()
    slots.submit(lambda: over)
    gone, behind = slots.submit(pytest.fail), slots.submit(lambda: "served")
    assert gone.cancel()
    over.set_result(None)
    assert behind.result(0) == "served"
    assert (slots.running, slots.waiting) == (0, 0)


def test_a_task_may_submit_another_while_it_holds_the_only_slot() -> None:
    slots = SlotExecutor(1)
    inner: list[Future[str]] = []
    outer = slots.submit(lambda: inner.append(slots.submit(lambda: "inner")))
    assert outer.done()
    assert inner[0].result(0) == "inner"
    assert (slots.running, slots.waiting, slots.free()) == (0, 0, 1)


def test_after_shutdown_nothing_is_taken_but_what_runs_goes_on() -> None:
    slots = SlotExecutor(1)
    over: Future[str] = Future()
    running, waiting = slots.submit(lambda: over), slots.submit(lambda: "later")
    slots.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        slots.submit(print)
    over.set_result("done")
    assert (running.result(0), waiting.result(0)) == ("done", "later")


def test_shutdown_may_drop_those_that_wait() -> None:
    slots = SlotExecutor(1)
    over: Future[str] = Future()
    running, waiting = slots.submit(lambda: over), slots.submit(pytest.fail)
    slots.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and slots.waiting == 0
    over.set_result("done")
    assert running.result(0) == "done"


def test_a_thousand_short_tasks_behind_a_long_one_need_no_deep_stack() -> None:
    slots = SlotExecutor(1)
    over: Future[None] = Future()
    slots.submit(lambda: over)
    futures = [slots.submit(lambda n=n: n) for n in range(5000)]  # type: ignore[misc]
    over.set_result(None)
    assert [future.result(0) for future in futures] == list(range(5000))


class Waiter:
    """A task that keeps its slot; `free` says whether it fits."""

    adapter: str | None = None

    def __init__(self, fits: bool = True, keeps: bool = True, priority: int = 0) -> None:
        self.free, self.keeps, self.priority, self.started = fits, keeps, priority, False

    def fits(self) -> bool:
        return self.free

    def start(self) -> bool:
        self.started = True
        return self.keeps


def test_a_task_keeps_its_slot_until_it_leaves() -> None:
    slots = SlotExecutor(1)
    first, second = Waiter(), Waiter()
    assert slots.enter(first) and not slots.enter(second)
    assert (slots.running, slots.waiting, second.started) == (1, 1, False)
    slots.leave(first)
    assert (slots.running, slots.waiting, second.started) == (1, 0, True)


def test_a_task_that_does_not_fit_holds_up_those_behind_it() -> None:
    slots = SlotExecutor(3)
    large, small = Waiter(fits=False), Waiter()
    assert not slots.enter(large) and not slots.enter(small)
    large.free = True
    assert slots.enter(Waiter()) and (slots.running, slots.waiting) == (3, 0)


def test_a_task_that_cannot_start_loses_no_slot(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Waiter):
        def start(self) -> bool:
            raise ZeroDivisionError

    slots = SlotExecutor(1)
    slots.enter(Broken())
    assert slots.running == 0 and "could not be started" in caplog.text


def test_many_that_may_start_together_do_so_in_portions() -> None:
    soon: list[Callable[[], None]] = []
    slots = SlotExecutor(1000, later=soon.append)
    slots.pause()
    tasks = [Waiter(keeps=number % 2 == 0) for number in range(300)]
    for task in tasks:
        slots.enter(task)
    slots.resume()
    started = [MOST_AT_ONCE]
    while soon:
        soon.pop()()
        started.append(sum(task.started for task in tasks))
    assert started == [128, 256, 300] and (slots.running, slots.waiting) == (150, 0)


def test_those_who_may_start_later_share_a_turn_of_the_event_loop() -> None:
    soon: list[Callable[[], None]] = []
    slots = SlotExecutor(2, later=soon.append)
    tasks = [Waiter() for _ in range(3)]
    for task in tasks:
        assert not slots.enter(task, soon=True)
    [turn] = soon
    turn()
    assert [task.started for task in tasks] == [True, True, False]
    slots.enter(Waiter(), soon=True)
    assert len(soon) == 2
    assert SlotExecutor(2, later=soon.append).enter(Waiter()) and len(soon) == 2


@pytest.mark.parametrize("by_priority", [False, True])
def test_who_matters_more_goes_first_only_where_priorities_count(by_priority: bool) -> None:
    slots = SlotExecutor(1, by_priority=True) if by_priority else SlotExecutor(1)
    first, *tasks = (Waiter(priority=priority) for priority in (0, 5, 1, 0))
    slots.enter(first)
    for task in tasks:
        slots.enter(task)
    called = slots.submit(lambda: "as one of priority 0")
    slots.leave(first)
    order = [tasks[2], tasks[1], tasks[0]] if by_priority else tasks
    for task in order:
        assert task.started and not (task.priority == 0 and called.done())
        slots.leave(task)
        assert not by_priority or called.done()
    assert called.done()


def test_those_who_left_the_queue_are_forgotten_though_nobody_ever_gets_a_slot() -> None:
    slots = SlotExecutor(1)
    slots.enter(Waiter())
    stays = [Waiter() for _ in range(5)]
    for task in stays:
        slots.enter(task)
    for _ in range(10_000):
        gone = Waiter()
        slots.enter(gone)
        assert slots.forget(gone) and not slots.forget(gone)
    assert sum(map(len, slots._queue._heaps.values())) < 200
    while not stays[-1].started:
        slots.leave(stays[0])
    assert all(task.started for task in stays) and slots.waiting == 0


class Slots(RuleBasedStateMachine):
    """Any order of coming, ending, failing and leaving, against a plain list of who runs and who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotExecutor(3)
        self.futures: dict[int, Future[Any]] = {}
        self.overs: dict[int, Future[Any]] = {}
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.begun: list[int] = []
        self.expected: list[int] = []

    def _expect_fill(self) -> None:
        while self.waiting and len(self.running) < 3:
            self.running.append(self.waiting.pop(0))
            self.expected.append(self.running[-1])

    @rule()
    def comes(self) -> None:
        number = len(self.futures)
        self.overs[number] = Future()
        self.waiting.append(number)
        self._expect_fill()
        self.futures[number] = self.slots.submit(self._begin, number)

    def _begin(self, number: int) -> Future[Any]:
        self.begun.append(number)
        return self.overs[number]

    @rule(fails=st.booleans())
    def comes_and_is_over_at_once(self, fails: bool) -> None:
        number = len(self.futures)
        over: Future[Any] = Future()
        if fails:
            over.set_exception(ValueError())
        else:
            over.set_result(None)
        self.overs[number] = over
        if self.waiting or len(self.running) == 3:
            return
        self.expected.append(number)
        self.futures[number] = self.slots.submit(self._begin, number)
        assert self.futures[number].done()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2), fails=st.booleans())
    def ends(self, which: int, fails: bool) -> None:
        number = self.running.pop(which % len(self.running))
        self._expect_fill()
        if fails:
            self.overs[number].set_exception(ValueError())
        else:
            self.overs[number].set_result(number)
        assert self.futures[number].done()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 20))
    def leaves(self, which: int) -> None:
        number = self.waiting.pop(which % len(self.waiting))
        assert self.slots.forget(self.futures[number])

    @invariant()
    def nobody_is_lost(self) -> None:
        assert self.slots.running == len(self.running) <= 3
        assert self.slots.waiting == len(self.waiting)
        assert self.begun == self.expected
        assert self.slots.free() == (0 if self.waiting else 3 - len(self.running))


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
