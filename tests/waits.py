"""Waits for a state of a server. Each has a time limit, after which the test fails."""

from tests.hostile.raw_client import metric, wait_until
from tests.running_server import RunningServer


def wait_for_metric(port: int, name: str, value: float, **labels: str) -> None:
    """Waits until the sum of a metric's samples with these labels has a value."""

    def is_reached() -> bool:
        return metric(port, name, **labels) == value

    wait_until(is_reached)


def wait_for_log(server: RunningServer, text: str) -> None:
    """Waits until the log of a server contains a text."""

    def is_logged() -> bool:
        return text in server.log()

    wait_until(is_logged)
