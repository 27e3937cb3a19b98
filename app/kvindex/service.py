"""The index as a service: builds its parts from the settings, runs greenlets, reports figures."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import gevent
import zmq
from gevent.pool import Group

from app.base import Bounded
from app.base.clock.pause import PAUSE_S
from app.engine.kvcache.events import EventBatch, encoder
from app.engine.kvcache.sockets import IO_THREADS, end_context
from app.engine.lora import adapters_of
from app.kvindex.backend import Backend, BackendUnavailable
from app.kvindex.index import Index
from app.kvindex.memory import MOST_COPIES, MemoryBackend, weigh_bytes
from app.kvindex.pods import TargetSource, parse_topic, target_sources
from app.kvindex.pool import Pool, PoolSettings, PublishedMessage
from app.kvindex.subscriber import LOOK_AGAIN_S, Context, Subscriber, SubscriberSettings
from app.kvindex.tokenizers import Tokenization, TokenizerLibrary
from app.text.base import Tokenizer
from app.text.huggingface import load_tokenizer
from app.text.template_process import TemplateProcess
from config import ConfigError, Settings
from config.sections.engine import KVIndexSettings, tier_weights, tokenizer_sources
from config.sections.model import TokenizerSettings

log = logging.getLogger(__name__)

MOST_SOCKETS = 1 << 16
LISTEN_S = 0.25
"""Longest wait of the subscriber, in seconds:

files, host names and pods change without messages.
"""
JOIN_S = 5.0
RETRY_S = 1.0
"""Seconds between two attempts to bind an address in use."""
MOST_MIB = 2048
"""Default size of the cost-aware backend."""


def open_backend(at: KVIndexSettings) -> Backend:
    """Creates the backend of the settings. ValueError for an invalid URL."""
    if at.kv_index_backend == "memory":
        return MemoryBackend(at.kv_index_size or MOST_COPIES)
    if at.kv_index_backend == "cost-aware":
        return MemoryBackend((at.kv_index_size or MOST_MIB) << 20, weigh_bytes)
    from app.kvindex.redis_backend import RedisBackend  # its client is slow to import

    return RedisBackend(at.kv_index_redis_url, math.ceil(at.kv_index_ttl))


class KvIndex:
    """An index with its subscriber. `start` opens sockets and spawns greenlets.

    `targets` lists publishers to connect to, in the form of `target_sources`. `now` is monotonic,
    `wall` since 1970, both in seconds. `caches` are further caches to report, by name, such as the
    tokenizers'.
    """

    def __init__(
        self,
        index: Index,
        tokenization: Tokenization,
        subscriber: SubscriberSettings,
        targets: Sequence[str] = (),
        pool: PoolSettings = PoolSettings(),  # noqa: B008 (immutable)
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        caches: Mapping[str, Bounded] = MappingProxyType({}),
    ) -> None:
        """Raises ValueError for invalid targets."""
        self.index, self.tokenization = index, tokenization
        self._further_caches, self._now = caches, now
        self._sources = target_sources(targets)
        self._pool = Pool(index, pool, now, wall)
        self._subscriber = Subscriber(self._pool, subscriber, self._sources)
        self._greenlets = Group()

    @property
    def address(self) -> str | None:
        """Address that pods connect to, with the port in use."""
        return self._subscriber.address

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches and queues in this process, by name; data in Redis is not among them."""
        kept = {
            **self._further_caches,
            "prompt tokens": self.tokenization.prompts,
            **self.index.caches,
        }
        if isinstance(self.index.backend, MemoryBackend):
            kept["index blocks"] = self.index.backend
        return kept | {"index messages": self._pool}

    def open(self) -> None:
        """Opens sockets and spawns greenlets.

        ZMQError for an invalid address, or an address in use.
        """
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
        context.set(zmq.IO_THREADS, IO_THREADS)
        try:
            self._subscriber.open(context)
        except zmq.ZMQError:
            context.destroy(linger=0)
            raise
        self._pool.context = context
        for source in self._sources:
            self._greenlets.spawn(self._refresh, source)
        for shard in self._pool.shards:
            self._greenlets.spawn(self._pool.run, shard)
        self._greenlets.spawn(self._subscribe)

    def start(self, retry_s: float = RETRY_S) -> None:
        """Calls `open` until the address is free:

        during a reload, the previous worker still has it.
        """
        self._greenlets.spawn(self._open_when_free, retry_s)

    def close(self) -> None:
        """Closes the sockets and stops the greenlets. Data in a shared backend stays."""
        self._greenlets.kill(timeout=JOIN_S)
        self._subscriber.close()
        self._pool.close()
        if self._pool.context is not None:
            end_context(self._pool.context)
        self.index.backend.close()

    def receive(self, message: PublishedMessage) -> None:
        """Queues a message that did not come over a socket; drops the message if a queue is full."""
        if not self._pool.full:
            self._pool.put(message)

    def stats(self) -> dict[str, object]:
        """Figures of the index, as in `GET /kv/index`; size and pods are None while the backend is
        away.
        """
        metrics, size, pods = self.index.metrics, None, None
        with suppress(BackendUnavailable):
            size, pods = self.index.backend.size(), sorted(self.index.backend.pods())
        return {
            "block_size": self.index.block_size,
            "listens_at": self.address,
            "size": size,
            "pods": pods,
            "streams": self._pool.positions(),
            "sources": [target.endpoint for target in self._subscriber.targets],
            "queued": len(self._pool),
            "skipped": {"messages": metrics.skipped_messages, "events": metrics.skipped_events},
        }

    def metrics_text(self) -> str:
        """The `kvcache_` families in the Prometheus text format."""
        backend, gauges = self.index.backend, {"events_queue_depth": float(len(self._pool))}
        with suppress(BackendUnavailable):
            size, pods = backend.size(), backend.pods()
            gauges |= {
                "index_blocks": size.blocks,
                "index_copies": size.copies,
                "events_pods": len(pods),
            }
        return self.index.metrics.render(gauges, backend.times_lost)

    def _open_when_free(self, retry_s: float) -> None:
        complained = False
        while True:
            try:
                return self.open()
            except zmq.ZMQError as error:
                if not complained:
                    log.warning("KV index: it cannot listen yet, trying on: %s", error)
                complained = True
                gevent.sleep(retry_s)

    def _refresh(self, source: TargetSource) -> None:
        """Refreshes the endpoints of a source periodically; each source has a greenlet, as some are
        slow.
        """
        while True:
            source.refresh()
            gevent.sleep(LOOK_AGAIN_S)

    def _subscribe(self) -> None:
        while True:
            more = False
            try:
                more = self._subscriber.step(self._now())
            except Exception:
                log.exception("the KV index goes on after an error")
            if more:
                gevent.sleep(PAUSE_S)
            else:
                self._subscriber.wait(LISTEN_S)


DEFAULT_BIND = "tcp://*:5557"
"""Default address of an indexer; the port is that of llm-d's manager."""

TOKENIZER_TIMEOUT_S = 10.0
"""Longest wait of a request, in seconds:

for its tokenizer to load, and again for its prompt's tokens.
"""


def index_of(settings: Settings, tokenizer: Tokenizer) -> KvIndex:
    """Creates the index, not yet started. ConfigError for invalid addresses."""
    at, model, source = settings.kvindex, settings.model, settings.tokenizer

    renderer = TemplateProcess()  # one for the tokenizers of all models

    def load(name: str) -> Tokenizer:
        token, folder = source.hf_token, source.tokenizers_cache_dir
        at = TokenizerSettings(tokenizer=name, hf_token=token, tokenizers_cache_dir=folder)
        return load_tokenizer(name, at, renderer=renderer)

    adapters = [adapter.name for adapter in adapters_of(settings.lora, model)]
    sources, folder, hub = tokenizer_sources(at.kv_index_tokenizers)
    library = TokenizerLibrary(
        load,
        ready=dict.fromkeys((model.model, *model.served_names, *adapters), tokenizer),
        sources=sources,
        folder=Path(folder).expanduser() if folder else None,
        hub=hub,
        timeout_s=TOKENIZER_TIMEOUT_S,
    )
    alone = at.role == "indexer" and not at.kv_index_pods
    subscriber = SubscriberSettings(
        bind=at.kv_index_bind or (DEFAULT_BIND if alone else None),
        topic=at.kv_index_topic,
        model=model.model,
        replay_port=at.kv_index_replay_port,
    )
    weights = tier_weights(at.kv_index_tier_weights)
    caches = {"index tokenizers": library}
    try:
        index = Index(open_backend(at), at.kv_index_block_size, at.kv_index_hash_seed, weights)
        tokenization = Tokenization(library.get, index.metrics, TOKENIZER_TIMEOUT_S)
        return KvIndex(
            index, tokenization, subscriber, at.kv_index_pods, PoolSettings(), caches=caches
        )
    except ValueError as error:
        raise ConfigError(f"setting kv-index-pods or kv-index-redis-url: {error}") from None


def fed(index: KvIndex, model: str) -> Callable[[str, int, EventBatch | bytes], None]:
    """Returns a listener that passes batches, also encoded ones, to the index without a socket."""
    encode = encoder("map")

    def feed(topic: str, sequence: int, batch: EventBatch | bytes) -> None:
        named = parse_topic(topic.encode())
        pod = topic if named is None else named.pod
        data = batch if isinstance(batch, bytes) else encode(batch)
        index.receive(PublishedMessage(pod, model, sequence, data))

    return feed
