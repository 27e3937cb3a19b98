"""An index of which nothing is said does as a server without settings does."""

from __future__ import annotations

from app.kvindex.scorer import Weights
from app.kvindex.service import GENERATION, TOKENIZER_TIMEOUT_S, KvIndexSettings
from config.sections.kvindex import tier_weights
from config.settings import Settings
from tests.running_server import ROOT

OURS, AT = KvIndexSettings(), Settings().kvindex


def test_as_much_is_held() -> None:
    assert (OURS.most_copies, OURS.most_bytes) == (AT.kv_index_size, AT.kv_index_memory_mb << 20)
    assert OURS.count_repeats == OURS.redis.count_repeats == (AT.kv_index_repeats == "copies")


def test_blocks_have_the_same_keys_and_weights() -> None:
    assert (OURS.index.block_size, OURS.index.seed) == (AT.kv_index_block_size, AT.kv_index_hash_seed)
    assert OURS.index.generation == GENERATION[AT.kv_index_hash]
    assert Weights(tier_weights(AT.kv_index_tier_weights), AT.kv_index_unknown_tier_weight) == Weights()


def test_messages_are_taken_alike() -> None:
    subscriber = OURS.subscriber
    assert OURS.pool.most_payload_bytes == AT.kv_index_max_message_mb << 20
    assert (subscriber.topic, subscriber.replay_port) == (AT.kv_index_topic, AT.kv_index_replay_port)
    paces = AT.kv_index_pod_grace, AT.kv_index_refresh_interval
    assert (subscriber.grace_s, subscriber.look_again_s) == paces


def test_others_are_waited_for_as_long() -> None:
    assert (OURS.redis.url, OURS.redis.ttl_s) == (AT.kv_index_redis_url, AT.kv_index_ttl)


def test_bounds_without_a_setting_are_those_that_the_docs_tell() -> None:
    told = " ".join((ROOT / "docs/kv-index.md").read_text().split())
    pool, subscriber, replays = OURS.pool, OURS.subscriber, OURS.replays
    redis, tokenization = OURS.redis, OURS.tokenization
    assert (pool.shards, redis.timeout_s) == (4, 1.0)  # as `RETIRED` says
    assert (tokenization.workers, tokenization.timeout_s) == (5, TOKENIZER_TIMEOUT_S)
    queue = f"({pool.most_messages:,} messages or {(pool.most_bytes // pool.shards) >> 20} MiB each)"
    assert queue in told and f"there are {pool.most_engines:,} engines already" in told
    assert f"above {subscriber.most_bytes >> 20} MiB the connection is closed" in told
    assert subscriber.most_bytes == replays.most_bytes
