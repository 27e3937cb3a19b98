"""Greenlets for the handlers of routes, started by the hub without a delay."""

from collections.abc import Callable

import gevent
from greenlet import getcurrent, greenlet

Work = Callable[[], object]
MAX_IDLE = 64
"""Most greenlets that are kept for later work: each has a stack of 20 KiB or more."""


class HandlerGreenlets:
    """Runs handlers in greenlets that are used again.

    A greenlet costs one to two microseconds this way, and ten or more if each is new (measured),
    because the interpreter allocates a stack for it. The greenlets belong to the hub that first
    calls `run`.
    """

    def __init__(self) -> None:
        self._idle: list[greenlet] = []
        self._running: set[greenlet] = set()
        self._handed_over: list[Work] = []
        """Work for the greenlet that is switched to next; an argument would live as long as it."""

    def run(self, work: Work) -> None:
        """Hub: runs `work`, and returns when it ends or waits for the first time."""
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = greenlet(self._work, gevent.get_hub())
        self._running.add(worker)
        self._handed_over.append(work)
        worker.switch()

    def _work(self) -> None:
        """Greenlet: runs work, again and again; `kill` ends the greenlet."""
        this = getcurrent()
        hub = gevent.get_hub()
        while True:
            work = self._handed_over.pop()
            try:
                work()
            finally:
                self._running.discard(this)
            del work  # it refers to a request
            if len(self._idle) >= MAX_IDLE:
                return
            self._idle.append(this)
            hub.switch()

    def kill(self) -> None:
        """Ends the work that still waits, by `GreenletExit`."""
        for worker in list(self._running):
            gevent.kill(worker)
        gevent.sleep(0)
