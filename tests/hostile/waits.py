"""Waits for what a server shows of itself: its requests, its answers, its log and its workers.

Every function returns the seconds that it took, and raises AssertionError after `limit_s`.
"""

from tests.hostile.raw_client import (
    PATIENCE_S,
    aborts,
    get,
    running,
    wait_for_value,
    wait_until,
    waiting,
)
from tests.hostile.stressed_server import workers_of
from tests.running_server import RunningServer


def wait_for_running(port: int, count: int, limit_s: float = PATIENCE_S) -> float:
    """Waits until exactly `count` requests run."""
    return wait_for_value(running, port, equals=count, limit_s=limit_s)


def wait_for_running_at_least(port: int, count: int, limit_s: float = PATIENCE_S) -> float:
    """Waits until `count` or more requests run."""
    return wait_until(lambda: running(port) >= count, limit_s)


def wait_for_waiting(port: int, count: int, limit_s: float = PATIENCE_S) -> float:
    """Waits until exactly `count` requests wait."""
    return wait_for_value(waiting, port, equals=count, limit_s=limit_s)


def wait_for_aborts(port: int, count: int, limit_s: float = PATIENCE_S) -> float:
    """Waits until the server has counted exactly `count` aborted requests."""
    return wait_for_value(aborts, port, equals=count, limit_s=limit_s)


def wait_for_status(
    port: int, status: int, path: str = "/health", limit_s: float = PATIENCE_S
) -> float:
    """Waits until a GET of `path` has the status."""
    return wait_for_value(_status_of, port, path, equals=status, limit_s=limit_s)


def wait_until_not_ready(port: int) -> float:
    """Waits until the server announces that it takes no new requests."""
    return wait_for_status(port, 503, path="/health/ready")


def wait_for_log(server: RunningServer, text: str, limit_s: float = PATIENCE_S) -> float:
    """Waits until the log of the server contains `text`."""
    return wait_until(lambda: text in server.log(), limit_s)


def wait_for_log_count(server: RunningServer, text: str, count: int) -> float:
    """Waits until the log of the server contains `text` exactly `count` times."""
    return wait_until(lambda: server.log().count(text) == count)


def wait_for_worker_count(server: RunningServer, count: int) -> float:
    """Waits until the arbiter has exactly `count` workers."""
    return wait_until(lambda: len(workers_of(server)) == count)


def wait_for_new_workers(server: RunningServer, old_workers: set[int]) -> float:
    """Waits until all `old_workers` have ended."""
    return wait_until(lambda: old_workers.isdisjoint(workers_of(server)))


def _status_of(port: int, path: str) -> int:
    return get(port, path).status
