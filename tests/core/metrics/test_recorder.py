"""What serving tells the recorder is what the families say (vllm-api.md 11.2)."""

import re
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from app.core.base.metrics.lora_requests import LIMIT_BYTES, MAX_SERIES, LoraRequests
from app.core.base.metrics.optional_families import PARTS, TOKEN_BYTES
from app.core.base.metrics.recorder import FinishedSequence, LatencyTally, Recorder
from app.core.base.metrics.table import FINISHED

STEPS = r"(?m)^vllm:iteration_tokens_total.*$"
SECONDS = st.floats(0, 1000)
TOKENS = st.integers(0, 2000)


def samples(recorder: Recorder) -> dict[str, float]:
    """`name{label="value"}` without the server's labels -> value."""
    found_samples = {}
    for family in text_string_to_metric_families(recorder.render()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found_samples[
                sample.name + "".join(f'{{{k}="{v}"}}' for k, v in sorted(labels.items()))
            ] = sample.value
    return found_samples


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
        st.just("prefilled"),
        st.tuples(SECONDS, TOKENS, st.integers(0, 100), MOMENTS, st.integers(0, 1)),
    ),
    st.tuples(st.just("finished"), st.tuples(st.sampled_from(FINISHED), ROWS)),
)


def tell(recorder: Recorder, name: str, arguments: tuple[Any, ...]) -> None:
    """Call the method that `name` says."""
    if name == "finished":
        recorder.sequence_finished(FinishedSequence(arguments[0], **arguments[1]))
    else:
        getattr(recorder, name)(*arguments)


@given(st.lists(EVENTS, max_size=10), st.integers(0, 30), st.lists(EVENTS, max_size=5))
@settings(max_examples=25, deadline=None)
def test_metrics_do_not_depend_on_how_often_they_are_scraped(
    first: list[tuple[str, tuple[Any, ...]]],
    times: int,
    later_events: list[tuple[str, tuple[Any, ...]]],
) -> None:
    later, at_once = (Recorder("tiny", 2048, {}, now=lambda: 1e9) for _ in range(2))
    for events in (first * times, later_events):  # first often more than a block
        for event in events:
            tell(later, *event)
            tell(at_once, *event)
            at_once.render()  # a scrape counts all so far; it also ends a step
        assert re.sub(STEPS, "", later.render()) == re.sub(STEPS, "", at_once.render())


def make() -> Recorder:
    return Recorder("tiny", 2048, {"block_size": "16"})


def test_each_kv_transfer_is_one_observation_of_the_nixl_metrics() -> None:
    recorder = make()
    recorder.fetched(100, 0.02)
    recorder.fetched(33, 0.03)
    now = samples(recorder)
    assert now["vllm:nixl_xfer_time_seconds_sum"] == 0.05
    assert now['vllm:nixl_xfer_time_seconds_bucket{le="0.025"}'] == 1
    assert now["vllm:nixl_bytes_transferred_sum"] == 133 * TOKEN_BYTES
    assert now["vllm:nixl_num_descriptors_sum"] == (7 + 3) * PARTS
    assert now["vllm:nixl_post_time_seconds_count"] == now["vllm:nixl_num_descriptors_count"] == 2
    assert now["vllm:nixl_num_failed_transfers_total"] == 0


def lora_requests() -> LoraRequests:
    """Each change comes a second after the one before."""
    ticks = count(1)
    return LoraRequests(2, lambda: float(next(ticks)))


def series(loras: LoraRequests) -> list[tuple[str, str, float]]:
    """Running, waiting and moment of every series."""
    (family,) = text_string_to_metric_families(loras.render())
    assert {sample.labels["max_lora"] for sample in family.samples} == {"2"}
    return [
        (
            sample.labels["running_lora_adapters"],
            sample.labels["waiting_lora_adapters"],
            sample.value,
        )
        for sample in family.samples
    ]


def test_adapter_combination_metric_value_is_the_time_of_the_last_change() -> None:
    loras = lora_requests()
    loras.move(1, "a", "waiting")
    loras.move(1, "a", "running")
    loras.move(2, "a", "running")
    loras.move(3, "b", "running")
    loras.move(2, "a", None)  # the same adapters run
    assert series(loras) == [("", "a", 2), ("", "", 3), ("a", "", 5), ("a,b", "", 7)]
    loras.move(1, "a", None)
    loras.move(3, "b", None)
    loras.move(3, "b", None)
    assert series(loras)[-2:] == [("b", "", 8), ("", "", 9)]


def test_memory_of_adapter_series_is_bounded_for_names_of_any_length() -> None:
    loras = lora_requests()
    for number in range(MAX_SERIES):
        loras.move(number, f"{number}" * 10_000, "running")
        loras.move(number, f"{number}" * 10_000, None)
        assert loras.size_bytes <= loras.limit_bytes
    loras.move(-1, "a" * LIMIT_BYTES, "running")
    assert [len(running) for running, _, _ in series(loras)] == [LIMIT_BYTES]


@pytest.mark.parametrize(
    ("level", "state"),
    [(None, "awake"), (0, "awake"), (1, "weights_offloaded"), (2, "discard_all")],
)
def test_each_sleep_level_sets_exactly_one_sleep_state_gauge(
    recorder: Recorder, level: int | None, state: str
) -> None:
    recorder.sleeping(level)
    numbers = samples(recorder)
    states = {
        name: numbers[f'vllm:engine_sleep_state{{sleep_state="{name}"}}']
        for name in ("awake", "weights_offloaded", "discard_all")
    }
    assert states == {name: float(name == state) for name in states}


def test_abandoned_requests_are_counted_as_aborted(recorder: Recorder) -> None:
    recorder.aborted()
    assert recorder.figures().finished["abort"] == 1


def test_idle_engine_reports_no_running_or_waiting_requests(recorder: Recorder) -> None:
    figures = recorder.figures()
    assert (figures.running, figures.waiting, figures.cache_usage) == (0, 0, 0)


def test_latency_tally_counts_token_gaps_in_tenths_of_a_millisecond(
    recorder: Recorder,
) -> None:
    tally = LatencyTally()
    recorder.tally = tally
    recorder.decoded(1, 0.02, at_s=1.0)
    recorder.decoded(3, 0.03, at_s=2.0)
    recorder.fold()
    assert tally.inter_token == {200: 1, 300: 3}


def test_default_transfer_size_matches_the_kv_cache_of_llama_3_1_8b() -> None:
    recorder = make()
    recorder.fetched(16, 0.02)
    numbers = samples(recorder)
    assert numbers["vllm:nixl_bytes_transferred_sum"] == 16 * 131_072
    assert numbers["vllm:nixl_num_descriptors_sum"] == 64
    assert numbers["vllm:nixl_post_time_seconds_sum"] == pytest.approx(64e-6)
