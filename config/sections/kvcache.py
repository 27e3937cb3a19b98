"""The KV cache that is played, and the events that tell of it."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.kinds import Duration
from config.rules import at_least, between, not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSettings:
    """The KV cache that is played, and the events that tell of it."""

    enable_kvcache: bool = setting(False, help="Play vLLM's prefix cache; without it nothing is ever cached.")
    kv_cache_size: int = setting(
        1024, unit="blocks", help="Blocks of the cache, one of which is vLLM's null block.", rule=at_least(2)
    )
    block_size: int = setting(16, unit="tokens", help="Tokens of a block.", rule=between(1, 1024))
    kv_cache_full: Literal["wait", "refuse"] = setting(
        "wait", help="A request whose prompt finds too few free blocks waits for them, or gets 503."
    )
    prefix_caching_hash_algo: Literal["sha256_cbor", "sha256", "xxhash_cbor", "xxhash"] = setting(
        "sha256_cbor", help="How blocks are hashed, as vLLM's option of the same name."
    )
    hash_seed: str | None = setting(
        None,
        env=("PYTHONHASHSEED",),
        help="Where the chain of hashes begins, as PYTHONHASHSEED for vLLM; vLLM's own when empty.",
    )
    global_cache_hit_threshold: float = setting(
        0.0,
        live=True,
        help="Requests of whose prompt a smaller share is cached end at once with cache_threshold; 0 is off.",
        rule=between(0, 1),
    )
    kv_cache_metrics: bool = setting(
        False, help="Tell how long blocks live, are idle before their end and wait for their next use."
    )
    evict_unloaded_adapters_first: bool = setting(
        False, help="Take the unused blocks of adapters that are not loaded before those of others."
    )
    zmq_endpoint: str = setting(
        "tcp://127.0.0.1:5557",
        help="Where KV events are published (ZMQ PUB); a rank adds its number to the port. An endpoint with "
        "* or :: is bound, another one connected to. Empty publishes nothing.",
    )
    event_batch_size: int = setting(
        16, unit="events", help="Events at which a batch is published, with all there are.", rule=at_least(1)
    )
    event_flush_interval: Duration = setting(
        1.0,
        help="Time after which a batch is published at the latest; 0 publishes every step.",
        rule=not_negative(),
    )
    kv_events_format: Literal[
        "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
    ] = setting(
        "map",
        help="Layout of the events: maps as since vLLM 0.24, the arrays of a vLLM from that version on, or "
        "those of llm-d-inference-sim.",
    )
    kv_events_topic: str = setting("", help="Topic of the events; kv@address:port@model when empty.")
    kv_events_replay_endpoint: str = setting(
        "", help="Where batches can be asked for again (ZMQ ROUTER); empty is nowhere."
    )
    kv_events_replay_queue_size: int = setting(
        1024, unit="batches", help="Batches that can be asked for again.", rule=at_least(1)
    )
    kv_events_replay_layout: Literal["topic", "bare"] = setting(
        "topic", help="Frames of a replay: with the topic as since vLLM 0.26, or without as before."
    )
