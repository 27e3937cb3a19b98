"""Whoever observes sequences is told once of each how it went, and can break nothing."""

from __future__ import annotations

from typing import Any

from app.engine.client import SequenceGroup
from app.engine.observer import Observer, Outcome, Watch
from app.engine.outputs import Event
from app.engine.request import Generation
from tests.engine.house import START_S, House, generation


class Observed(House):
    """Tokens come a second apart, the first after two; outcomes are kept by request and choice."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits, inter_token_latency=1.0, time_to_first_token=2.0)
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.observers: list[Observer] = [self.observe]

    def ask(self, request_id: str = "a", choices: int = 1, **fields: Any) -> SequenceGroup:
        return super().ask(request_id, choices, observers=self.observers, **fields)

    def observe(self, generation: Generation) -> Watch | None:
        key = (generation.request_id, generation.index)

        def watch(outcome: Outcome) -> None:
            assert key not in self.outcomes
            self.outcomes[key] = outcome

        return watch

    def outcome(self, request_id: str = "a", index: int = 0) -> Outcome:
        return self.outcomes[request_id, index]


def moments(outcome: Outcome) -> tuple[float | None, ...]:
    """Seconds since the start: scheduled, first token, last token, end."""
    found = (outcome.scheduled_s, outcome.first_token_s, outcome.last_token_s, outcome.ended_s)
    return tuple(None if moment_s is None else round(moment_s - START_S, 1) for moment_s in found)


def test_a_sequence_tells_when_it_was_where() -> None:
    house = Observed()
    house.ask(max_tokens=5)
    house.clock.advance(10)
    told = house.outcome()
    assert (told.reason, told.tokens, told.cached_tokens) == ("length", 5, 0)
    assert moments(told) == (0, 2, 6, 6)


def test_each_choice_tells_of_itself() -> None:
    house = Observed(places=1)
    house.ask(choices=2, max_tokens=2)
    house.clock.advance(10)
    assert moments(house.outcome(index=0))[0] == 0
    assert moments(house.outcome(index=1))[0] == 3  # it waited for the place


def test_who_never_got_a_place_says_so() -> None:
    house = Observed(places=1)
    house.ask("first")
    waiting = house.ask("second")
    house.clock.advance(1.5)
    waiting.abort()
    told = house.outcome("second")
    assert (told.reason, told.tokens) == ("abort", 0)
    assert moments(told) == (None, None, None, 1.5)


def test_who_left_during_the_prefill_has_no_first_token() -> None:
    house = Observed()
    group = house.ask()
    house.clock.advance(1)
    group.abort()
    assert moments(house.outcome()) == (0, None, None, 1)


def test_who_left_later_tells_how_far_it_came() -> None:
    house = Observed()
    group = house.ask(max_tokens=50)
    house.clock.advance(4.5)
    group.abort()
    told = house.outcome()
    assert (told.reason, told.tokens) == ("abort", 3)
    assert moments(told) == (0, 2, 4, 4.5)


def test_an_observer_that_fails_breaks_nothing() -> None:
    house = Observed(places=1)

    def failing(generation: Generation) -> Watch:
        def watch(outcome: Outcome) -> None:
            raise RuntimeError("broken")

        return watch

    house.observers.insert(0, failing)
    house.ask("first")
    house.ask("second")
    house.clock.advance(30)
    assert house.finish("first") == house.finish("second") == "length"
    assert set(house.outcomes) == {("first", 0), ("second", 0)}
    assert house.is_idle()


def test_who_is_not_interested_is_not_told() -> None:
    house = House()
    asked: list[int] = []
    house.ask(choices=3, observers=[lambda generation: asked.append(generation.index)])
    house.clock.advance(1)
    assert asked == [0, 1, 2]


def test_the_outcome_comes_after_the_last_event() -> None:
    house = House(inter_token_latency=1.0, time_to_first_token=2.0)
    events: list[Event | Outcome] = []
    house.service.submit([generation(observers=[lambda generation: events.append])], events.append)
    house.clock.advance(30)
    assert isinstance(events[-1], Outcome)
    assert sum(isinstance(event, Outcome) for event in events) == 1
