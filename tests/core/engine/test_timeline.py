"""When the tokens of a sequence with latencies of its own are due, part by part."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.outputs import Tokens
from app.core.engine.timing import PerRequestTiming
from config.settings import LatencySettings
from tests.core.engine.harness import Harness


@pytest.mark.parametrize("gap_s", [0.0, 0.0001, 0.01])
def test_choices_of_one_request_alternate_token_by_token(gap_s: float) -> None:
    harness = Harness(slots=3, inter_token_latency=gap_s)
    harness.ask("a", choices=3, num_choices=3, max_tokens=4)
    harness.clock.advance(1)
    turns = [output.index for _, output in harness.events if isinstance(output, Tokens)]
    assert sorted(turns[:3]) == [0, 1, 2] and turns == turns[:3] * 4


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 0.0),
        ({"kv_cache_transfer_latency": 0.25, "kv_cache_transfer_time_per_token": 9.0}, 0.25),
        ({"kv_cache_transfer_time_per_token": 0.25}, 25.0),
        ({"kv_cache_transfer_time_per_token": 1.0, "latency_calculator": "constant"}, 0.0),
    ],
)
def test_remote_prefill_takes_only_its_transfer_time(settings: Any, seconds: float) -> None:
    latency = LatencySettings(time_to_first_token=5.0, time_factor_under_load=3.0, **settings)
    timing = PerRequestTiming(latency, 4, lambda: 4, Random(1))
    assert timing.time_to_first_token(100, 20, remote=True) == seconds


def latency(running: int = 1, slots: int = 4, seed: int = 1, **settings: Any) -> PerRequestTiming:
    return PerRequestTiming(LatencySettings(**settings), slots, lambda: running, Random(seed))


@pytest.mark.parametrize(
    ("settings", "expected_s"),
    [
        ({"time_to_first_token": 0.1}, 0.1),
        ({"prefill_overhead": 0.03, "prefill_time_per_token": 0.00025}, 0.03 + 80 * 0.00025),
        ({"latency_calculator": "constant", "prefill_overhead": 1.0}, 0.0),
        (
            {
                "latency_calculator": "per-token",
                "time_to_first_token": 9.0,
                "prefill_overhead": 0.5,
            },
            0.5,
        ),
    ],
)
def test_latency_settings_determine_the_prefill_time(settings: Any, expected_s: float) -> None:
    assert latency(**settings).time_to_first_token(100, 20) == pytest.approx(expected_s, abs=1e-9)


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (20, 20), (20, 24)])
def test_fully_cached_prompt_takes_only_the_prefill_overhead(prompt: int, cached: int) -> None:
    waits = latency(prefill_overhead=0.5, prefill_time_per_token=1.0)
    assert waits.time_to_first_token(prompt, cached) == 0.5


@given(mean_s=st.floats(1e-6, 10), share=st.floats(0, 30), seed=st.integers(0, 2**32))
def test_jitter_stays_within_seventy_percent_of_the_mean(
    mean_s: float, share: float, seed: int
) -> None:
    waits = latency(
        seed=seed, inter_token_latency=mean_s, inter_token_latency_std_dev=mean_s * share
    )
    for _ in range(50):
        assert 0.3 * mean_s * 0.999999 <= waits.inter_token() <= 1.7 * mean_s * 1.000001


@pytest.mark.parametrize(("running", "factor"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)])
def test_running_requests_increase_latencies_up_to_the_load_factor(
    running: int, factor: float
) -> None:
    waits = latency(
        running, time_factor_under_load=4.0, inter_token_latency=0.01, time_to_first_token=0.1
    )
    assert waits.inter_token() == pytest.approx(0.01 * factor)
    assert waits.time_to_first_token(10) == pytest.approx(0.1 * factor)
