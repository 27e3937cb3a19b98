"""Settings of single parts that are derived from several settings of the server."""

from __future__ import annotations

import math

from app.core.engine.kvcache.publishing import (
    DEFAULT_LAYOUT,
    QUEUE_BYTES,
    REPLAY_BYTES,
    EventRules,
    PublisherSettings,
    of_rank,
)
from app.core.versions.chain import simulated_version
from config import ConfigError
from config.settings import ApiSettings, KVCacheSettings, ModelSettings, ServerSettings

QUEUE_SHARE = 1 / 16
REPLAY_SHARE = 1 / 64
"""Parts of the memory of a process that KV events may take, up to the limits of a publisher."""
LOOPBACK = "127.0.0.1"
"""Name of a server that does not know its own address."""


def cache_config(cache: KVCacheSettings, model: ModelSettings, api: ApiSettings) -> dict[str, str]:
    """Returns labels of vllm:cache_config_info, with capacities by vLLM's formulas."""
    max_model_len = model.max_model_len
    blocks_per_request = math.ceil(max_model_len / cache.block_size)
    max_concurrency = cache.kv_cache_size / blocks_per_request
    labels = {
        "block_size": str(cache.block_size),
        "num_gpu_blocks": str(cache.kv_cache_size),
        "num_gpu_blocks_override": str(cache.num_gpu_blocks_override),
        "kv_cache_size_tokens": str(int(max_concurrency * max_model_len)),
        "kv_cache_max_concurrency": str(max_concurrency),
        "enable_prefix_caching": str(cache.enable_kvcache),
        "prefix_caching_hash_algo": cache.prefix_caching_hash_algo,
        "simple_cpu_offload_num_blocks": "None",
    }
    absent = simulated_version(api).absent_labels
    return {name: value for name, value in labels.items() if name not in absent}


def _pod_of(server: ServerSettings, address: str) -> str:
    """Returns the name of a pod in topics, which is also that of x-inference-pod.

    The port distinguishes the ranks of a pod.
    """
    if not server.pod_name:
        return f"{address}:{server.port}"
    if server.data_parallel_size > 1:
        return f"{server.pod_name}:{server.port}"
    return server.pod_name


def publishing(
    cache: KVCacheSettings, server: ServerSettings, api: ApiSettings, model: str, rank: int
) -> PublisherSettings:
    """Returns the settings of `rank` for publishing the KV events of `model`.

    Raises:
        ConfigError: An endpoint is invalid.
    """
    try:
        for endpoint in filter(None, (cache.zmq_endpoint, cache.kv_events_replay_endpoint)):
            of_rank(endpoint, rank)
    except ValueError as error:
        raise ConfigError(f"setting zmq-endpoint or kv-events-replay-endpoint: {error}") from None
    address = server.pod_ip or LOOPBACK
    topic = cache.kv_events_topic.replace("{pod}", _pod_of(server, address))
    topic = topic.replace("{address}", address)
    layout = cache.events_layout
    if layout == DEFAULT_LAYOUT:
        layout = simulated_version(api).rules(EventRules).layout
    return PublisherSettings(
        endpoint=cache.zmq_endpoint or None,
        topic=topic.replace("{port}", str(server.port)).replace("{model}", model),
        rank=rank,
        replay_endpoint=cache.kv_events_replay_endpoint or None,
        replay_batches=cache.kv_events_replay_queue_size,
        layout=layout,
        batch_events=cache.event_batch_size,
        flush_s=cache.event_flush_interval,
        queue_bytes=server.memory_share(QUEUE_SHARE, QUEUE_BYTES),
        replay_bytes=server.memory_share(REPLAY_SHARE, REPLAY_BYTES),
    )
