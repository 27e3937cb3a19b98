"""Prompts that were prefilled elsewhere: where their tokens came from, and what fetching their cache took."""

from __future__ import annotations

from app.base.metrics.recorder import PARTS, TOKEN_BYTES, Recorder
from tests.metrics.test_recorder import samples


def make(transfers: bool = False) -> Recorder:
    return Recorder("tiny", 2048, {"block_size": "16"}, transfers=transfers)


def test_fetched_tokens_are_neither_computed_nor_a_hit_of_ones_own_cache() -> None:
    recorder = make()
    recorder.prefilled(0.1, 50, 32, 1.0)
    recorder.fetched(84, 0.02)
    recorder.prefilled(0.2, 100, 100, 2.0)
    now = samples(recorder)
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    by_source = [now[f'vllm:prompt_tokens_by_source_total{{source="{source}"}}'] for source in sources]
    assert by_source == [18, 48, 84] and sum(by_source) == now["vllm:prompt_tokens_total"]
    tiers = ("device", "host", "p2p", "disk", "external_unspecified")
    by_tier = [now[f'vllm:prompt_tokens_cached_by_source_total{{source="{tier}"}}'] for tier in tiers]
    assert by_tier == [48, 0, 84, 0, 0] and sum(by_tier) == now["vllm:prompt_tokens_cached_total"]
    external = [now[f"vllm:external_prefix_cache_{what}_total"] for what in ("queries", "hits")]
    assert external == [84, 84]


def test_each_transfer_is_an_observation() -> None:
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
