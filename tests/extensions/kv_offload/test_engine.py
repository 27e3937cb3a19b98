"""Requests on an engine whose evicted blocks come back from tiers."""

import pytest

from app.core.engine.kvcache.events import BlockRemoved, BlockStored
from tests.extensions.kv_offload.engines import BLOCK_SIZE, TieredEngine, prompt_of

timings = pytest.mark.parametrize("steps", [False, True], ids=["requests", "steps"])
BLOCK_S = 0.1
"""Duration of the load of a block."""


def evict(tiered: TieredEngine, number: int = 90) -> None:
    """Fills the cache with other prompts, which evict all blocks of earlier ones."""
    tiered.complete(f"evict {number}", prompt_of(number, tiered.cache.capacity - 1))


@timings
def test_load_time_of_an_offloaded_prompt_is_proportional_to_its_size(steps: bool) -> None:
    tiered = TieredEngine(12, steps=steps)
    tiered.complete("first", prompt_of(1))
    cold_s = tiered.first_token_s("first")
    evict(tiered)
    sent_s = tiered.clock.now() - 1000

    cached_tokens = tiered.complete("again", prompt_of(1))

    warm_s = tiered.first_token_s("again") - sent_s
    assert cached_tokens == 4 * BLOCK_SIZE
    assert warm_s == pytest.approx(4 * BLOCK_S + cold_s, abs=0.06)
    assert tiered.used_blocks == 0
    assert tiered.metric("kv_offload_load_bytes_total") == 4e6
    assert tiered.metric("kv_offload_load_time_total") == pytest.approx(4 * BLOCK_S)
    assert tiered.metric("external_prefix_cache_hits_total") == 4 * BLOCK_SIZE
    assert tiered.metric("prompt_tokens_cached_by_source_total", 'source="host"') == 64


def test_running_requests_receive_tokens_while_another_prompt_loads() -> None:
    tiered = TieredEngine(30)
    tiered.complete("first", prompt_of(1))
    evict(tiered)
    tiered.submit("running", prompt_of(2, 1), 200)
    tiered.clock.advance(0.05)
    before = len(tiered.outputs["running"])

    tiered.submit("again", prompt_of(1))
    tiered.clock.advance(3 * BLOCK_S)

    assert not tiered.outputs["again"]
    assert tiered.engine.waiting == 1
    assert len(tiered.outputs["running"]) > before + 10
    tiered.clock.advance(2 * BLOCK_S)
    assert tiered.cached_tokens("again") == 4 * BLOCK_SIZE


@timings
def test_client_disconnect_during_a_load_releases_all_blocks(steps: bool) -> None:
    tiered = TieredEngine(12, steps=steps)
    tiered.complete("first", prompt_of(1))
    evict(tiered)
    handle = tiered.submit("again", prompt_of(1))
    tiered.clock.advance(BLOCK_S)
    assert tiered.used_blocks == (4 if steps else 5)

    handle.abort()
    during = tiered.used_blocks
    tiered.clock.advance(4 * BLOCK_S)

    assert during == (4 if steps else 0)
    assert tiered.used_blocks == 0
    assert not tiered.cache.running
    assert tiered.engine.waiting == tiered.engine.running == 0
    assert tiered.metric("kv_offload_cpu_cache_usage_perc") == 0
    assert tiered.complete("third", prompt_of(1)) == 4 * BLOCK_SIZE


def test_request_waits_until_an_aborted_load_frees_its_blocks() -> None:
    tiered = TieredEngine(12)
    tiered.complete("first", prompt_of(1, 8))
    evict(tiered)
    handle = tiered.submit("again", prompt_of(1, 8))
    tiered.clock.advance(BLOCK_S)
    tiered.submit("other", prompt_of(3, 8))
    tiered.clock.advance(BLOCK_S)

    handle.abort()
    tiered.clock.advance(2 * BLOCK_S)
    assert not tiered.has_ended("other")
    tiered.clock.advance(60)

    assert tiered.has_ended("other")
    assert tiered.used_blocks == 0


def test_request_for_blocks_that_are_being_loaded_waits_for_them() -> None:
    tiered = TieredEngine(30)
    tiered.complete("first", prompt_of(1))
    evict(tiered)
    tiered.submit("second", prompt_of(1))
    tiered.clock.advance(BLOCK_S)

    tiered.submit("third", prompt_of(1))
    tiered.clock.advance(60)

    assert tiered.cached_tokens("third") == tiered.cached_tokens("second") == 64
    assert tiered.metric("kv_offload_load_bytes_total") == 4e6
    assert tiered.metric("external_prefix_cache_hits_total") == 64


def test_prompt_of_full_blocks_is_loaded_except_for_its_last_token() -> None:
    tiered = TieredEngine(12)
    prompt = prompt_of(1, 4, 0)
    tiered.complete("first", prompt)
    evict(tiered)

    assert tiered.complete("again", prompt) == len(prompt)
    assert tiered.used_blocks == 0


@timings
def test_host_tier_evicts_blocks_from_the_end_of_the_prompt(
    steps: bool,
) -> None:
    tiered = TieredEngine(40, steps=steps, chunks=6)
    tiered.complete("first", prompt_of(1))
    tiered.complete("second", prompt_of(2))

    host = [event for event in tiered.events if getattr(event, "medium", "") == "CPU"]
    stored = [event for event in host if isinstance(event, BlockStored)]
    [removed] = [event for event in host if isinstance(event, BlockRemoved)]
    assert [len(event.block_hashes) for event in stored] == [1] * 8
    assert all(event.token_ids == [] and event.block_size == 0 for event in stored)
    assert all(event.parent_block_hash is None for event in stored)
    first_hashes = [event.block_hashes[0] for event in stored[:4]]
    assert removed.block_hashes == [first_hashes[3], first_hashes[2]]
    assert tiered.metric("kv_offload_store_bytes_total") == 8e6
    device = [event for event in tiered.events if isinstance(event, BlockStored)]
    assert device.index(stored[0]) > 0
    assert device[0].block_hashes == first_hashes


def test_full_events_of_the_host_tier_contain_token_ids_and_parent_hashes() -> None:
    tiered = TieredEngine(40, has_full_events=True, blocks_per_chunk=2)
    tiered.complete("first", prompt_of(1, 5))

    device, *host = [event for event in tiered.events if isinstance(event, BlockStored)]

    assert [event.medium for event in host] == ["CPU", "CPU"]
    assert [event.block_hashes for event in host] == [
        device.block_hashes[:2],
        device.block_hashes[2:4],
    ]
    assert [event.parent_block_hash for event in host] == [None, device.block_hashes[1]]
    assert host[1].token_ids == device.token_ids[32:64]
    assert host[0].block_size == BLOCK_SIZE
    assert host[0].kv_cache_spec_kind == "full_attention"
    memory = tiered.cache.caches["KV offload, events"]
    assert 0 < memory.size_bytes < memory.limit_bytes


def test_cache_reset_clears_the_host_tier_only_if_reset_external_is_set() -> None:
    tiered = TieredEngine(40)
    tiered.complete("first", prompt_of(1))

    assert tiered.cache.reset()
    assert tiered.complete("second", prompt_of(1)) == 64
    assert tiered.metric("external_prefix_cache_hits_total") == 64
    assert tiered.cache.reset(external=True)
    assert tiered.complete("third", prompt_of(1)) == 0


@timings
def test_cache_reset_during_a_load_leaves_no_blocks_in_use(steps: bool) -> None:
    tiered = TieredEngine(12, steps=steps)
    tiered.complete("first", prompt_of(1))
    evict(tiered)
    tiered.submit("again", prompt_of(1))
    tiered.clock.advance(BLOCK_S)

    tiered.cache.reset(under_requests=True, external=True)
    tiered.clock.advance(60)

    assert tiered.has_ended("again")
    assert tiered.used_blocks == 0
    assert tiered.metric("kv_offload_cpu_cache_usage_perc") == 0


def test_preempted_request_loads_its_blocks_again() -> None:
    tiered = TieredEngine(12)
    for number in range(2):
        tiered.submit(f"{number}", prompt_of(number, 4), 60)

    tiered.clock.advance(60)

    assert tiered.metric("num_preemptions_total") > 0
    assert tiered.metric("kv_offload_load_bytes_total") > 0
    assert tiered.has_ended("0")
    assert tiered.has_ended("1")
    assert tiered.used_blocks == 0


def test_chunks_of_several_blocks_are_stored_and_loaded_completely() -> None:
    tiered = TieredEngine(12, blocks_per_chunk=2)
    tiered.complete("first", prompt_of(1, 5))
    evict(tiered)

    assert tiered.complete("again", prompt_of(1, 5)) == 4 * BLOCK_SIZE


def test_reply_blocks_are_stored_unless_only_prompts_are_stored() -> None:
    for is_prompt_only, cached_blocks in ((True, 1), (False, 3)):
        tiered = TieredEngine(12, is_prompt_only=is_prompt_only)
        prompt = prompt_of(1, 1, 0)
        tiered.complete("first", prompt, 3 * BLOCK_SIZE)
        evict(tiered)

        cached_tokens = tiered.complete("next turn", [*prompt, *range(3 * BLOCK_SIZE)])

        assert cached_tokens == cached_blocks * BLOCK_SIZE


def test_store_that_does_not_fit_into_the_host_tier_is_retried() -> None:
    tiered = TieredEngine(40, chunks=6)
    tiered.submit("first", prompt_of(1))
    tiered.submit("second", prompt_of(2), 200)
    tiered.clock.advance(60)

    assert tiered.metric("kv_offload_allocation_failure_total") > 0
    assert tiered.metric("kv_offload_store_bytes_total") == 8e6


def test_prompt_on_disk_is_loaded_through_the_host_tier() -> None:
    tiered = TieredEngine(20, chunks=18, disk_chunks=100, disk_bandwidth=2e6, has_disk_events=True)
    tiered.complete("first", prompt_of(1))
    evict(tiered)
    evict(tiered, 91)
    sent_s = tiered.clock.now() - 1000

    cached_tokens = tiered.complete("again", prompt_of(1))

    assert cached_tokens == 64
    assert tiered.first_token_s("again") - sent_s == pytest.approx(4 * 0.5 + 4 * BLOCK_S, abs=0.06)
    assert tiered.metric("prompt_tokens_cached_by_source_total", 'source="disk"') == 64
    assert tiered.metric("kv_offload_tiering_read_bytes_total") == 4e6
    assert tiered.metric("kv_offload_tiering_active_promotion_jobs") == 0
    assert tiered.metric("kv_offload_tiering_chunk_hits_total", '"1:fs"') == 4
    media = {getattr(event, "medium", None) for event in tiered.events}
    assert media == {"GPU", "CPU", "STORAGE"}
    assert tiered.used_blocks == 0


def test_full_disk_tier_evicts_the_oldest_chunks() -> None:
    tiered = TieredEngine(40, disk_chunks=6, has_disk_events=True)
    tiered.complete("first", prompt_of(1))
    tiered.complete("second", prompt_of(2))

    removed = [
        event
        for event in tiered.events
        if isinstance(event, BlockRemoved) and event.medium == "STORAGE"
    ]
    assert [len(event.block_hashes) for event in removed] == [2]


@timings
def test_each_request_loads_its_blocks_if_the_prefix_cache_is_off(
    steps: bool,
) -> None:
    tiered = TieredEngine(30, steps=steps, has_prefix_cache=False)
    tiered.complete("first", prompt_of(1))
    for name in ("second", "third"):
        tiered.submit(name, prompt_of(1))
    tiered.clock.advance(60)

    assert tiered.cached_tokens("second") == tiered.cached_tokens("third") == 64
    assert tiered.metric("kv_offload_load_bytes_total") == 8e6
    assert tiered.metric("prefix_cache_queries_total") == 0
    assert {getattr(event, "medium", None) for event in tiered.events} == {"CPU"}
    assert tiered.used_blocks == 0
