"""Fair turns: a few milliseconds of work per turn of the event loop, short work first.

Clients that send without a pause, and long work after each pause, are ready in every turn of the
loop. Sixty such connections would delay the loop by one piece of work each. Here one limit applies
to the work of all connections in a turn. Further work waits in two queues: short work runs first,
and at least one piece of long work runs per turn. A health check therefore never waits for a crowd,
and every connection is served.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import gevent

TURN_S = 0.004
"""Most work per turn of the loop, in seconds; keeps streams on time."""
SHORT_S = 0.0002
"""Most processor time of short work, in seconds: twice the time of a plain request."""

Work = Callable[[], object]


@dataclass(slots=True)
class Share:
    """One connection's cost: a moving average of its processor time per work, in seconds.

    An average keeps long work from hiding between short work.
    """

    cost_s: float = 0.0


class FairTurns:
    """Schedules the work of all connections in the current thread's event loop."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """Both clocks return seconds; processor time excludes other processes."""
        self._now, self._processor_time = now, processor_time
        self._end_s, self._turn = -inf, -1
        """End of this turn's work for clients, and the loop's number of this turn."""
        self._short: deque[tuple[Share, list[Work]]] = deque()
        self._long: deque[tuple[Share, list[Work]]] = deque()
        """Waiting work; an empty list is abandoned work."""
        self._loop: Any = gevent.get_hub().loop
        self._next_turn: Any = self._loop.timer(0.0)

    def has_time(self) -> bool:
        """True if work may run at once: no work waits, and this turn has time left."""
        if self._short or self._long:
            return False
        now_s, turn = self._now(), self._loop.iteration
        if turn != self._turn:
            self._turn, self._end_s = turn, now_s + TURN_S
        return now_s < self._end_s

    def put(self, share: Share, work: Work) -> list[Work]:
        """Hub:

        schedules `work` for the turn of its connection; clear the returned list to abandon it.
        """
        if not self._short and not self._long:
            self._next_turn.start(self._serve)
        waiting = [work]
        (self._short if share.cost_s <= SHORT_S else self._long).append((share, waiting))
        return waiting

    def run_long(self, work: Work) -> None:
        """Hub: runs `work` now if this turn has time, else in a turn of long work."""
        if self.has_time():
            work()
        else:
            self.put(Share(TURN_S), work)

    def wait(self, share: Share) -> None:
        """Greenlet: continues at once if there is time, else in the turn of its connection."""
        if not self.has_time():
            self._switch(share)

    def pause(self) -> None:
        """Greenlet: yields, and continues in a turn of long work."""
        self._switch(Share(TURN_S))

    def _switch(self, share: Share) -> None:
        waiting = self.put(share, gevent.getcurrent().switch)
        try:
            gevent.get_hub().switch()
        finally:
            waiting.clear()

    def _serve(self) -> None:
        """Runs waiting work until this turn's limit, and at least one piece of long work."""
        until_s = self._now() + TURN_S
        try:
            while self._short and self._now() < until_s:
                self._do(*self._short.popleft())
            if self._long:
                self._do(*self._long.popleft())
            while self._long and self._now() < until_s:
                self._do(*self._long.popleft())
        finally:
            self._turn, self._end_s = self._loop.iteration, -inf
            if self._short or self._long:
                self._next_turn.start(self._serve)

    def _do(self, share: Share, work: list[Work]) -> None:
        if work:
            begun_s = self._processor_time()
            work[0]()
            share.cost_s += (self._processor_time() - begun_s - share.cost_s) / 4
