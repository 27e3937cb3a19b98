"""Limits and resources that the streams of a pool share."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
import zmq
from gevent.lock import BoundedSemaphore
from msgspec import Struct

from app.core.base.clock.pause import Pace
from app.core.base.limited_log import LimitedLog
from app.extensions.kv_index.backend import BackendUnavailableError
from app.extensions.kv_index.index import Index

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""Maximum work before other greenlets run, in seconds; checked between messages."""
MAX_PODS = 10_240
"""Maximum number of pods of an index; one process cannot keep up with more."""
MIN_BACKOFF_S = 0.1
"""First wait while the backend does not answer, in seconds; each further wait is twice as long."""
MAX_BACKOFF_S = 5.0
"""Maximum wait between two attempts while the backend does not answer, in seconds."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Limits of the pool's queues, pods, engines and replays.

    `max_messages` limits each queue, `max_bytes` all queues together. Above `max_pods`, a new pod
    replaces the pod with the oldest latest message. Above `max_engines`, a new engine is rejected.
    Payloads above `max_payload_bytes` are not read.

    At most `max_replays` run. A replay fails after `replay_idle_s` seconds without an answer, and
    after `replay_total_s` seconds in total. A replay also fails when the messages that wait for
    replays take more than `max_waiting_bytes` for one engine, or `max_total_waiting_bytes` for all.
    No replay of the engine then starts for `cool_down_s` seconds. A batch above `max_answer_bytes`
    ends a replay's connection.
    """

    shards: int = 4
    max_messages: int = 10_000
    max_bytes: int = 1 << 30
    max_payload_bytes: int = 1 << 20
    max_pods: int = MAX_PODS
    max_engines: int = 1 << 16
    max_replays: int = 8
    replay_idle_s: float = 2.0
    replay_total_s: float = 120.0
    max_waiting_bytes: int = 32 << 20
    max_total_waiting_bytes: int = 256 << 20
    cool_down_s: float = 30.0
    max_answer_bytes: int = 128 << 20


class StreamResources:
    """Resources that the streams of a pool share.

    `now` is monotonic, `wall` since 1970, and `clock` measures work, all in seconds.
    """

    def __init__(
        self,
        index: Index,
        settings: PoolSettings,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.index = index
        self.settings = settings
        self.now = now
        self.wall = wall
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        """Context of sockets for replays; no replay starts while it is None."""
        self.warnings = LimitedLog(log, now=now)
        """Log lines about messages of publishers."""
        self.waiting_bytes = 0
        """Memory of the messages that wait for replays, in bytes."""
        self.replay_slots = BoundedSemaphore(settings.max_replays)
        """Further replays wait."""
        self.pace = Pace(clock, SLICE_S)


def wait_for_backend(error: BackendUnavailableError, previous_wait_s: float | None) -> float:
    """Waits before a step is repeated, longer each time; returns the wait, in seconds.

    `previous_wait_s` is None for the first wait of an outage, which is logged.
    """
    if previous_wait_s is None:
        log.warning(
            "the KV index backend is unavailable; events are being held back, and score routes "
            "return status 503: %s",
            error,
        )
        wait_s = MIN_BACKOFF_S
    else:
        wait_s = min(2 * previous_wait_s, MAX_BACKOFF_S)
    gevent.sleep(wait_s)
    return wait_s
