"""Long work beside the event loop: in slices with pauses, or in a native thread."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, copy_context
from typing import ParamSpec, Protocol, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists

from app.core.base.callers import check_client

P = ParamSpec("P")
T = TypeVar("T")

PAUSE_S = 1e-6
"""Sleep of a pause, in seconds.

Not 0: the loop might run fifty more callbacks before sockets and timers.
"""
MAX_WORK_S = 0.004
"""Maximum work between two pauses, in seconds; keeps other greenlets on time."""
SLICE_STEPS = 400
"""Steps of about 10 us each in a slice of work: about 4 ms."""
SWITCH_S = 0.0005
"""Maximum wait of the event loop for the GIL held by Python code in another thread, in seconds.

The loop releases the GIL at every system call: Python's default of 5 ms would add up to 50 ms per
request.
"""
QUICK_BYTES = 1 << 14
"""Maximum number of bytes that are read or searched in place, in a millisecond or so."""


class Loop(Protocol):
    """A thread's event loop that schedules the greenlets of its requests itself."""

    def pause(self) -> None:
        """Greenlet: yields, and continues in its turn."""


_loop: ContextVar[Loop] = ContextVar("loop")
"""The loop of a thread, in the context of the thread's hub."""


def hand_to_hub(loop: Loop) -> None:
    """Makes `pause` in all greenlets of this thread call `loop`, until the hub is destroyed.

    Not to be called in the hub. Each greenlet begins with an empty context, and all greenlets of a
    thread have the same hub: the loop is therefore in the hub's context.
    """
    context = copy_context()
    context.run(_loop.set, loop)
    gevent.get_hub().gr_context = context


def pause() -> None:
    """Lets the loop serve due callbacks and sockets."""
    context = gevent.get_hub().gr_context
    loop = None if context is None else context.get(_loop)
    if loop is None:
        gevent.sleep(PAUSE_S)
    else:
        loop.pause()


def pause_if_possible() -> None:
    """Pauses where greenlets run.

    Returns at once in threads without a loop and in the loop's callbacks.
    """
    if can_wait():
        pause()


def can_wait() -> bool:
    """Returns True in a greenlet: False in a thread without a loop, and in the loop's callbacks."""
    hub = get_hub_if_exists()
    return hub is not None and gevent.getcurrent() is not hub


def is_in_hub() -> bool:
    """Returns True in the loop's callbacks, where nothing may wait."""
    return gevent.getcurrent() is get_hub_if_exists()


class Slices:
    """Counts steps of work (about 10 us each), and pauses after each slice.

    Work of one kind may share an object, also in several greenlets: each then pauses more often.
    Unlike that of a `Pace`, the work goes on when its client has left: aborts, counts and caches
    need their ends.
    """

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int = SLICE_STEPS) -> None:
        self._steps = steps
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Counts steps; pauses at the end of a slice."""
        self._left -= steps
        if self._left < 0:
            self._left = self._steps
            pause_if_possible()


class Pace:
    """Pauses by the clock, for work of unknown duration."""

    __slots__ = ("_last_pause_s", "_max_work_s", "_now")

    def __init__(self, now: Callable[[], float], max_work_s: float = MAX_WORK_S) -> None:
        """Creates a pace; `now` returns monotonic seconds."""
        self._now = now
        self._max_work_s = max_work_s
        self._last_pause_s = now()

    def __call__(self) -> None:
        """Pauses if `max_work_s` has passed since the last pause; call after each piece of work.

        Raises:
            ClientLeftError: behind a pause, if the client of the request has disconnected.
        """
        if self._now() - self._last_pause_s > self._max_work_s:
            pause_if_possible()
            self._last_pause_s = self._now()
            check_client()


class TurnOverError(Exception):
    """A callback of the loop has no time left for its work: a greenlet has to do it."""


class SharedWork:
    """Limits what many greenlets do in one turn of the loop; use it in a `with` statement.

    Each piece of work takes milliseconds, and forty requests may bring one each in the same turn.
    Beyond `max_work_s`, a piece waits for another turn. The work must not pause itself.
    """

    __slots__ = ("_done_s", "_max_work_s", "_now", "_start_s")

    def __init__(self, now: Callable[[], float], max_work_s: float = MAX_WORK_S) -> None:
        """`now` returns monotonic seconds."""
        self._now = now
        self._max_work_s = max_work_s
        self._done_s = 0.0
        self._start_s = 0.0

    def __enter__(self) -> None:
        """Waits for another turn if the work since the latest wait has taken `max_work_s`.

        Raises:
            TurnOverError: instead of a wait in a callback of the loop.
            ClientLeftError: behind a wait, if the client of the request has disconnected.
        """
        if self._done_s > self._max_work_s:
            if gevent.getcurrent() is get_hub_if_exists():
                raise TurnOverError
            # Not set to 0 before: the others that are ready in this turn have to wait, too.
            pause_if_possible()
            self._done_s = 0.0
            check_client()
        self._start_s = self._now()

    def __exit__(self, *error: object) -> None:
        """Counts the work."""
        self._done_s += self._now() - self._start_s


def paced(items: Iterable[T]) -> Iterable[T]:
    """Returns the items of a client, which may be many, with pauses by the clock between them.

    Raises:
        ClientLeftError: as `Pace`.
    """
    if type(items) is list and len(items) == 1:
        return items
    return _paced(items)


def _paced(items: Iterable[T]) -> Iterator[T]:
    pause_if_due = Pace(time.monotonic)
    for item in items:
        yield item
        pause_if_due()


def is_loop_shared() -> bool:
    """Returns True where the loop serves other requests while the calling greenlet waits.

    Returns False in a sync worker: its thread serves one request at a time, in its main greenlet,
    which alone has no parent.
    """
    return monkey.is_module_patched("socket") or gevent.getcurrent().parent is not None


def call_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function` in a native thread while other greenlets run.

    Calls it in place without a loop, if the loop is not shared, and in callbacks of the loop.

    Library calls that release the GIL do not block the loop (`encode_batch` releases it, `encode`
    does not). Python code releases the GIL after `SWITCH_S`, which is set here for the whole
    process.

    Bound the number of threads: ten that encoded texts on two cores kept the event loop waiting for
    9.8 of 12 seconds.
    """
    if not can_wait() or not is_loop_shared():
        return function(*args, **kwargs)
    sys.setswitchinterval(SWITCH_S)

    results: list[T] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        # gevent prints exceptions raised in its native threads.
        try:
            results.append(function(*args, **kwargs))
        except BaseException as error:
            errors.append(error)

    gevent.get_hub().threadpool.apply(attempt)
    if errors:
        raise errors[0]
    return results[0]


def call_long(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a `function` that works through `size` bytes; off the hub for many bytes."""
    if size <= QUICK_BYTES:
        return function(*args, **kwargs)
    return call_off_hub(function, *args, **kwargs)


def wait_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a blocking `function` while other greenlets run.

    Calls it in place where gevent has patched sockets: patched calls do not block the loop.
    """
    if monkey.is_module_patched("socket"):
        return function(*args, **kwargs)
    return call_off_hub(function, *args, **kwargs)
