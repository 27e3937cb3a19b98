"""A fake metric may follow time: as a function of the time since it was set, in steps."""

from __future__ import annotations

import pytest

from app.base.metrics.fake import value_at
from config.fake_metrics import Function
from tests.metrics.faked import Faked


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("oscillate", (6, 10, 6, 2, 6, 10, 6, 2, 6)),
        ("ramp", (2, 4, 6, 8, 10, 10, 10, 10, 10)),
        ("rampreset", (2, 4, 6, 8, 2, 4, 6, 8, 2)),
        ("squarewave", (2, 2, 10, 10, 2, 2, 10, 10, 2)),
    ],
)
def test_two_periods_in_quarters(shape: str, values: tuple[float, ...]) -> None:
    function = Function(shape, start=2, end=10, period_s=4)
    assert [value_at(function, at_s, 1) for at_s in range(9)] == pytest.approx(values)


def test_requests_are_whole_and_the_usage_is_not() -> None:
    faked = Faked(
        {
            "running-requests": "oscillate:0:5:4s",
            "waiting-requests": "ramp:0:10:4s",
            "kv-cache-usage": "ramp:0:1:8s",
        }
    )
    told = []
    for _ in range(6):
        told.append(
            tuple(map(faked.value, ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")))
        )
        faked.clock.advance(1)
    assert told == [(2, 0, 0), (5, 2, 0.125), (2, 5, 0.25), (0, 7, 0.375), (2, 10, 0.5), (5, 10, 0.625)]


def test_a_value_changes_only_with_the_refresh_interval() -> None:
    faked = Faked({"running-requests": "ramp:0:100:100s"}, "--fake-metrics-refresh-interval", "10s")
    told = []
    for _ in range(5):
        told.append(faked.value("num_requests_running"))
        faked.clock.advance(6)
    assert told == [0, 0, 10, 10, 20]


def test_a_function_starts_when_it_is_set() -> None:
    faked = Faked({"running-requests": "ramp:0:10:10s", "waiting-requests": 3})
    faked.clock.advance(5)
    faked.update(waiting_requests="ramp:0:10:10s")
    faked.clock.advance(2)
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (7, 2)
    faked.update(running_requests="ramp:10:0:10s")
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (10, 2)
