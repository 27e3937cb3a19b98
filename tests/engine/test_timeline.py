"""When the tokens of a sequence with latencies of its own are due, part by part."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from app.engine.core.outputs import Started, Tokens
from app.engine.core.sequence import MOST_AT_ONCE
from app.engine.core.timing import PerRequestTiming
from config.settings import LatencySettings
from tests.engine.harness import BLOCK_TOKENS, START_S, Harness

GAP = {"inter_token_latency": 0.5, "time_to_first_token": 2.0}


def told(harness: Harness, **fields: Any) -> list[tuple[str, float]]:
    """What each token belongs to, and its moment."""
    harness.ask("a", **fields)
    harness.clock.advance(100)
    assert harness.is_idle()
    return [
        (it.part.kind if it.part else "text", it.at_s - START_S)
        for it in harness.tokens("a")
        for _ in it.texts
    ]


def test_tokens_that_are_due_together_are_told_part_by_part_and_not_too_many_at_once() -> None:
    asked = {"reasoning": True, "max_tokens": 3000, "seed": 1}
    apart, together = Harness(inter_token_latency=0.01), Harness(inter_token_latency=1e-9)
    kinds = [[kind for kind, _ in told(harness, **asked)] for harness in (apart, together)]
    assert kinds[0] == kinds[1] and set(kinds[0]) == {"reasoning", "text"}
    sizes = [len(it.texts) for it in together.tokens("a")]
    assert max(sizes) == MOST_AT_ONCE
    few = Harness(inter_token_latency=1e-9)
    told(few, max_tokens=3000, logprobs=2)
    assert max(len(it.texts) for it in few.tokens("a")) == MOST_AT_ONCE // 4


def test_tokens_that_are_told_together_are_counted_with_the_gaps_between_them() -> None:
    harness = Harness(inter_token_latency=0.0001)
    told(harness, max_tokens=101)
    assert len(harness.tokens("a")) < 50
    assert harness.metric("inter_token_latency_seconds_count") == 100
    assert harness.metric("inter_token_latency_seconds_sum") == pytest.approx(0.01)


@pytest.mark.parametrize("gap_s", [0.0, 0.0001, 0.01])
def test_choices_of_one_request_take_turns_token_by_token(gap_s: float) -> None:
    harness = Harness(slots=3, inter_token_latency=gap_s)
    harness.ask("a", choices=3, num_choices=3, max_tokens=4)
    harness.clock.advance(1)
    turns = [it.index for _, it in harness.events if isinstance(it, Tokens)]
    assert sorted(turns[:3]) == [0, 1, 2] and turns == turns[:3] * 4


def test_delays_come_before_the_tokens_that_they_name() -> None:
    moments = told(Harness(**GAP), delays=((0, 1.0), (2, 4.0)), max_tokens=4)
    assert [at_s for _, at_s in moments] == [3.0, 3.5, 8.0, 8.5]


def test_cached_tokens_cost_no_prefill() -> None:
    harness = Harness(blocks=100, prefill_time_per_token=0.5)
    ids = list(range(3 * BLOCK_TOKENS))
    for name in "ab":
        harness.ask(name, prompt_ids=ids, max_tokens=1)
        harness.clock.advance(50)
    first, second = (harness.tokens(name)[0].at_s for name in "ab")
    assert (first, second) == (START_S + 12, START_S + 50 + 4)
    assert [it.cached_tokens for it in harness.of("b") if isinstance(it, Started)] == [2 * BLOCK_TOKENS]


@pytest.mark.parametrize(("least", "finish"), [(0.6, "length"), (0.7, "cache_threshold")])
def test_too_little_cached_ends_at_once(least: float, finish: str) -> None:
    harness = Harness(blocks=100, **GAP)
    ids = list(range(3 * BLOCK_TOKENS))
    harness.ask("a", prompt_ids=ids)
    harness.clock.advance(50)
    harness.ask("b", prompt_ids=ids, cache_hit_threshold=least)
    harness.clock.advance(0.1 if finish == "cache_threshold" else 50)
    assert harness.finish("b") == finish and harness.is_idle()
    assert len(harness.said("b")) == 0 or finish == "length"


def test_of_a_remote_prefill_only_what_is_not_cached_here_comes_over_the_net() -> None:
    harness = Harness(blocks=100)
    ids = list(range(3 * BLOCK_TOKENS))
    harness.ask("a", prompt_ids=ids)
    harness.clock.advance(1)
    harness.ask("b", prompt_ids=ids, remote_prefill=True)
    harness.clock.advance(1)
    by_source = {
        source: harness.metric("prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert by_source == {
        "local_compute": 3 * BLOCK_TOKENS,
        "local_cache_hit": 2 * BLOCK_TOKENS,
        "external_kv_transfer": BLOCK_TOKENS,
    }


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 0.0),
        ({"kv_cache_transfer_latency": 0.25, "kv_cache_transfer_time_per_token": 9.0}, 0.25),
        ({"kv_cache_transfer_time_per_token": 0.25}, 25.0),
        ({"kv_cache_transfer_latency": 1.0, "latency_calculator": "per-token"}, 0.0),
        ({"kv_cache_transfer_time_per_token": 1.0, "latency_calculator": "constant"}, 0.0),
    ],
)
def test_a_remote_prefill_costs_its_transfer_alone(settings: Any, seconds: float) -> None:
    latency = LatencySettings(time_to_first_token=5.0, time_factor_under_load=3.0, **settings)
    timing = PerRequestTiming(latency, 4, lambda: 4, Random(1))
    assert timing.time_to_first_token(100, 20, remote=True) == seconds
