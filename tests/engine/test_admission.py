"""Who is let in, who waits, and who is turned away."""

from __future__ import annotations

import pytest

from app.http.errors import ApiError
from tests.engine.house import House

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def refusal(house: House, choices: int = 1) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        house.ask("refused", choices)
    assert house.of("refused") == []
    return caught.value.status, caught.value.type


def test_the_waiting_list_is_bounded() -> None:
    house = House(places=1, max_waiting=1, **SLOW)
    house.ask("a")
    house.ask("b")
    assert refusal(house) == (429, "RateLimitError")
    house.clock.advance(1)
    house.ask("c")
    assert house.gauges() == (1, 1)


def test_without_a_waiting_list_only_places_count() -> None:
    house = House(places=2, max_waiting=0, **SLOW)
    assert refusal(house, 3) == (429, "RateLimitError")
    house.ask("a", 2)
    assert refusal(house) == (429, "RateLimitError")
    house.clock.advance(10)
    house.ask("b")


def test_running_and_waiting_together_are_bounded_and_refusals_counted() -> None:
    house = House(places=1, max_waiting=100, max_unfinished=3, **SLOW)
    house.ask("a", 2)
    assert refusal(house, 2) == (503, "Service Unavailable")
    assert house.metric("admission_rejections_total", reason="max_num_queued_reqs") == 1
    house.ask("b")
    assert refusal(house) == (503, "Service Unavailable")


def test_a_draining_service_plays_on_and_admits_nothing() -> None:
    house = House(places=1, **SLOW)
    house.ask("a")
    house.ask("b")
    house.service.drain()
    assert refusal(house) == (503, "Service Unavailable")
    house.clock.advance(10)
    assert (house.finish("a"), house.finish("b")) == ("length", "length")
    assert house.is_idle()
