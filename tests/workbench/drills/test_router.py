"""Routers of drills: their commands, and their counters of retries."""

import pytest

from tests import stubs
from workbench.drills.router import fill_placeholders, read_counter
from workbench.fleet.processes import FleetError

TEXT = b"""# HELP retries_total Retries.
# TYPE retries_total counter
retries_total{route="/a b"} 3
retries_total{route="/c"} 2.0
retries_total_more 9
"""


class Metrics:
    """Answers every request with a text."""

    def __init__(self, text: bytes, status: str = "200 OK") -> None:
        self.text = text
        self.status = status

    def __call__(self, environ: object, start_response: object) -> list[bytes]:
        start_response(self.status, [("Content-Length", str(len(self.text)))])  # type: ignore[operator]
        return [self.text]


def test_placeholders_are_replaced_by_ports_and_urls() -> None:
    words = fill_placeholders(
        "route --port={port} --metrics {port2} --urls {pods} --list={pods} 'a b'",
        ports=(1, 2),
        pods=("h:3", "h:4"),
    )
    assert words == [
        "route",
        "--port=1",
        "--metrics",
        "2",
        "--urls",
        "http://h:3",
        "http://h:4",
        "--list=http://h:3,http://h:4",
        "a b",
    ]


def test_router_counter_is_the_sum_of_its_series() -> None:
    with stubs.serving(Metrics(TEXT)) as address:
        assert read_counter(f"http://{address}/metrics#retries_total") == 5
        assert read_counter(f"http://{address}/metrics#unknown") == 0


def test_unreadable_router_metrics_are_reported_in_one_line() -> None:
    with (
        stubs.serving(Metrics(b"", "404 Not Found")) as address,
        pytest.raises(FleetError, match="status 404"),
    ):
        read_counter(f"http://{address}/metrics#retries_total")
    for value in (b"NaN", b"+Inf", b"many"):
        with (
            stubs.serving(Metrics(b"retries_total " + value)) as address,
            pytest.raises(FleetError, match="router metrics at"),
        ):
            read_counter(f"http://{address}/metrics#retries_total")
    with pytest.raises(FleetError, match="router metrics at"):
        read_counter(f"http://{stubs.unused_address()}/metrics#retries_total")
