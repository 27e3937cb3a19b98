"""The phases of a sequence, and what tracing and explanations derived before they shared them."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.request import SequenceOutcome

REASONS = st.sampled_from(["stop", "length", "abort", "error"])


@given(st.lists(st.floats(0, 1e6), min_size=5, max_size=5).map(sorted), st.integers(1, 3), REASONS)
def test_phases_are_those_of_tracing_and_explanations(
    moments_s: list[float], reached: int, reason: str
) -> None:
    arrival_s, scheduled_s, first_s, last_s, ended_s = moments_s
    outcome = SequenceOutcome(
        reason=reason,
        queued_s=arrival_s,
        scheduled_s=scheduled_s if reached > 1 else None,
        first_token_s=first_s if reached > 2 else None,
        last_token_s=last_s if reached > 2 else None,
        ended_s=ended_s,
        cached_tokens=0,
        fetched_tokens=0,
        tokens=1,
        preemptions=0,
        text="",
    )
    is_finished = reason in ("stop", "length") and reached == 3
    end_s = last_s if is_finished else ended_s
    moments = [arrival_s, scheduled_s, first_s][:reached] + [end_s]
    names = ["queued", "prefill", "decode"][:reached]
    expected = dict(zip(names, zip(moments, moments[1:], strict=False), strict=True))
    assert outcome.phases(arrival_s) == expected
