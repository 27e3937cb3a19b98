"""The index of KV blocks, beside a server or alone, built from the settings."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import gevent
import zmq
from gevent.event import Event

from app.kvcache.event_sender import Listener
from app.kvcache.events import encoder
from app.kvindex.backend import RedisSettings
from app.kvindex.event_pool import PoolSettings
from app.kvindex.index import IndexSettings
from app.kvindex.keys import GENERATIONS, Generation
from app.kvindex.pods import parse_topic
from app.kvindex.scorer import Weights
from app.kvindex.service import KvIndex, KvIndexSettings
from app.kvindex.streams import Message
from app.kvindex.subscriber import SubscriberSettings
from app.kvindex.tokenizers import Discovery, TokenizationSettings, TokenizerLibrary
from app.lora.adapters import adapters_of
from app.tokenization import Tokenizer, load_tokenizer
from config import ConfigError, Settings
from config.sections.kvindex import KVIndexSettings, tier_weights, tokenizer_sources
from config.settings import TokenizerSettings

DEFAULT_BIND = "tcp://*:5557"
"""Where an indexer listens that is told nothing: the port of llm-d's manager."""
RETRY_S = 1.0
GENERATION: Mapping[str, Generation] = {name.lower(): name for name in GENERATIONS}

TOKENIZER_TIMEOUT_S = 10.0
"""Seconds that a request waits for its tokenizer to be loaded, and then for its prompt's tokens."""
log = logging.getLogger(__name__)


def index_of(settings: Settings, tokenizer: Tokenizer) -> KvIndex:
    """The index, not yet listening. ConfigError for addresses that are none."""
    at, model = settings.kvindex, settings.model
    adapters = [adapter.name for adapter in adapters_of(settings.lora, model)]
    own = dict.fromkeys((model.model, *model.served_names, *adapters), tokenizer)
    folder = at.kv_index_tokenizer_dir
    library = TokenizerLibrary(
        partial(_load, at=settings.tokenizer),
        ready=own,
        sources=tokenizer_sources(at.kv_index_tokenizers),
        discovery=Discovery(Path(folder).expanduser(), time.monotonic) if folder else None,
        hub=at.kv_index_fetch_tokenizers,
        timeout_s=TOKENIZER_TIMEOUT_S,
    )
    try:
        return KvIndex(_service_settings(settings), library.get, caches={"index tokenizers": library})
    except ValueError as error:
        raise ConfigError(f"setting kv-index-pods or kv-index-redis-url: {error}") from None


def _load(source: str, at: TokenizerSettings) -> Tokenizer:
    return load_tokenizer(
        model=source,
        tokenizer=source,
        explicit=True,
        hf_token=at.hf_token,
        cache_dir=at.tokenizers_cache_dir,
    )


def aliases(settings: Settings) -> Mapping[str, str]:
    """The names under which the model is served -> the one that its pods publish."""
    return dict.fromkeys(settings.model.served_names, settings.model.model)


def _service_settings(settings: Settings) -> KvIndexSettings:
    at = settings.kvindex
    counts = at.kv_index_repeats == "copies"
    return KvIndexSettings(
        backend=at.kv_index_backend,
        most_copies=at.kv_index_size,
        most_bytes=at.kv_index_memory_mb << 20,
        count_repeats=counts,
        redis=RedisSettings(
            url=at.kv_index_redis_url,
            namespace=at.kv_index_redis_prefix,
            ttl_s=math.ceil(at.kv_index_ttl),
            count_repeats=counts,
        ),
        index=IndexSettings(
            block_size=at.kv_index_block_size,
            generation=GENERATION[at.kv_index_hash],
            seed=at.kv_index_hash_seed,
            weights=Weights(tier_weights(at.kv_index_tier_weights), at.kv_index_unknown_tier_weight),
        ),
        pool=PoolSettings(most_payload_bytes=at.kv_index_max_message_mb << 20),
        subscriber=_subscriber_settings(at, settings.model.model),
        targets=at.kv_index_pods,
        tokenization=TokenizationSettings(timeout_s=TOKENIZER_TIMEOUT_S),
    )


def _subscriber_settings(at: KVIndexSettings, model: str) -> SubscriberSettings:
    alone = at.role == "indexer" and not at.kv_index_pods
    return SubscriberSettings(
        bind=at.kv_index_bind or (DEFAULT_BIND if alone else None),
        topic=at.kv_index_topic,
        model=model,
        replay_port=at.kv_index_replay_port,
        grace_s=at.kv_index_pod_grace,
        look_again_s=at.kv_index_refresh_interval,
    )


def fed(index: KvIndex, model: str) -> Listener:
    """Gives the index what our own publisher publishes, without a socket between them."""
    encode, feed = encoder("map"), fed_encoded(index, model)
    return lambda topic, sequence, batch: feed(topic, sequence, encode(batch))


def fed_encoded(index: KvIndex, model: str) -> Callable[[str, int, bytes], None]:
    """The same, of batches that are encoded."""

    def feed(topic: str, sequence: int, batch: bytes) -> None:
        named = parse_topic(topic.encode())
        pod = topic if named is None else named.pod
        index.receive(Message(pod, model, sequence, batch))

    return feed


class Listening:
    """The index as a companion of the worker: it listens as soon as its address is free.

    At a reload the worker before still has it.
    """

    def __init__(self, index: KvIndex, retry_s: float = RETRY_S) -> None:
        self._index, self._retry_s = index, retry_s
        self._end = Event()

    def start(self) -> None:
        gevent.spawn(self._start)

    def close(self) -> None:
        self._end.set()
        self._index.close()

    def _start(self) -> None:
        complained = False
        while not self._end.is_set():
            try:
                return self._index.start()
            except zmq.ZMQError as error:
                if not complained:
                    log.warning("KV index: it cannot listen yet, trying on: %s", error)
                complained = True
                self._end.wait(self._retry_s)
        return None
