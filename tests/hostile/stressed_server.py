"""A server that has to survive what a test does to it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hostile.raw_client import get, running, wait_until, waiting
from tests.running_server import RunningServer, running_server

OBSERVED = ("--log-format", "json", "--access-log", "true", "--enable-server-load-tracking", "true")


@contextmanager
def stressed_server(*flags: str) -> Iterator[RunningServer]:
    """`running_server` with JSON logs; unharmed (`assert_unharmed`) when the block has ended."""
    with running_server(*OBSERVED, *flags) as server:
        yield server
        assert_unharmed(server)


@contextmanager
def stressed_indexer(*flags: str) -> Iterator[RunningServer]:
    """The same for an indexer, where nothing runs."""
    with running_server(*OBSERVED, "--role", "indexer", *flags) as server:
        yield server
        assert_in_order(server)


def assert_unharmed(server: RunningServer) -> None:
    """Nothing runs, waits or is counted as load, and `assert_in_order`."""
    assert_idle(server.port)
    assert_in_order(server)


def assert_in_order(server: RunningServer) -> None:
    """The worker lives; every log line is in order, and none tells of an error."""
    written, _, _ = server.log().rpartition("\n")  # the last line may be on its way
    lines = [json.loads(line) for line in written.splitlines()]
    broken = [
        line for line in lines if "exc_info" in line or line["level"] in ("ERROR", "CRITICAL")
    ]
    assert not broken, broken[0]
    assert all(line["request_id"] for line in lines)
    answered = [line for line in lines if line["logger"] == "gunicorn.access"]
    # gunicorn itself refuses what it cannot parse: there was no request to name yet.
    assert all(line["request_id"] != "-" or line["status"] in (400, 414, 431) for line in answered)
    assert all(line["status"] != 500 for line in answered)
    assert not any(
        "Booting worker" in line["message"] for line in lines
    )  # again: the first is not told


def assert_idle(port: int) -> None:
    """Places, waiting list and load come back to zero."""
    wait_until(lambda: running(port) == 0 and waiting(port) == 0 and _load(port) == 0)


def workers_of(server: RunningServer) -> list[int]:
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def _load(port: int) -> int:
    load: int = get(port, "/load").json()["server_load"]
    return load
