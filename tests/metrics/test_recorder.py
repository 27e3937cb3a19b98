"""What serving tells the recorder is what the families say (vllm-api.md 11.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from app.metrics.families import FINISHED
from app.metrics.recorder import Recorder
from app.metrics.sequences import BLOCK, FinishedSequence
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


def finish(recorder: Recorder, reason: Any = "stop", **given: Any) -> None:
    row = {
        **{"prompt_tokens": 10, "generation_tokens": 5, "cached_tokens": 0, "max_tokens": 64},
        **{"queue_s": 0.0, "prefill_s": 0.05, "decode_s": 0.4, "e2e_s": 0.5},
        **given,
    }
    recorder.sequence_finished(FinishedSequence(reason, **row))


def test_prompt_tokens_split_by_where_they_came_from(recorder: Recorder) -> None:
    recorder.prefilled(0.03, prompt_tokens=100, cached_tokens=64, at_s=1.0)
    now = samples(recorder)
    assert now["vllm:time_to_first_token_seconds_sum"] == 0.03
    assert now["vllm:prompt_tokens_total"] == 100
    assert now["vllm:prompt_tokens_cached_total"] == 64
    assert now['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == 36
    assert now['vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'] == 64


def test_what_is_computed_in_the_same_millisecond_is_one_engine_step(recorder: Recorder) -> None:
    recorder.prefilled(0.03, prompt_tokens=100, cached_tokens=96, at_s=1.0001)
    recorder.decoded(4, 0.02, at_s=1.0002)
    recorder.decoded(2, 0.02, at_s=1.0022)
    now = samples(recorder)
    assert now["vllm:iteration_tokens_total_count"] == 2
    assert now["vllm:iteration_tokens_total_sum"] == (4 + 1 + 4) + 2


def test_the_end_of_a_sequence_fills_its_histograms(recorder: Recorder) -> None:
    finish(recorder, "length", cached_tokens=4, queue_s=0.2)
    now = samples(recorder)
    assert now['vllm:request_success_total{finished_reason="length"}'] == 1
    assert now["vllm:e2e_request_latency_seconds_sum"] == 0.5
    assert now["vllm:request_queue_time_seconds_sum"] == 0.2
    assert now["vllm:request_prefill_time_seconds_sum"] == 0.05
    assert now["vllm:request_decode_time_seconds_sum"] == 0.4
    assert now["vllm:request_inference_time_seconds_sum"] == pytest.approx(0.45)
    assert now["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(0.1)
    assert now["vllm:request_prompt_tokens_sum"] == 10
    assert now["vllm:request_generation_tokens_sum"] == 5
    assert now["vllm:request_prefill_kv_computed_tokens_sum"] == 6
    assert now["vllm:request_params_max_tokens_sum"] == 64


def test_one_token_has_no_time_per_token(recorder: Recorder) -> None:
    finish(recorder, generation_tokens=1, decode_s=0.0)
    now = samples(recorder)
    assert now["vllm:request_time_per_output_token_seconds_sum"] == 0
    assert now["vllm:request_time_per_output_token_seconds_count"] == 1


def test_a_prompt_is_counted_once_for_all_its_choices(recorder: Recorder) -> None:
    for tokens in (3, 9, 5):
        finish(recorder, generation_tokens=tokens)
    recorder.completed(n=3, longest=9)
    now = samples(recorder)
    assert (now["vllm:request_params_n_sum"], now["vllm:request_params_n_count"]) == (3, 1)
    assert now["vllm:request_max_num_generation_tokens_sum"] == 9
    assert now["vllm:request_generation_tokens_count"] == 3


MOMENTS = st.one_of(st.floats(0, 10), st.integers(0, 50).map(lambda ms: ms / 1000))
ROWS = st.fixed_dictionaries(
    {
        **{name: TOKENS for name in ("prompt_tokens", "generation_tokens", "cached_tokens")},
        **{name: SECONDS for name in ("queue_s", "prefill_s", "decode_s", "e2e_s")},
        "max_tokens": st.none() | TOKENS,
        "preemptions": st.integers(0, 30),
    }
)
EVENTS = st.one_of(
    st.tuples(st.just("decoded"), st.tuples(st.integers(1, 3), SECONDS, MOMENTS)),
    st.tuples(
        st.just("prefilled"), st.tuples(SECONDS, TOKENS, st.integers(0, 100), MOMENTS, st.integers(0, 1))
    ),
    st.tuples(st.just("finished"), st.tuples(st.sampled_from(FINISHED), ROWS)),
    st.tuples(st.just("completed"), st.tuples(st.integers(1, 30), TOKENS)),
)


def tell(recorder: Recorder | DirectRecorder, event: tuple[str, tuple[Any, ...]]) -> None:
    """Call the method that `event` names."""
    name, arguments = event
    if name == "finished":
        recorder.sequence_finished(FinishedSequence(arguments[0], **arguments[1]))
    else:
        getattr(recorder, name)(*arguments)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=30), st.integers(0, 30), st.lists(EVENTS, max_size=5))
@settings(max_examples=60, deadline=None)
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


def test_a_row_with_its_prompt_counts_as_two_events() -> None:
    one, two = (Recorder("tiny", 2048, {}, now=lambda: 1e9) for _ in range(2))
    one.sequence_finished(FinishedSequence("stop", 10, 5, 0, 64, 0.0, 0.05, 0.4, 0.5, choices=3, longest=9))
    finish(two)
    two.completed(n=3, longest=9)
    assert one.render() == two.render()


def test_no_more_than_a_block_of_rows_waits_to_be_counted(recorder: Recorder) -> None:
    for number in range(3 * BLOCK + 1):
        recorder.prefilled(0.1, 10, 0, at_s=number)
        recorder.decoded(1, 0.02, at_s=number)
        finish(recorder)
        recorder.completed(1, 5)
        waiting = (
            recorder._tokens,
            recorder._prefills,
            recorder._finished,
            recorder._completed,
        )
        assert all(len(rows) < BLOCK for rows in waiting)
    assert samples(recorder)["vllm:request_params_n_count"] == 3 * BLOCK + 1
