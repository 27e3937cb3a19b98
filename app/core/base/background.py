"""Loops that run as long as the server, such as listeners: restarted after an error, and counted.

gevent prints the error of a greenlet and lets it end: a listener's port then stays open, no code
reads from it, and the server still reports that it is healthy.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial
from typing import ParamSpec

import gevent
from gevent import Greenlet

from app.core.base.metrics.instruments import Counter as Series
from app.core.base.metrics.instruments import Family

P = ParamSpec("P")

FIRST_WAIT_S = 0.1
"""Seconds before the first restart of a loop; each further wait is twice as long."""
MAX_WAIT_S = 30.0
"""Maximum wait before a restart, in seconds."""
GOOD_RUN_S = 60.0
"""Seconds after which a running loop counts as repaired: the next wait is the first one again."""
log = logging.getLogger(__name__)


class BackgroundLoops:
    """Starts loops in greenlets and restarts them with growing waits.

    `now` is monotonic, in seconds; `sleep` waits for seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self.restarts: Counter[str] = Counter()
        """Errors that ended a loop, by the loop's name; 0 for a loop without an error."""
        self._stopped: Counter[str] = Counter()
        """Loops that wait for their restart, by name."""

    @property
    def are_running(self) -> bool:
        """False while a loop waits for its restart."""
        return not self._stopped.total()

    def spawn(
        self, name: str, loop: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Greenlet[..., None]:
        """Runs `loop` in a greenlet until it returns, or the greenlet is killed.

        Loops of the same kind, such as for two peers, share a `name`.
        """
        return gevent.spawn(self.run, name, partial(loop, *args, **kwargs))

    def run(self, name: str, loop: Callable[[], None]) -> None:
        """Runs `loop` in this greenlet until it returns."""
        self.restarts[name] += 0
        wait_s = FIRST_WAIT_S
        while True:
            started_s = self._now()
            try:
                return loop()
            except Exception:  # whatever it is, the loop must not end
                if self._now() - started_s >= GOOD_RUN_S:
                    wait_s = FIRST_WAIT_S
                log.exception("%s: ended by an error; restarting in %g s", name, wait_s)
            self.restarts[name] += 1
            self._stopped[name] += 1
            try:
                self._sleep(wait_s)
            finally:
                self._stopped[name] -= 1
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    @cached_property
    def _family(self) -> Family[Series]:
        return Family(
            "understudy_loop_restarts_total",
            "Restarts of background loops, such as listeners, after an error.",
            Series,
            kind="counter",
        )

    def metrics_text(self) -> str:
        """Returns the count of restarts in the Prometheus text format; empty without a loop."""
        if not self.restarts:
            return ""
        for name, count in self.restarts.items():
            self._family.labels(loop=name).value = count
        return self._family.render()
