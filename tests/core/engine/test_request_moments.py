"""The moments of a request, and what the journal and the console chose before they shared them."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.request import RequestMoments, SequenceOutcome

MOMENTS = st.floats(0, 1e6)
CHOICES = st.lists(
    st.tuples(MOMENTS, st.none() | MOMENTS, st.none() | MOMENTS, st.none() | MOMENTS), max_size=4
)


def outcome_of(choice: tuple[float, float | None, float | None, float | None]) -> SequenceOutcome:
    """Returns an outcome with the moments of one choice."""
    queued_s, scheduled_s, first_s, last_s = choice
    return SequenceOutcome(
        reason="stop",
        queued_s=queued_s,
        scheduled_s=scheduled_s,
        first_token_s=first_s,
        last_token_s=last_s,
        ended_s=1e6,
        cached_tokens=0,
        fetched_tokens=0,
        tokens=1,
        preemptions=0,
        text="",
    )


def chosen(
    choose: Callable[[list[float]], float], moments_s: Iterable[float | None], offset_s: float
) -> float | None:
    """Returns what the journal and the console each computed."""
    known_s = [moment_s for moment_s in moments_s if moment_s is not None]
    return round(choose(known_s) + offset_s, 6) if known_s else None


@given(CHOICES, st.floats(0, 2e9))
def test_moments_are_those_of_the_journal_and_the_console(
    choices: list[tuple[float, float | None, float | None, float | None]], offset_s: float
) -> None:
    outcomes = [outcome_of(choice) for choice in choices]
    expected = RequestMoments(
        queued_s=chosen(min, [outcome.queued_s for outcome in outcomes], offset_s),
        scheduled_s=chosen(min, [outcome.scheduled_s for outcome in outcomes], offset_s),
        first_s=chosen(min, [outcome.first_token_s for outcome in outcomes], offset_s),
        last_s=chosen(max, [outcome.last_token_s for outcome in outcomes], offset_s),
    )
    assert RequestMoments.of(outcomes, offset_s) == expected


@given(st.lists(st.lists(MOMENTS, min_size=4, max_size=4).map(sorted), min_size=1, max_size=4))
def test_moments_of_ordered_choices_are_ordered(choices: list[list[float]]) -> None:
    outcomes = [outcome_of((choice[0], choice[1], choice[2], choice[3])) for choice in choices]
    moments = [moment_s or 0.0 for moment_s in RequestMoments.of(outcomes, offset_s=0.0)]
    assert all(earlier <= later for earlier, later in pairwise(moments)), moments
