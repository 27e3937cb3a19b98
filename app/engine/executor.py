"""The executor that requests wait on: `max-num-seqs` places and a waiting list.

It keeps the contract of `concurrent.futures.Executor`, with places instead of threads. A thread per
running sequence would only sleep (the pacer does the waiting), and a hop to it would cost more than
a short reply does. So a callable runs in the turn that gives it a place: the submitter's own turn
when a place is free, else the turn in which another sequence leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from app.engine.waiting import ANY_TIME, Line, Turn
from app.lora.slots import LoRASlots

NO_ADAPTERS = LoRASlots(0, lambda adapter: False)
"""For tasks that need none: it never holds any."""


class SlotExecutor(Executor):
    """Runs at most `places` tasks at a time; `Line` says who is next.

    A task that returns a `Future` keeps its place until that future is done, and resolves to its
    result; any other task gives its place back when it returns. One greenlet hub owns the state,
    so there is no lock. Nothing is started here that a fork could lose.
    """

    def __init__(self, places: int, residents: LoRASlots = NO_ADAPTERS, by_priority: bool = False) -> None:
        self.places = places
        self.running = 0
        self.paused = False
        self._residents = residents
        self._line = Line(residents, by_priority)
        self._tasks: dict[Future[Any], Callable[[], Any]] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """Tasks that have no place yet."""
        return len(self._line)

    def free(self, turn: Turn = ANY_TIME) -> int:
        """Places that tasks of this turn submitted now would get at once."""
        return self.places - self.running if not self.paused and self._line.may_run(turn) else 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` as soon as a place is free; `forget` the future to leave the waiting line.

        Raises RuntimeError after `shutdown`.
        """
        return self.take_turn(ANY_TIME, partial(fn, *args, **kwargs))

    def take_turn(self, turn: Turn, task: Callable[[], Any]) -> Future[Any]:
        """`submit` for a task that needs an adapter, or has a priority."""
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        future: Future[Any] = Future()
        if not self.waiting and self.free(turn) > 0:
            self._run(future, turn, task)
        else:
            self._tasks[future] = task
            self._line.join(future, turn)
        self._fill()  # also for those who came while it ran, and found no place
        return future

    def forget(self, future: Future[Any]) -> bool:
        """Take a task that still waits off the line; False when it has a place already."""
        self._tasks.pop(future, None)
        return self._line.forget(future) and future.cancel()

    def pause(self) -> None:
        """Give no more places away; who has one keeps it."""
        self.paused = True

    def resume(self) -> None:
        """Give places away again."""
        self.paused = False
        self._fill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; with `cancel_futures` drop those that wait."""
        self._closed = True
        if cancel_futures:
            for future in list(self._tasks):
                self.forget(future)

    def _fill(self) -> None:
        while not self.paused and self.running < self.places and (found := self._line.next()) is not None:
            future, turn = found
            self._run(future, turn, self._tasks.pop(future))

    def _run(self, future: Future[Any], turn: Turn, task: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self.running += 1
        adapter = turn.adapter if self._residents.enter(turn.adapter) else None
        try:
            result = task()
            if isinstance(result, Future):
                if not result.done():
                    result.add_done_callback(lambda done: self._leave(done, future, adapter))
                    return
                result = result.result()
        except Exception as error:
            self._give_back(adapter)
            future.set_exception(error)
        else:
            self._give_back(adapter)
            future.set_result(result)

    def _give_back(self, adapter: str | None) -> None:
        self.running -= 1
        if adapter is not None:
            self._residents.leave(adapter)

    def _leave(self, done: Future[Any], future: Future[Any], adapter: str | None) -> None:
        self._give_back(adapter)
        try:
            result = done.result()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        self._fill()
