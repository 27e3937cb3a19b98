"""The phases of a sequence, and what their readers derived before they shared them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.base.metrics.recorder import PhaseSeconds
from app.core.engine.request import SequenceOutcome

REASONS = st.sampled_from(["stop", "length", "abort", "error"])


def outcome_of(moments_s: list[float], reached: int, reason: str = "stop") -> SequenceOutcome:
    """Returns an outcome with moments in any order, of which the first `reached` count."""
    queued_s, scheduled_s, first_s, last_s, ended_s = moments_s
    return SequenceOutcome(
        reason=reason,
        queued_s=queued_s,
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


def recorder_seconds(outcome: SequenceOutcome) -> PhaseSeconds:
    """Returns what the sequence gave the recorder of vLLM's metrics."""
    scheduled_s = outcome.ended_s if outcome.scheduled_s is None else outcome.scheduled_s
    first_s = scheduled_s if outcome.first_token_s is None else outcome.first_token_s
    last_s = outcome.last_token_s or 0.0
    return PhaseSeconds(
        queue_s=max(0.0, scheduled_s - outcome.queued_s),
        prefill_s=max(0.0, first_s - scheduled_s),
        decode_s=max(0.0, last_s - first_s),
    )


def sglang_seconds(outcome: SequenceOutcome) -> PhaseSeconds:
    """Returns what the metrics of SGLang showed; they have no prefill, and no other queue."""
    durations = outcome.seconds()
    if outcome.scheduled_s is not None:
        queue_s = max(0.0, outcome.scheduled_s - outcome.queued_s)
        durations = durations._replace(queue_s=queue_s)
    if outcome.first_token_s is not None and outcome.last_token_s is not None:
        decode_s = max(0.0, outcome.last_token_s - outcome.first_token_s)
        durations = durations._replace(decode_s=decode_s)
    return durations


def tracing_seconds(outcome: SequenceOutcome) -> PhaseSeconds:
    """Returns the latencies of a span.

    The queue began with the arrival. vLLM's begins when the scheduler sees the sequence, so that
    the copy was wrong where both differ.
    """
    durations = outcome.seconds()
    if outcome.first_token_s is None or outcome.scheduled_s is None:
        return durations
    assert outcome.last_token_s is not None
    return durations._replace(
        prefill_s=outcome.first_token_s - outcome.scheduled_s,
        decode_s=outcome.last_token_s - outcome.first_token_s,
    )


MOMENTS = st.lists(st.floats(0, 1e6), min_size=5, max_size=5)


@given(MOMENTS, st.integers(1, 3))
def test_durations_are_those_of_the_metrics_of_vllm_and_sglang(
    moments_s: list[float], reached: int
) -> None:
    outcome = outcome_of(moments_s, reached)
    for reader in (recorder_seconds, sglang_seconds):
        assert outcome.seconds() == reader(outcome), reader.__name__


@given(MOMENTS.map(sorted), st.integers(1, 3))
def test_durations_of_ordered_moments_are_those_of_spans(
    moments_s: list[float], reached: int
) -> None:
    outcome = outcome_of(moments_s, reached)
    durations = outcome.seconds()
    assert durations == tracing_seconds(outcome), "prefill and decode of a span"
    if outcome.first_token_s is not None and outcome.scheduled_s is not None:
        inference_s = moments_s[3] - outcome.scheduled_s
        sum_s = durations.prefill_s + durations.decode_s
        assert sum_s == pytest.approx(inference_s, abs=1e-6), "time_in_model_inference of a span"


@given(st.lists(st.floats(0, 1e6), min_size=5, max_size=5).map(sorted), st.integers(1, 3), REASONS)
def test_phases_are_those_of_tracing_and_explanations(
    moments_s: list[float], reached: int, reason: str
) -> None:
    arrival_s, scheduled_s, first_s, last_s, ended_s = moments_s
    outcome = outcome_of(moments_s, reached, reason)
    is_finished = reason in ("stop", "length") and reached == 3
    end_s = last_s if is_finished else ended_s
    moments = [arrival_s, scheduled_s, first_s][:reached] + [end_s]
    names = ["queued", "prefill", "decode"][:reached]
    expected = dict(zip(names, zip(moments, moments[1:], strict=False), strict=True))
    assert outcome.phases(arrival_s) == expected
