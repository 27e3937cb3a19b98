"""Whoever observes sequences is told once of each how it went, and can break nothing."""

from __future__ import annotations

import pytest

from app.engine.core.outputs import EngineOutput
from app.engine.core.request import EngineRequest, Outcome, Watch
from tests.engine.harness import START_S, Harness, engine_request


class Observed(Harness):
    """Tokens come a second apart, the first after two; outcomes are kept by request and choice."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits, inter_token_latency=1.0, time_to_first_token=2.0)
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.observers.append(self.observe)

    def observe(self, generation: EngineRequest) -> Watch | None:
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


@pytest.mark.parametrize(
    ("leaves_s", "reason", "tokens", "when"),
    [
        (None, "length", 5, (0, 2, 6, 6)),
        (4.5, "abort", 3, (0, 2, 4, 4.5)),
        (1.5, "abort", 0, (0, None, None, 1.5)),
    ],
)
def test_a_sequence_tells_when_it_was_where(
    leaves_s: float | None, reason: str, tokens: int, when: tuple[float | None, ...]
) -> None:
    harness = Observed()
    group = harness.ask(max_tokens=5)
    harness.clock.advance(leaves_s or 10)
    if leaves_s is not None:
        group.abort()
    told = harness.outcome()
    assert (told.reason, told.tokens, told.cached_tokens) == (reason, tokens, 0)
    assert moments(told) == when


def test_who_never_got_a_slot_says_so() -> None:
    harness = Observed(slots=1)
    harness.ask("first")
    waiting = harness.ask("second")
    harness.clock.advance(1.5)
    waiting.abort()
    told = harness.outcome("second")
    assert (told.reason, told.tokens) == ("abort", 0)
    assert moments(told) == (None, None, None, 1.5)


def test_an_observer_that_fails_breaks_nothing() -> None:
    harness = Observed(slots=1)

    def failing(generation: EngineRequest) -> Watch:
        def watch(outcome: Outcome) -> None:
            raise RuntimeError("broken")

        return watch

    harness.observers.insert(0, failing)
    harness.ask("first")
    harness.ask("second")
    harness.clock.advance(30)
    assert harness.finish("first") == harness.finish("second") == "length"
    assert set(harness.outcomes) == {("first", 0), ("second", 0)}
    assert harness.is_idle()


def test_the_outcome_comes_after_the_last_event() -> None:
    harness = Observed()
    events: list[EngineOutput | Outcome] = []
    harness.observers.append(lambda generation: events.append)
    harness.engine.submit([engine_request(observers=harness.observers)], events.append)
    harness.clock.advance(30)
    assert isinstance(events[-1], Outcome)
    assert sum(isinstance(event, Outcome) for event in events) == 1
