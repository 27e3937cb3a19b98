"""Requests that share steps: on the virtual clock they tell what the loop by itself tells."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.outputs import Started
from app.core.engine.profile import SpeculationRates
from config.settings import EngineSettings, Settings, StepSettings
from tests.core.engine.harness import BLOCK_TOKENS, PROFILE, START_S, Harness, moments, stepped
from vllm_facts.speculative import drafts_of

BLOCKS = 40
STEP_S = 0.02
"""Longer than a step of few sequences, its front and its way out."""


REQUESTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.02, 0.4]), st.integers(1, 60), st.integers(1, 12)),
    min_size=1,
    max_size=12,
)
"""Gap in seconds, tokens of the prompt, tokens of the reply."""


@settings(deadline=None)
@given(REQUESTS)
def test_replies_do_not_depend_on_step_timing_cache_size_or_other_requests(
    requests: Sequence[tuple[float, int, int]],
) -> None:
    """Nor on the cache, on who else runs, or on being preempted."""
    alone = Harness(slots=100)
    shared = stepped(blocks=12)
    for harness in (alone, shared):
        for number, (gap_s, prompt, reply) in enumerate(requests):
            harness.clock.advance(gap_s)
            harness.ask(str(number), prompt_ids=[number] * prompt, max_tokens=reply, seed=number)
        harness.clock.advance(30)
    for number in range(len(requests)):
        assert alone.said(str(number)) == shared.said(str(number))
        assert shared.finish(str(number)) == "length"


def test_step_shared_by_concurrent_requests_is_counted_once() -> None:
    harness = stepped()
    for name in "ab":
        harness.ask(name, prompt_ids=[1] * 10, max_tokens=3)
    harness.clock.advance(0.01)
    assert harness.gauges() == (2, 0)
    harness.clock.advance(1)
    assert [event.at_s for event in harness.tokens("b")] == pytest.approx(
        [event.at_s + PROFILE.front.out_per_stream for event in harness.tokens("a")]
    )
    assert harness.metric("iteration_tokens_total_count") == 3
    assert harness.metric("iteration_tokens_total_sum") == 2 * (10 + 3)
    assert harness.metric("generation_tokens_total") == 6
    assert harness.metric("request_queue_time_seconds_count") == 2
    assert harness.metric("request_queue_time_seconds_sum") == 0, "what the front takes is no queue"
    assert harness.metric("request_success_total") == 2
    assert harness.is_idle()


def test_steps_before_the_last_prompt_chunk_are_not_counted_as_iterations() -> None:
    steps = StepSettings(timing="steps", max_num_batched_tokens=16)
    harness = Harness(profile=PROFILE, sections={"steps": steps})
    harness.ask(prompt_ids=[1] * 40, max_tokens=3)
    harness.clock.advance(1)
    assert harness.metric("iteration_tokens_total_count") == 3
    assert harness.metric("iteration_tokens_total_sum") == 40 + 3


def test_metrics_contain_the_number_and_delay_of_late_requests() -> None:
    harness = stepped()
    harness.ask("a", arrival_s=START_S - 0.1)
    harness.ask("b")
    assert "understudy_late_requests_total{" in harness.recorder.render()
    [late] = [
        line
        for line in harness.recorder.render().splitlines()
        if line.startswith("understudy_late_seconds_total")
    ]
    assert float(late.split()[-1]) == pytest.approx(
        0.1 - PROFILE.front.front - 3 * PROFILE.front.front_per_token
    )


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.015, 0.03, 0.06])
def test_abort_of_a_request_at_any_time_frees_all_blocks(after_s: float) -> None:
    harness = stepped(blocks=BLOCKS, slots=1)
    handle = harness.ask("a", prompt_ids=[1] * 30, max_tokens=20)
    harness.ask("b", prompt_ids=[2] * 30, max_tokens=4)
    harness.clock.advance(after_s)
    event_count = len(harness.events)
    handle.abort()
    assert handle.future.done()
    harness.clock.advance(5)
    assert [name for name, _ in harness.events[event_count:]].count("a") == 0
    assert harness.finish("b") == "length"
    assert harness.is_idle() and harness.metric("kv_cache_usage_perc") == 0
    assert harness.recorder.figures().finished["abort"] == 1


@pytest.mark.parametrize(("threshold", "finish"), [(0.9, "length"), (1.0, "cache_threshold")])
def test_request_with_a_hit_rate_below_its_cache_threshold_ends_at_once(
    threshold: float, finish: str
) -> None:
    harness = stepped(blocks=BLOCKS)
    ids = list(range(10 * BLOCK_TOKENS))  # all but its last block is found again
    harness.ask("before", prompt_ids=ids)
    harness.clock.advance(1)
    harness.ask("a", prompt_ids=ids, cache_hit_threshold=threshold)
    harness.clock.advance(1)
    assert harness.finish("a") == finish and harness.is_idle()


def test_remote_prefill_waits_for_its_transfer() -> None:
    harness = stepped(slots=1, kv_cache_transfer_latency=0.5)
    harness.ask("a", remote_prefill=True, prompt_ids=[1] * 1000)
    harness.clock.advance(0.3)
    assert harness.gauges() == (0, 1) and harness.engine.waiting == 1
    harness.ask("b", max_tokens=2)
    harness.clock.advance(0.1)
    assert harness.finish("b") == "length"  # the place was not taken
    harness.clock.advance(1)
    assert moments(harness, "a")[0] == pytest.approx(0.5, abs=2 * STEP_S)
    assert harness.metric("prompt_tokens_by_source_total", source="external_kv_transfer") == 1000
    assert harness.metric("iteration_tokens_total_sum") == 5 + (
        3 + 2
    )  # nothing of its prompt is computed
    assert harness.is_idle()


def test_no_request_starts_during_a_pause() -> None:
    harness = stepped()
    harness.ask("a", max_tokens=20)
    harness.clock.advance(0.05)
    harness.engine.executor.pause()
    assert harness.engine.executor.free() == 0
    harness.ask("b", max_tokens=2)
    harness.clock.advance(1)
    assert harness.finish("a") == "length" and not harness.outputs("b")
    harness.engine.executor.resume()
    harness.clock.advance(1)
    assert harness.finish("b") == "length" and harness.is_idle()


def test_scripted_delays_shift_later_tokens() -> None:
    plain = stepped()
    late = stepped()
    plain.ask("a", max_tokens=4)
    late.ask("a", max_tokens=4, delays=((1, 0.25), (3, 0.5)))
    for harness in (plain, late):
        harness.clock.advance(5)
    shifts = [b - a for a, b in zip(moments(plain, "a"), moments(late, "a"), strict=True)]
    assert shifts == pytest.approx([0, 0.25, 0.25, 0.75])
    assert late.finish("a") == "length" and late.is_idle()


def test_speculation_yields_several_tokens_per_step() -> None:
    rates = SpeculationRates(acceptance=(1.0, 1.0))
    single = stepped()
    three = stepped(profile=replace(PROFILE, speculation=rates))
    for harness in (single, three):
        harness.ask("a", max_tokens=10)
        harness.clock.advance(1)
    assert single.said("a") == three.said("a")
    assert single.metric("iteration_tokens_total_count") == 10
    assert three.metric("iteration_tokens_total_count") == 4
    assert (
        three.metric("iteration_tokens_total_sum")
        == single.metric("iteration_tokens_total_sum")
        == 3 + 10
    )
    assert len({event.at_s for event in three.tokens("a")}) == 4
    counted = {"drafts": 3, "draft_tokens": 6, "accepted_tokens": 6}
    assert {name: three.metric(f"spec_decode_num_{name}_total") for name in counted} == counted
    assert three.metric("spec_decode_num_accepted_tokens_per_pos_total", position="1") == 3
    assert "spec_decode" not in single.recorder.render()


def test_drafts_are_accepted_at_the_synthetic_rates_of_vllm() -> None:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.5,
    }
    engine = EngineSettings(speculative_config=json.dumps(config))
    profile = PROFILE.with_drafts(drafts_of(Settings(engine=engine)))
    harness = stepped(profile=profile, blocks=400)
    harness.ask("a", max_tokens=2002)
    harness.clock.advance(60)
    assert harness.finish("a") == "length"
    steps: Counter[int] = Counter()
    for event in harness.tokens("a")[1:-1]:  # not the prompt's step, nor what is left at the end
        steps[len(event.ids)] += 1
    assert steps.keys() == {2, 3}, "one draft is always right, and the second by chance"
    assert steps[2] / steps.total() == pytest.approx(0.5, abs=0.06)
    drafts = harness.metric("spec_decode_num_drafts_total")
    assert harness.metric("spec_decode_num_draft_tokens_total") == pytest.approx(3 * drafts, abs=3)
    by_position = [
        harness.metric("spec_decode_num_accepted_tokens_per_pos_total", position=position)
        for position in "012"
    ]
    assert by_position == [drafts, pytest.approx(steps[3], abs=1), 0]
    assert harness.metric("spec_decode_num_accepted_tokens_total") == sum(by_position)


def kinds_and_texts(harness: Harness, **fields: Any) -> list[tuple[str, str]]:
    """Of all that is said: what it belongs to, and its text."""
    harness.ask("a", **fields)
    harness.clock.advance(2)
    assert harness.finish("a") == "length" and harness.is_idle()
    return [
        (output.part.kind if output.part else "text", text)
        for output in harness.tokens("a")
        for text in output.texts
    ]


def test_reply_parts_do_not_depend_on_the_number_of_tokens_per_step() -> None:
    rates = SpeculationRates(acceptance=(1.0, 1.0, 1.0))
    single = stepped()
    several = stepped(profile=replace(PROFILE, speculation=rates))
    for tokens in (30, 31, 32, 33):  # so that thoughts end at all places of a step
        fields = {"reasoning": True, "max_tokens": tokens, "seed": tokens}
        assert kinds_and_texts(single, **fields) == kinds_and_texts(several, **fields)
        for harness in (single, several):
            harness.events.clear()


def test_tokens_fetched_from_a_remote_prefill_are_reported_as_cached() -> None:
    harness = stepped(blocks=BLOCKS)
    harness.ask("a", remote_prefill=True, prompt_ids=list(range(5 * BLOCK_TOKENS)))
    harness.clock.advance(1)
    [started] = [output for output in harness.outputs("a") if isinstance(output, Started)]
    assert started.cached_tokens == 5 * BLOCK_TOKENS
