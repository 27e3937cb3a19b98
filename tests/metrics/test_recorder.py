"""What serving tells the recorder is what the families say (vllm-api.md 11.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from app.base.metrics.families import FINISHED
from app.base.metrics.recorder import BLOCK, FinishedSequence, Recorder
from tests.metrics.direct import DirectRecorder

SECONDS = st.floats(0, 1000)
TOKENS = st.integers(0, 2000)


def samples(recorder: Recorder) -> dict[str, float]:
    """`name{label="value"}` without the server's labels -> value."""
    found = {}
    for family in text_string_to_metric_families(recorder.render()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found[sample.name + "".join(f'{{{k}="{v}"}}' for k, v in sorted(labels.items()))] = sample.value
    return found


@pytest.fixture
def recorder() -> Recorder:
    return Recorder("tiny", max_model_len=2048, cache_config={})


MOMENTS = st.one_of(st.floats(0, 10), st.integers(0, 50).map(lambda ms: ms / 1000))
ROWS = st.fixed_dictionaries(
    {
        **{name: TOKENS for name in ("prompt_tokens", "generation_tokens", "cached_tokens")},
        **{name: SECONDS for name in ("queue_s", "prefill_s", "decode_s", "e2e_s")},
        "max_tokens": st.none() | TOKENS,
        **{name: st.integers(0, 30) for name in ("preemptions", "choices", "longest")},
    }
)
EVENTS = st.one_of(
    st.tuples(st.just("decoded"), st.tuples(st.integers(1, 3), SECONDS, MOMENTS)),
    st.tuples(
        st.just("prefilled"), st.tuples(SECONDS, TOKENS, st.integers(0, 100), MOMENTS, st.integers(0, 1))
    ),
    st.tuples(st.just("finished"), st.tuples(st.sampled_from(FINISHED), ROWS)),
)


def tell(recorder: Recorder | DirectRecorder, event: tuple[str, tuple[Any, ...]]) -> None:
    """Call the method that `event` names."""
    name, arguments = event
    if name == "finished":
        recorder.sequence_finished(FinishedSequence(arguments[0], **arguments[1]))
    else:
        getattr(recorder, name)(*arguments)


@given(st.lists(EVENTS, max_size=30), st.integers(0, 30), st.lists(EVENTS, max_size=5))
@settings(max_examples=25, deadline=None)
def test_rows_that_are_counted_later_give_the_text_of_events_that_are_counted_at_once(
    first: list[tuple[str, tuple[Any, ...]]], times: int, then: list[tuple[str, tuple[Any, ...]]]
) -> None:
    later = Recorder("tiny", 2048, {}, now=lambda: 1e9)
    at_once = DirectRecorder(now=lambda: 1e9)
    for events in (first * times, then):  # first often more than a block
        for event in events:
            tell(later, event)
            tell(at_once, event)
        assert later.render() == at_once.render()


def test_no_more_than_a_block_of_rows_waits_to_be_counted(recorder: Recorder) -> None:
    for number in range(3 * BLOCK + 1):
        recorder.prefilled(0.1, 10, 0, at_s=number)
        recorder.decoded(1, 0.02, at_s=number)
        recorder.step(3)
        row = FinishedSequence("stop", 10, 5, 0, 64, 0.0, 0.05, 0.4, 0.5, choices=1, longest=5)
        recorder.sequence_finished(row)
        waiting = (recorder._tokens, recorder._prefills, recorder._finished, recorder._step_tokens)
        assert all(len(rows) < BLOCK for rows in waiting)
    assert samples(recorder)["vllm:request_params_n_count"] == 3 * BLOCK + 1
