"""The end of a worker: `WorkerEnding`. Imported when a worker ends."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

import gevent

from app.core.server.gunicorn import ranks
from app.core.server.gunicorn.drain import HANDOVER_S, ConnectionDrain
from config.sections.server import LAST_ANSWERS_S

if TYPE_CHECKING:
    from gunicorn.workers.base import Worker

    from app.core.server.gunicorn.hub_connection import FastPath, OpenConnections
    from app.core.server.gunicorn.listener import ClientServer


EXIT_HOOKS_S = 1.0
"""Time left for exit hooks when running requests are cut, in seconds.

At most half the graceful timeout.
"""
DRAIN_CHECK_S = 0.05
"""Seconds between two checks of the connections of a stopping worker."""
NOTE_TIMEOUT_S = 0.5
"""Longest time until the arbiter notes the end of a server whose processes all got the signal."""
SETTLE_S = 0.5
"""Seconds that new connections wait in the backlog while a stopping worker ends its requests.

If all end, the listener closes, and clients are refused before they send: every proxy then tries
its next server. Otherwise the worker answers new connections with 503.
"""
REPORT_S = 60.0
"""Seconds between two lines in the log of a replaced worker about the requests that it answers."""
HANDSHAKE_S = 0.05
"""Seconds for the client's part of handshakes that have begun when the listener closes."""


class WorkerEnding:
    """Ends the listeners and connections of a worker that has stopped.

    The worker may have a successor, end gently, or end as vLLM does.
    """

    def __init__(
        self,
        worker: Worker,
        servers: list[ClientServer],
        connections: OpenConnections,
        path: FastPath,
    ) -> None:
        self._worker = worker
        self._application = worker.wsgi
        self._servers = servers
        self._connections = connections
        self._path = path

    def run(self) -> None:
        """Waits until no request runs, within the time limit."""
        self._path.pipelines_until_s = time.monotonic() + max(self._worker.drain_s, HANDOVER_S)
        shutdown_timeout_s = self._worker.shutdown_timeout_s
        if self._has_successor():
            self._hand_over()
        elif shutdown_timeout_s is not None and hasattr(self._application, "shut_down"):
            self._shut_down_as_vllm(shutdown_timeout_s)
        else:
            self._shut_down()

    def _has_successor(self) -> bool:
        """Returns whether another worker accepts, or soon will accept, from the same listeners."""
        is_handed_over = ranks.has_stage(self._worker, ranks.HANDED_OVER)
        if ranks.has_stage(self._worker, ranks.ENDING) or is_handed_over:
            return is_handed_over
        if ranks.has_stage(self._worker, ranks.REPLACED):
            return True
        if not ranks.has_stage(self._worker, ranks.SERVING):  # a stock arbiter notes nothing
            return False
        # A service manager may signal all processes of a server at once, and the arbiter needs a
        # moment to note that the server ends. Without that note, only this worker was signaled: the
        # arbiter keeps the listeners open, and starts another worker.
        note_limit_s = time.monotonic() + NOTE_TIMEOUT_S
        while time.monotonic() < note_limit_s:
            if ranks.has_stage(self._worker, ranks.ENDING):
                return ranks.has_stage(self._worker, ranks.HANDED_OVER)
            gevent.sleep(DRAIN_CHECK_S)
        return True

    def _hand_over(self) -> None:
        """Leaves new connections to the successor, and serves those that exist to their end.

        Nothing is answered with 503. Running requests have no deadline until the whole server ends,
        or until too many reloads have followed.
        """
        for server in self._servers:
            server.close()
        drain = ConnectionDrain(self._connections, HANDOVER_S)
        deadline_s = inf
        report_s = time.monotonic()
        while drain.sweep() and time.monotonic() < deadline_s:
            self._worker.notify()
            if deadline_s == inf and self._must_end():
                deadline_s = self._deadline_s()
                report_s = time.monotonic()
                is_ending = ranks.has_stage(self._worker, ranks.ENDING)
                if is_ending and not ranks.has_stage(self._worker, ranks.HANDED_OVER):
                    drain.idle_s = self._worker.drain_s
            if time.monotonic() >= report_s:
                report_s = time.monotonic() + REPORT_S
                self._report()
            gevent.sleep(DRAIN_CHECK_S)

    def _must_end(self) -> bool:
        """Returns whether the requests of a replaced worker have to end soon."""
        stages = (ranks.ENDING, ranks.EXPIRED)
        return any(ranks.has_stage(self._worker, stage) for stage in stages)

    def _report(self) -> None:
        """Logs what a replaced worker still answers."""
        now_s = time.monotonic()
        ages_s = [now_s - row.answering_since_s for row in self._connections if row.busy]
        if ages_s:
            self._worker.log.info(
                "Worker %d, which has a successor, still answers requests of %d connections, the "
                "oldest for %.1f s",
                self._worker.pid,
                len(ages_s),
                max(ages_s),
            )

    def _shut_down(self) -> None:
        """Ends without a successor: serves for `drain_s`, then refuses new requests.

        First, the server reports that it is not ready, but serves the requests of kept and new
        connections, so that proxies and load balancers have time to notice. This ends early when
        no client is connected. Then the listener closes as soon as no request runs. If requests
        still run after `SETTLE_S`, new requests get 503 until the last one has ended.
        """
        deadline_s = self._deadline_s()
        now_s = time.monotonic()
        drain_end_s = min(now_s + self._worker.drain_s, deadline_s)
        drain = ConnectionDrain(self._connections, drain_end_s - now_s)
        if hasattr(self._application, "withdraw"):
            self._application.withdraw()
        while drain.sweep() and time.monotonic() < drain_end_s:
            self._wait_for_drain()
        for server in self._servers:
            server.stop_accepting()
        settled_s = min(time.monotonic() + SETTLE_S, deadline_s)
        while drain.sweep():
            limit_s = settled_s if drain.is_busy else deadline_s
            if time.monotonic() >= limit_s:
                break
            self._wait_for_drain()
        if self._connections:
            if hasattr(self._application, "drain"):
                self._application.drain()
            drain.idle_s = 0.0
            for server in self._servers:
                server.start_accepting()
            while drain.sweep() and time.monotonic() < deadline_s:
                self._wait_for_drain()
        self._close_listeners(drain, deadline_s)

    def _shut_down_as_vllm(self, timeout_s: float) -> None:
        """Ends as vLLM: new requests get 500 while running ones end; those left after that fail.

        Without time for running requests, the port closes at once.
        """
        deadline_s = time.monotonic() + timeout_s
        self._application.withdraw()
        self._application.shut_down()
        while self._application.is_generating and time.monotonic() < deadline_s:
            self._wait_for_drain()
        for server in self._servers:
            server.close()
        self._application.fail_requests()
        drain = ConnectionDrain(self._connections, idle_s=0.0)
        deadline_s = time.monotonic() + LAST_ANSWERS_S
        while drain.sweep() and time.monotonic() < deadline_s:
            self._wait_for_drain()

    def _close_listeners(self, drain: ConnectionDrain, deadline_s: float) -> None:
        """Closes the listeners when the requests of all established connections are answered.

        Under a stock arbiter, which notes nothing, the worker may end alone. The next worker then
        gets the backlog.
        """
        if ranks.has_stage(self._worker, ranks.ENDING):
            for server in self._servers:
                server.refuse_handshakes()
            handshakes_end_s = time.monotonic() + HANDSHAKE_S
            while True:
                for server in self._servers:
                    server.accept_waiting()
                has_open = drain.sweep()
                now_s = time.monotonic()
                if now_s >= deadline_s or (now_s >= handshakes_end_s and not has_open):
                    break
                self._wait_for_drain()
        for server in self._servers:
            server.close()

    def _wait_for_drain(self) -> None:
        self._worker.notify()
        gevent.sleep(DRAIN_CHECK_S)

    def _deadline_s(self) -> float:
        """Returns when running requests are cut, if the worker begins to stop now."""
        timeout_s: float = self._worker.cfg.graceful_timeout
        return time.monotonic() + timeout_s - min(EXIT_HOOKS_S, timeout_s / 2)
