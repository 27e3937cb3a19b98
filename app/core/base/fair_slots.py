"""Bounded queues in front of work that only a few requests may do at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import ParamSpec, TypeVar

from gevent.event import Event
from greenlet import getcurrent

from app.core.base.callers import check_client, current_caller, current_connection, watched
from app.core.base.clock.pause import call_off_hub, can_wait, is_in_hub, is_loop_shared
from app.core.base.overload import ClientLeftError, NoWaitError, SlotsBusyError
from config.cores import usable_cores

P = ParamSpec("P")
T = TypeVar("T")

MAX_WAITING = 1024
"""Default number of requests that may wait for a slot."""


class FairSlots:
    """Lets `count` greenlets work at a time; use it in a `with` statement.

    Clients take turns, whatever number of requests each one has, and one client may have half of
    the waiting requests. The wait ends when the client disconnects.
    """

    def __init__(self, count: int, max_waiting: int = MAX_WAITING) -> None:
        self._free = count
        self._max_waiting = max_waiting
        self._waiting: dict[str, deque[Event]] = {}
        """Waiting requests by the address of their client; the next client first."""

    def __enter__(self) -> None:
        """Waits for a slot.

        Raises:
            SlotsBusyError: too many requests wait.
            ClientLeftError: the client has disconnected.
            NoWaitError: the caller is the event loop, which cannot wait for the work itself.
        """
        if is_in_hub():
            raise NoWaitError
        check_client()
        if self._free > 0:
            self._free -= 1
            return
        caller = current_caller.get()
        name = "" if caller is None else caller.client
        queue = self._waiting.get(name) or deque()
        count = sum(map(len, self._waiting.values()))
        is_greedy = caller is not None and len(queue) >= self._max_waiting // 2
        if is_greedy or count >= self._max_waiting:
            raise SlotsBusyError("Too many requests are waiting for the same work; retry later.")
        self._waiting[name] = queue
        turn = Event()
        queue.append(turn)
        try:
            with ended_by_client():
                turn.wait()
        except BaseException:
            if turn.is_set():
                self.__exit__()
            else:
                queue.remove(turn)
                if not queue:
                    del self._waiting[name]
            raise

    def __exit__(self, *error: object) -> None:
        """Passes the slot on to the next client."""
        if not self._waiting:
            self._free += 1
            return
        name, queue = next(iter(self._waiting.items()))
        del self._waiting[name]
        queue.popleft().set()
        if queue:
            self._waiting[name] = queue


def ended_by_client() -> AbstractContextManager[None]:
    """Raises ClientLeftError in the block as soon as the client of the request disconnects."""
    return watched(current_connection(), partial(getcurrent().throw, ClientLeftError))


class NativeThreads:
    """Limits the native threads of one kind of work.

    All threads together take processor cores, and Python's code takes the GIL, from the event loop:
    with ten threads on two cores, the loop waits for four fifths of the time.
    """

    def __init__(self, max_threads: int = 0) -> None:
        """Without a number, all cores but one may have a thread."""
        self._slots = FairSlots(max_threads or max(1, usable_cores() - 1))

    def call_here(self, function: Callable[[], T]) -> T:
        """Runs `function`, which uses one native thread, when a thread is free."""
        if not can_wait() or not is_loop_shared():
            return function()
        with self._slots:
            return function()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function` off the hub when a thread is free; see `call_off_hub` and `FairSlots`."""
        return self.call_here(partial(call_off_hub, function, *args, **kwargs))
