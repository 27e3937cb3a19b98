"""Greenlets for the handlers of routes, started by the hub without a delay."""

from collections.abc import Callable

import gevent
from greenlet import getcurrent, greenlet

Work = Callable[[], object]


class HandlerGreenlets:
    """Runs handlers in greenlets that are used again.

    A greenlet costs one to two microseconds this way, and ten or more if each is new (measured),
    because the interpreter allocates a stack for it. The greenlets belong to the hub that first
    calls `run`.
    """

    def __init__(self) -> None:
        self._idle: list[greenlet] = []
        self._running: set[greenlet] = set()

    def run(self, work: Work) -> None:
        """Hub: runs `work`, and returns when it ends or waits for the first time."""
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = greenlet(self._work, gevent.get_hub())
        self._running.add(worker)
        worker.switch(work)

    def _work(self, work: Work) -> None:
        """Greenlet: runs `work`, and then further work; `kill` ends the greenlet."""
        this = getcurrent()
        hub = gevent.get_hub()
        while True:
            try:
                work()
            finally:
                self._running.discard(this)
            self._idle.append(this)
            work = hub.switch()

    def kill(self) -> None:
        """Ends the work that still waits, by `GreenletExit`."""
        for worker in list(self._running):
            gevent.kill(worker)
        gevent.sleep(0)
