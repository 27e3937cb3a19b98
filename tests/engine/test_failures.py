"""What breaks ends alone: no place is lost, and nobody behind is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from app.engine.outputs import Event, Failed
from tests.engine.house import House, generation

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def finished(house: House, reason: str) -> float:
    return house.metric("request_success_total", finished_reason=reason)


@pytest.mark.parametrize("fails_at", [0, 1, 2, 5])
def test_a_listener_that_fails_loses_no_place(fails_at: int) -> None:
    """Event number `fails_at` cannot be told; 5 is the last token."""
    house = House(places=1, **SLOW)
    heard: list[Event] = []

    def emit(event: Event) -> None:
        heard.append(event)
        if len(heard) == fails_at + 1:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a text that cannot be sent")

    house.service.submit([generation()], emit)
    house.ask("behind")
    house.clock.advance(10)
    assert house.finish("behind") == "length"
    assert house.is_idle()
    assert isinstance(heard[-1], Failed) and finished(house, "error") == 1


def test_a_listener_that_always_fails_loses_no_place_either() -> None:
    house = House(places=1, **SLOW)

    def emit(event: Event) -> None:
        raise ZeroDivisionError

    house.service.submit([generation()], emit)
    house.ask("behind")
    house.clock.advance(10)
    assert house.finish("behind") == "length" and house.is_idle()


def test_what_cannot_be_prepared_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    performer = house.service._performer
    original = performer.prepare

    def prepare(asked: Any) -> Any:
        if asked.index == 2:
            raise ZeroDivisionError
        return original(asked)

    monkeypatch.setattr(performer, "prepare", prepare)
    with pytest.raises(ZeroDivisionError):
        house.ask(choices=3)
    assert house.is_idle() and house.events == []
