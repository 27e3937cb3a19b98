"""Fair turns: a few milliseconds of work per turn of the event loop, short work first.

A client that sends without a pause is ready whenever the loop looks, and long work goes on whenever its
pause is over. Sixty of them would hold the loop for as long as a part of the work of each takes. Here a bound
on the work of one turn holds for all together. What does not fit waits in one of two lines: connections whose
work was short go first, and of the others at least one is served in each turn. So a health check waits for no
crowd, and nobody waits for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import gevent

TURN_S = 0.004
"""Most work per turn of the loop, in seconds; keeps streams on time."""
SHORT_S = 0.0002
"""Work of so much processor time is short, in seconds: a plain request takes half of that."""

Work = Callable[[], object]


class Share:
    """One connection: `cost_s` is about the processor time of its last few works, in seconds."""

    __slots__ = ("cost_s",)

    def __init__(self, cost_s: float = 0.0) -> None:
        self.cost_s = cost_s

    def add(self, cost_s: float) -> None:
        """Learn what a work took. A mean, so that long work cannot hide between short work."""
        self.cost_s += (cost_s - self.cost_s) / 4


class FairTurns:
    """Decides when each connection of one event loop, that of the thread that makes it, is worked for."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """Both in seconds; processor time does not count what the machine gives to other processes."""
        self._now, self._processor_time = now, processor_time
        self._end_s = inf
        """When this turn of the loop has done enough for clients; inf until something is done."""
        self._short: deque[tuple[Share, list[Work]]] = deque()
        """Who waits with short work: the work is in a list, which is empty if it was given up."""
        self._long: deque[tuple[Share, list[Work]]] = deque()
        loop = gevent.get_hub().loop
        self._next_turn: Any = loop.timer(0.0)
        self._turn_begins: Any = loop.prepare(ref=False)
        self._turn_begins.start(self._begin_turn)

    def close(self) -> None:
        """Forget who waits, and leave the loop."""
        self._short.clear()
        self._long.clear()
        for watcher in (self._next_turn, self._turn_begins):
            watcher.stop()
            watcher.close()

    def has_time(self) -> bool:
        """True if work may be done at once: nobody waits, and this turn of the loop has done little."""
        if self._short or self._long:
            return False
        now_s = self._now()
        if self._end_s == inf:
            self._end_s = now_s + TURN_S
        return now_s < self._end_s

    def put(self, share: Share, work: Work) -> None:
        """Hub: call `work` for a connection when its turn comes."""
        self._put(share, [work])

    def wait(self, share: Share) -> None:
        """Greenlet: go on now, or when the turn of its connection comes."""
        if not self.has_time():
            self._switch(share)

    def pause(self) -> None:
        """Greenlet: let others have their turn, and go on when that of long work comes."""
        self._switch(Share(TURN_S))

    def _switch(self, share: Share) -> None:
        waiting: list[Work] = [gevent.getcurrent().switch]
        self._put(share, waiting)
        try:
            gevent.get_hub().switch()
        finally:
            waiting.clear()

    def _begin_turn(self) -> None:
        self._end_s = inf

    def _put(self, share: Share, work: list[Work]) -> None:
        if not self._short and not self._long:
            self._next_turn.start(self._serve)
        (self._short if share.cost_s <= SHORT_S else self._long).append((share, work))

    def _serve(self) -> None:
        """Do what waits, as long as this turn of the loop may last, and one long work at least."""
        until_s = self._now() + TURN_S
        try:
            while self._short and self._now() < until_s:
                self._do(*self._short.popleft())
            if self._long:
                self._do(*self._long.popleft())
            while self._long and self._now() < until_s:
                self._do(*self._long.popleft())
        finally:
            self._end_s = -inf
            if self._short or self._long:
                self._next_turn.start(self._serve)

    def _do(self, share: Share, work: list[Work]) -> None:
        if work:
            begun_s = self._processor_time()
            work[0]()
            share.add(self._processor_time() - begun_s)
