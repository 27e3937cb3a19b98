"""The executor that requests wait on: `max-num-seqs` places and a waiting list.

It keeps the contract of `concurrent.futures.Executor`, with places instead of threads. A thread per
running sequence would only sleep (the pacer does the waiting), and a hop to it would cost more than
a short reply does. So a callable runs in the turn that gives it a place: the submitter's own turn
when a place is free, else the turn in which another sequence leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class PlaceExecutor(Executor):
    """Runs at most `places` tasks at a time, first come, first served.

    A task that returns a `Future` keeps its place until that future is done, and resolves to its
    result; any other task gives its place back when it returns. One greenlet hub owns the state,
    so there is no lock. Nothing is started here that a fork could lose.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.running = 0
        self._waiting: OrderedDict[Future[Any], Task] = OrderedDict()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Tasks that have no place yet."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """Places that a task submitted now would get at once."""
        return 0 if self._waiting else self.places - self.running

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` as soon as a place is free; `forget` the future to leave the waiting list.

        Raises RuntimeError after `shutdown`.
        """
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        future: Future[Any] = Future()
        if self.free > 0:
            self._run(fn, args, kwargs, future)
            self._fill()  # others may have come while it ran, and found no place
        else:
            self._waiting[future] = (fn, args, kwargs)
        return future

    def forget(self, future: Future[Any]) -> bool:
        """Take a task that still waits off the list; False when it has a place already."""
        return self._waiting.pop(future, None) is not None and future.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; with `cancel_futures` drop those that wait."""
        self._closed = True
        while cancel_futures and self._waiting:
            self._waiting.popitem(last=False)[0].cancel()

    def _fill(self) -> None:
        while self._waiting and self.running < self.places:
            future, (fn, args, kwargs) = self._waiting.popitem(last=False)
            self._run(fn, args, kwargs, future)

    def _run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], future: Future[Any]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self.running += 1
        try:
            result = fn(*args, **kwargs)
            if isinstance(result, Future):
                if not result.done():
                    result.add_done_callback(lambda done: self._leave(done, future))
                    return
                result = result.result()
        except Exception as error:
            self.running -= 1
            future.set_exception(error)
        else:
            self.running -= 1
            future.set_result(result)

    def _leave(self, done: Future[Any], future: Future[Any]) -> None:
        self.running -= 1
        try:
            result = done.result()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        self._fill()
