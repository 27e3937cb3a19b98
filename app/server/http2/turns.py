"""Whose turn it is among calls that lag: their sources are asked for slices, one call after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import gevent

from app.http.connection import Watcher

SLICE_S = 0.004
"""So long is one client served in a row."""


class Lagging(Protocol):
    """What may have to say more than there was room for."""

    def ask(self) -> bool:
        """Take a slice of what waits; whether more does."""


class Timers:
    """Work of one connection that is done after other connections have had their turn."""

    __slots__ = ("_timers",)

    def __init__(self) -> None:
        self._timers: dict[Callable[[], None], Watcher] = {}

    def soon(self, work: Callable[[], None]) -> None:
        """Do `work` once, in one of the next turns of the loop."""
        if (timer := self._timers.get(work)) is None:
            timer = self._timers[work] = gevent.get_hub().loop.timer(0.0)
        timer.start(work)

    def close(self) -> None:
        """Do nothing more."""
        for timer in self._timers.values():
            timer.stop()
            timer.close()
        self._timers.clear()


class Chores:
    """Work that many calls of one connection may need at once: done soon, in slices, each piece once."""

    __slots__ = ("_guarded", "_timers", "_waiting")

    def __init__(self, timers: Timers, guarded: Callable[[Callable[[], None]], None]) -> None:
        self._timers, self._guarded = timers, guarded
        self._waiting: dict[Callable[[], None], None] = {}

    def put(self, work: Callable[[], None]) -> None:
        """Do `work` in one of the next turns of the loop, unless it waits for that already."""
        if not self._waiting:
            self._timers.soon(self.do)
        self._waiting[work] = None

    def do(self) -> None:
        """As much as a slice allows, now."""
        until_s = time.monotonic() + SLICE_S
        while self._waiting and time.monotonic() < until_s:
            work = next(iter(self._waiting))
            del self._waiting[work]
            self._guarded(work)
        if self._waiting:
            self._timers.soon(self.do)


class Turns:
    """The calls of one connection that wait to be asked, in this order. `may_go_on` says if there is room."""

    __slots__ = ("_is_asking", "_may_go_on", "_timers", "_waiting")

    def __init__(self, timers: Timers, may_go_on: Callable[[], bool]) -> None:
        self._timers, self._may_go_on = timers, may_go_on
        self._waiting: dict[Lagging, None] = {}
        self._is_asking = False

    def put(self, call: Lagging) -> None:
        """Ask `call` for a slice when it is its turn."""
        self._waiting[call] = None
        if not self._is_asking and self._may_go_on():
            self._is_asking = True
            self._timers.soon(self._ask)

    def remove(self, call: Lagging) -> None:
        """It is over."""
        self._waiting.pop(call, None)

    def _ask(self) -> None:
        self._is_asking = False
        until_s = time.monotonic() + SLICE_S
        while self._waiting and self._may_go_on() and time.monotonic() < until_s:
            call = next(iter(self._waiting))
            del self._waiting[call]
            if call.ask():
                self._waiting[call] = None
        if self._waiting:
            self.put(next(iter(self._waiting)))
