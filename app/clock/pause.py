"""Long work that leaves the event loop alone: in slices with pauses between, or in a native thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists

P = ParamSpec("P")
T = TypeVar("T")

PAUSE_S = 1e-6
"""For sleeps. Not 0: the loop may run fifty more callbacks before it looks at sockets and timers then."""
LONGEST_WORK_S = 0.004
"""After so long others have their turn."""
SLICE_STEPS = 400
"""Steps of about 10 us each after which a slice of work ends: about 4 ms."""


def pause() -> None:
    """Let whatever is due have its turn."""
    getattr(gevent.get_hub(), "pause", _sleep)()


def pause_with(take_turns: Callable[[], None]) -> None:
    """On this thread's loop, `pause` waits as `take_turns` does: for a loop that tells who goes on when."""
    gevent.get_hub().pause = take_turns


def _sleep() -> None:
    gevent.sleep(PAUSE_S)


def pause_if_possible() -> None:
    """`pause` where greenlets run; nothing in threads without a loop, or in the loop's own callbacks."""
    hub = get_hub_if_exists()
    if hub is not None and gevent.getcurrent() is not hub:
        pause()


class Slices:
    """Counts steps of work (about 10 us each), and pauses after so many.

    One object may serve all work of one kind, also in several greenlets: they then pause more often.
    """

    __slots__ = ("_left", "_pause", "_steps")

    def __init__(self, steps: int = SLICE_STEPS, pause: Callable[[], None] = pause_if_possible) -> None:
        self._steps = self._left = steps
        self._pause = pause

    def spend(self, steps: int = 1) -> None:
        """So much is done; pause when that is enough for now."""
        self._left -= steps
        if self._left < 0:
            self._left = self._steps
            self._pause()

    def parts(self, items: Sequence[T], size: int, steps: int) -> Iterator[Sequence[T]]:
        """`items` in parts of `size`, each of which costs `steps`; a short one at the end costs its share."""
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part
            self.spend(-(-steps * len(part) // size))


class Pace:
    """Pauses when that is due by the clock: for work of which nobody knows before how long it takes."""

    __slots__ = ("_now", "_pause", "_since_s", "longest_s")

    def __init__(
        self,
        now: Callable[[], float],
        longest_s: float = LONGEST_WORK_S,
        pause: Callable[[], None] = pause_if_possible,
    ) -> None:
        """`now` gives monotonic seconds."""
        self._now, self._pause, self.longest_s = now, pause, longest_s
        self._since_s = now()

    def __call__(self) -> None:
        """A part of the work is done; pause when the last pause is long ago."""
        if self._now() - self._since_s > self.longest_s:
            self._pause()
            self._since_s = self._now()


SWITCH_S = 0.0005
"""How soon the event loop gets the GIL back from Python code in another thread. It loses it with every system
call, so that the interpreter's usual 5 ms would add up to 50 ms a request."""


def share_loop() -> None:
    """This thread's loop serves many requests at a time, though gevent has patched nothing."""
    gevent.get_hub().is_shared = True


def _loop_is_shared() -> bool:
    """Whether others wait while this thread's loop does."""
    return monkey.is_module_patched("socket") or getattr(get_hub_if_exists(), "is_shared", False)


def call_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a native thread while other greenlets run; a plain call where none serves others.

    Library calls that release the GIL leave the loop alone (`encode_batch` does, `encode` does not); from
    Python code the interpreter takes it away after `SWITCH_S`, which is set here for the whole process.
    """
    if not _loop_is_shared():
        return function(*args, **kwargs)
    sys.setswitchinterval(SWITCH_S)

    done: list[T] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        # What is raised in a native thread, gevent prints.
        try:
            done.append(function(*args, **kwargs))
        except BaseException as error:
            failed.append(error)

    gevent.get_hub().threadpool.apply(attempt)
    if failed:
        raise failed[0]
    return done[0]


def wait_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which waits for somebody else, while other greenlets run.

    What gevent has patched lets them run anyway.
    """
    if monkey.is_module_patched("socket"):
        return function(*args, **kwargs)
    return call_off_hub(function, *args, **kwargs)
