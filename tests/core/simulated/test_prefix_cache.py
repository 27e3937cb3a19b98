"""What a KV cache changes: who waits, when the first token comes, what is told of it."""

from typing import Any

import pytest

from app.core.engine.errors import PromptExceedsCacheError
from app.core.engine.kvcache.events import AllBlocksCleared
from app.core.engine.outputs import Started
from tests.core.engine.harness import BLOCK_TOKENS, Harness

PROMPT = list(range(100, 100 + 4 * BLOCK_TOKENS))
"""Four full blocks."""
PER_TOKEN = {"prefill_time_per_token": 0.1}


def harness(blocks: int = 100, **fields: Any) -> Harness:
    return Harness(**{"blocks": blocks, "slots": 8, **fields})


def seconds_to_first_token(served: Harness, name: str, prompt: list[int], **fields: Any) -> float:
    """Ask and wait for the end; seconds to the first token."""
    start_s = served.clock.now()
    served.ask(name, prompt_ids=prompt, **{"max_tokens": 1, **fields})
    served.clock.advance(1000)
    return served.tokens(name)[0].at_s - start_s


def cached(served: Harness, name: str) -> int:
    (started,) = [event for event in served.outputs(name) if isinstance(event, Started)]
    return started.cached_tokens


def test_cached_tokens_are_not_prefilled_again() -> None:
    served = harness(**PER_TOKEN)
    assert seconds_to_first_token(served, "first", PROMPT) == pytest.approx(3.2)
    assert seconds_to_first_token(served, "same", PROMPT) == pytest.approx(0.8), (
        "the last block is always computed"
    )
    assert seconds_to_first_token(served, "longer", [*PROMPT, 1, 2]) == pytest.approx(0.2)
    assert seconds_to_first_token(served, "other", PROMPT[::-1]) == pytest.approx(3.2)
    assert [cached(served, name) for name in ("first", "same", "longer", "other")] == [0, 24, 32, 0]
    assert served.metric("prefix_cache_queries_total") == 32 * 3 + 34
    assert served.metric("prefix_cache_hits_total") == 24 + 32
    assert served.metric("prompt_tokens_cached_total") == 24 + 32


def test_request_without_enough_free_blocks_delays_later_requests() -> None:
    served = harness(blocks=6, time_to_first_token=1.0)
    served.ask("a", prompt_ids=PROMPT, max_tokens=1)
    served.ask("b", prompt_ids=PROMPT[::-1], max_tokens=1)
    served.ask("c", prompt_ids=[1], max_tokens=1)
    assert served.gauges() == (1, 2)
    served.clock.advance(1.5)
    assert served.finish("a") == "length"
    assert served.gauges() == (2, 0), "b has its four blocks, and c the fifth"
    served.clock.advance(10)
    assert served.is_idle()


def test_prompt_larger_than_the_cache_is_rejected() -> None:
    served = harness(blocks=4)
    with pytest.raises(
        PromptExceedsCacheError, match="32 tokens exceeds the KV cache of 24 tokens"
    ):
        served.ask("a", prompt_ids=PROMPT, max_tokens=1)
    assert served.is_idle()


def test_request_below_the_cache_threshold_still_stores_its_prompt() -> None:
    served = harness(time_to_first_token=5.0)
    assert seconds_to_first_token(served, "miss", PROMPT, cache_hit_threshold=0.9) == 0
    assert (served.finish("miss"), served.said("miss")) == ("cache_threshold", "")
    assert seconds_to_first_token(served, "hit", PROMPT, cache_hit_threshold=0.7) == 5.0
    assert served.finish("hit") == "length"
    assert served.metric("request_success_total", finished_reason="stop") == 1
    assert served.is_idle()


def test_prefix_cache_stores_nothing_during_sleep() -> None:
    served = harness()
    assert served.cache is not None
    seconds_to_first_token(served, "a", PROMPT)
    served.cache.discard()
    served.cache.caching = False
    seen = len(served.kv_events)
    seconds_to_first_token(served, "b", PROMPT)
    seconds_to_first_token(served, "c", PROMPT)
    assert (cached(served, "b"), cached(served, "c")) == (0, 0)
    assert served.kv_events[seen:] == [AllBlocksCleared()], "the first step tells of it"
    served.cache.caching = True
    seconds_to_first_token(served, "d", PROMPT)
    seconds_to_first_token(served, "e", PROMPT)
    assert cached(served, "e") == 24
