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
from math import inf
from typing import Any

import gevent
from msgspec import Struct

TURN_S = 0.004
"""Most work per turn of the loop, in seconds; keeps streams on time."""
SHORT_WORK_S = 0.0002
"""Most processor time of short work, in seconds: twice the time of a plain request."""
Work = Callable[[], object]


class ConnectionCost(Struct):
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
        self._now = now
        self._processor_time = processor_time
        self._end_s = -inf
        """End of this turn's work for clients."""
        self._turn = -1
        """The loop's number of this turn."""
        self._used_s = 0.0
        """Processor time of this thread when the latest work ended."""
        self._short: deque[tuple[ConnectionCost, list[Work]]] = deque()
        self._long: deque[tuple[ConnectionCost, list[Work]]] = deque()
        """Waiting work; an empty list is abandoned work."""
        self._loop: Any = gevent.get_hub().loop
        # Not a callback: the loop runs those that callbacks add before it looks at sockets again.
        # The priority is lower than that of sockets: a request that arrives during long work would
        # otherwise wait for the next long work, too.
        self._next_turn: Any = self._loop.timer(0.0, priority=-1)

    def has_time(self) -> bool:
        """True if work may run at once: no work waits, and this turn has time left."""
        if self._short or self._long:
            return False
        now_s = self._now()
        turn = self._loop.iteration
        if turn != self._turn:
            self._turn = turn
            self._end_s = now_s + TURN_S
        return now_s < self._end_s

    def schedule(self, cost: ConnectionCost, work: Work) -> list[Work]:
        """Hub: schedules `work` for a turn of its connection.

        Clear the returned list to abandon the work.
        """
        if not self._short and not self._long:
            self._next_turn.start(self._serve)
        waiting = [work]
        if cost.cost_s <= SHORT_WORK_S:
            self._short.append((cost, waiting))
        else:
            self._long.append((cost, waiting))
        return waiting

    def run_long(self, work: Work) -> None:
        """Hub: runs `work` now if this turn has time, else in a turn of long work."""
        if self.has_time():
            work()
        else:
            self.schedule(ConnectionCost(TURN_S), work)

    def wait(self, cost: ConnectionCost) -> None:
        """Greenlet: continues at once if there is time, else in the turn of its connection."""
        if not self.has_time():
            self._switch(cost)

    def pause(self) -> None:
        """Greenlet: yields, and continues in a turn of long work."""
        self._switch(ConnectionCost(TURN_S))

    def _switch(self, cost: ConnectionCost) -> None:
        waiting = self.schedule(cost, gevent.getcurrent().switch)
        try:
            gevent.get_hub().switch()
        finally:
            waiting.clear()

    def _serve(self) -> None:
        """Runs waiting work until this turn's limit, and at least one piece of long work."""
        until_s = self._now() + TURN_S
        self._used_s = self._processor_time()
        try:
            while self._short and self._now() < until_s:
                self._run(*self._short.popleft())
            if self._long:
                self._run(*self._long.popleft())
            while self._long and self._now() < until_s:
                self._run(*self._long.popleft())
        finally:
            # The time of this turn is spent, also for work that arrives later in it.
            self._turn = self._loop.iteration
            self._end_s = -inf
            if self._short or self._long:
                self._next_turn.start(self._serve)

    def _run(self, cost: ConnectionCost, work: list[Work]) -> None:
        if work:
            start_s = self._used_s
            work[0]()
            self._used_s = self._processor_time()
            cost.cost_s += (self._used_s - start_s - cost.cost_s) / 4
