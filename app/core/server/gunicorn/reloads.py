"""Reloads: one at a time, with a bounded number of workers of earlier ones (`ReloadQueue`).

A worker takes 20 to 30 MB of private memory before any request. Without a limit, twenty SIGHUPs
within two seconds started twenty workers per rank, before the first one served and its predecessor
could end. A worker of an earlier reload may also stay for hours, until its last stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from app.core.server.gunicorn import ranks

if TYPE_CHECKING:
    from gunicorn.glogging import Logger
    from gunicorn.workers.base import Worker

MAX_EARLIER_WORKERS = 3
"""Most workers per rank that still answer requests from before a reload."""

PAUSE_S = 2.0
"""Shortest time between two reloads, in seconds.

Idle connections keep an earlier worker for five seconds. With this pause, such workers alone never
reach the limit, so a storm of signals cuts no request.
"""


class ReloadState(Enum):
    """The progress of a requested reload."""

    NONE = "no reload is requested"
    REQUESTED = "a reload is requested"
    JOINED = "the requested reload begins when the last one has ended"
    FULL = "the requested reload begins when a worker of the earliest one has ended"


class ReloadQueue:
    """The reload that is requested, if any. All requests that arrive before it begins join it."""

    def __init__(self, log: Logger, size: int, clock: Callable[[], float]) -> None:
        """`size`: the number of ranks; `clock` returns seconds."""
        self._log = log
        self._clock = clock
        self._next_s = clock()
        """Earliest time of the next reload."""
        self._state = ReloadState.NONE
        self._last_age = size
        """Age of the last worker of the running reload, or of the start.

        Workers that replace crashed ones are younger, and hold back no reload: the next one may
        have the settings with which they would not crash.
        """

    def request(self) -> None:
        """Requests a reload."""
        if self._state is ReloadState.NONE:
            self._state = ReloadState.REQUESTED

    def cancel(self) -> None:
        """Forgets the requested reload."""
        self._state = ReloadState.NONE

    def note_running(self, last_age: int) -> None:
        """Notes that a reload has started its workers; `last_age`: the age of the last one."""
        self._last_age = last_age
        self._next_s = self._clock() + PAUSE_S

    def take(self, workers: Iterable[Worker], graceful_timeout_s: float) -> bool:
        """Returns whether the requested reload has to begin now; it is no longer requested then.

        If a rank has too many earlier workers, asks the earliest to end within
        `graceful_timeout_s`.
        """
        if self._state is ReloadState.NONE:
            return False
        workers = sorted(workers, key=lambda worker: worker.age)
        if self._clock() < self._next_s or self._is_running(workers):
            self._wait(ReloadState.JOINED)
            return False
        if _expire_earliest(workers, self._log, graceful_timeout_s):
            self._wait(ReloadState.FULL)
            return False
        self._state = ReloadState.NONE
        return True

    def _is_running(self, workers: Iterable[Worker]) -> bool:
        """Returns whether workers of the last reload, or of the start, do not serve yet."""
        return any(
            worker.age <= self._last_age
            and not ranks.has_stage(worker, ranks.REPLACED)
            and not ranks.has_stage(worker, ranks.SERVING)
            for worker in workers
        )

    def _wait(self, state: ReloadState) -> None:
        if self._state is not state:
            self._state = state
            self._log.info("%s", state.value)


def _expire_earliest(workers: Iterable[Worker], log: Logger, graceful_timeout_s: float) -> bool:
    """Returns whether a rank has no room for another earlier worker.

    Asks the earliest worker of such a rank to end. `workers`: in the order of their ages.
    """
    earlier: dict[int, list[Worker]] = {}
    for worker in workers:
        if ranks.has_stage(worker, ranks.REPLACED):
            earlier.setdefault(worker.place, []).append(worker)
    full = [row for row in earlier.values() if len(row) >= MAX_EARLIER_WORKERS]
    for row in full:
        earliest = row[0]
        if not ranks.has_stage(earliest, ranks.EXPIRED):
            ranks.note_stage(earliest, ranks.EXPIRED)
            log.warning(
                "%d workers of earlier reloads still answer requests; worker %d, the earliest, has "
                "%g s to end",
                len(row),
                earliest.pid,
                graceful_timeout_s,
            )
    return bool(full)
