"""The index as a service: builds its parts from the settings, runs greenlets, reports figures."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec

import gevent
import zmq
from gevent.pool import Group

from app.core.base import Bounded
from app.core.base.background import BackgroundLoops
from app.core.base.clock.pause import PAUSE_S
from app.core.base.late_imports import import_modules
from app.core.built_in import read_tokenizer
from app.core.engine.kvcache.events import EventBatch, encoder
from app.core.engine.kvcache.sockets import IO_THREADS, end_context
from app.core.engine.lora import adapters_of
from app.core.text.base import Tokenizer
from app.core.text.huggingface import load_tokenizer
from app.core.text.template_process import TemplateProcess
from app.extensions.kv_index.backend import Backend, BackendUnavailableError
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend, weigh_bytes
from app.extensions.kv_index.memory_limits import IndexLimits
from app.extensions.kv_index.messages import PublishedMessage, parse_topic
from app.extensions.kv_index.pods import TargetSource, target_sources
from app.extensions.kv_index.pool import Pool
from app.extensions.kv_index.resources import PoolSettings
from app.extensions.kv_index.settings import KVIndexSettings, tier_weights, tokenizer_sources
from app.extensions.kv_index.speculation import SPECULATIVE, Speculation
from app.extensions.kv_index.subscriber import REFRESH_S, Context, Subscriber, SubscriberSettings
from app.extensions.kv_index.tokenization import Tokenization
from app.extensions.kv_index.tokenizers import TokenizerLibrary, TokenizerSources
from config import ConfigError, Settings
from config.sections.model import TokenizerSettings

P = ParamSpec("P")

log = logging.getLogger(__name__)

MAX_SOCKETS = 1 << 16
MAX_WAIT_S = 0.25
"""Maximum wait of the subscriber, in seconds: targets and pods change without messages."""
JOIN_S = 5.0
"""Maximum wait for the greenlets to end, in seconds."""
RETRY_S = 1.0
"""Seconds between two attempts to bind an address in use."""
TOKENIZER_TIMEOUT_S = 10.0
"""Maximum wait of a request for its tokenizer to load, and for its prompt's tokens, in seconds."""


class KvIndex:
    """An index with its subscriber. `start` opens sockets and spawns greenlets.

    `targets` lists publishers to connect to, in the form of `target_sources`. `caches` are further
    caches to report, by name, such as the tokenizers'.
    """

    def __init__(
        self,
        index: Index,
        tokenization: Tokenization,
        subscriber: SubscriberSettings,
        *,
        targets: Sequence[str] = (),
        caches: Mapping[str, Bounded] = MappingProxyType({}),
        loops: BackgroundLoops | None = None,
    ) -> None:
        """Raises ValueError for invalid targets."""
        self.index = index
        self.tokenization = tokenization
        self._further_caches = caches
        self._sources = target_sources(targets)
        self._pool = Pool(index, subscriber.pool)
        self._subscriber = Subscriber(self._pool, subscriber, self._sources)
        self._loops = loops or BackgroundLoops()
        self._greenlets = Group()

    @property
    def address(self) -> str | None:
        """Address that pods connect to, with the port in use."""
        return self._subscriber.address

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches and queues in this process, by name; data in Redis is not among them."""
        caches = {
            **self._further_caches,
            "prompt tokens": self.tokenization.prompts,
            **self.index.caches,
        }
        if isinstance(self.index.backend, MemoryBackend):
            caches["index blocks"] = self.index.backend
        return caches | {"index messages": self._pool}

    def open(self) -> None:
        """Opens sockets and spawns greenlets.

        Raises:
            ZMQError: the address is invalid or in use.
        """
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        context.set(zmq.IO_THREADS, IO_THREADS)
        try:
            self._subscriber.open(context)
        except zmq.ZMQError:
            context.destroy(linger=0)
            raise
        self._pool.resources.context = context
        for source in self._sources:
            self._run("KV event sources", self._refresh, source)
        for shard in self._pool.shards:
            self._run("KV index", self._pool.run, shard)
        self._run("KV event subscriber", self._subscribe)

    def start(self, retry_s: float = RETRY_S) -> None:
        """Calls `open` until the address is free.

        During a reload, the previous worker still has it.
        """
        self._greenlets.spawn(self._open_when_free, retry_s)

    def close(self) -> None:
        """Closes the sockets and stops the greenlets. Data in a shared backend stays."""
        self._greenlets.kill(timeout=JOIN_S)
        self._subscriber.close()
        self._pool.close()
        if self._pool.resources.context is not None:
            end_context(self._pool.resources.context)
        self.index.backend.close()

    def receive(self, message: PublishedMessage) -> None:
        """Queues a message that did not come over a socket; drops it if a queue is full."""
        if not self._pool.full:
            self._pool.put(message)

    def stats(self) -> dict[str, object]:
        """Returns figures of the index, as in `GET /kv/index`.

        Size and pods are None while the backend is unavailable.
        """
        metrics = self.index.metrics
        size = None
        pods = None
        with suppress(BackendUnavailableError):
            size = self.index.backend.size()
            pods = sorted(self.index.backend.pods())
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
        """Returns the `kvcache_` families in the Prometheus text format."""
        backend = self.index.backend
        gauges = {"events_queue_depth": float(len(self._pool))}
        with suppress(BackendUnavailableError):
            size = backend.size()
            pods = backend.pods()
            gauges["index_blocks"] = size.blocks
            gauges["index_copies"] = size.copies
            gauges["events_pods"] = len(pods)
        return self.index.metrics.render(gauges, backend.loss_count)

    def _run(self, name: str, loop: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        self._greenlets.add(self._loops.spawn(name, loop, *args, **kwargs))

    def _open_when_free(self, retry_s: float) -> None:
        is_logged = False
        while True:
            try:
                return self.open()
            except zmq.ZMQError as error:
                if not is_logged:
                    log.warning("KV index: cannot listen yet; retrying: %s", error)
                is_logged = True
                gevent.sleep(retry_s)

    def _refresh(self, source: TargetSource) -> None:
        """Refreshes the endpoints of a source; each has a greenlet, as some sources are slow."""
        while True:
            source.refresh()
            gevent.sleep(REFRESH_S)

    def _subscribe(self) -> None:
        while True:
            if self._subscriber.step(time.monotonic()):
                gevent.sleep(PAUSE_S)
            else:
                self._subscriber.wait(MAX_WAIT_S)


class BatchListener:
    """Passes batches of this server, also encoded ones, to the index without a socket."""

    def __init__(self, index: KvIndex, model: str) -> None:
        self._index = index
        self._model = model
        self._encode = encoder("map")

    def __call__(self, topic: str, sequence: int, batch: EventBatch | bytes) -> None:
        """Queues a batch."""
        parsed_topic = parse_topic(topic.encode())
        pod = topic if parsed_topic is None else parsed_topic.pod
        payload = batch if isinstance(batch, bytes) else self._encode(batch)
        self._index.receive(PublishedMessage(pod, self._model, sequence, payload))


def open_backend(settings: KVIndexSettings, limits: IndexLimits) -> Backend:
    """Creates the backend of the settings.

    Raises:
        ValueError: the URL is invalid.
    """
    if settings.kv_index_backend == "memory":
        return MemoryBackend(
            settings.kv_index_size or limits.copies, repeats_bytes=limits.repeats_bytes
        )
    if settings.kv_index_backend == "cost-aware":
        size_bytes = limits.blocks_bytes
        if settings.kv_index_size is not None:
            size_bytes = settings.kv_index_size << 20
        return MemoryBackend(size_bytes, weigh_bytes, repeats_bytes=limits.repeats_bytes)
    from app.extensions.kv_index.redis_backend import RedisBackend  # its client is slow to import

    return RedisBackend(settings.kv_index_redis_url, math.ceil(settings.kv_index_ttl))


def build_index(settings: Settings, tokenizer: Tokenizer, loops: BackgroundLoops) -> KvIndex:
    """Creates the index, not yet started.

    Raises:
        ConfigError: an address is invalid.
    """
    index_settings = settings.section(KVIndexSettings)
    limits = IndexLimits.of(settings.server, is_indexer=index_settings.role == "indexer")
    library = _tokenizer_library(settings, tokenizer, limits.tokenizers_bytes)
    subscriber = SubscriberSettings(
        bind=index_settings.bind_address or None,
        topic=index_settings.kv_index_topic,
        model=settings.model.model,
        replay_port=index_settings.kv_index_replay_port,
        hwm=limits.socket_messages,
        max_bytes=limits.message_bytes,
        max_resident_bytes=limits.resident_bytes,
        pool=PoolSettings(
            max_bytes=limits.queue_bytes, max_total_waiting_bytes=limits.waiting_bytes
        ),
    )
    weights = tier_weights(index_settings.kv_index_tier_weights)
    try:
        index = Index(
            open_backend(index_settings, limits),
            block_size=index_settings.kv_index_block_size,
            seed=index_settings.kv_index_hash_seed,
            weights=weights,
            speculation=Speculation(
                index_settings.kv_index_routed_lifetime,
                weights.get(SPECULATIVE, 1.0),
                limit_bytes=limits.prompts_bytes,
            ),
            tails_bytes=limits.prompts_bytes,
        )
        return KvIndex(
            index,
            Tokenization(library.get, index.metrics, TOKENIZER_TIMEOUT_S),
            subscriber,
            targets=index_settings.kv_index_pods,
            caches={"index tokenizers": library},
            loops=loops,
        )
    except ValueError as error:
        raise ConfigError(f"setting kv-index-pods or kv-index-redis-url: {error}") from None


def _tokenizer_library(
    settings: Settings, tokenizer: Tokenizer, limit_bytes: int
) -> TokenizerLibrary:
    """Creates the tokenizers of all models; `tokenizer` serves this server's models."""
    import_modules("app.core.text.vocabulary")  # native threads load tokenizers
    model = settings.model
    renderer = TemplateProcess()  # one for the tokenizers of all models

    def load(source: str) -> Tokenizer:
        tokenizer_settings = TokenizerSettings(
            tokenizer=source,
            hf_token=settings.tokenizer.hf_token,
            tokenizers_cache_dir=settings.tokenizer.tokenizers_cache_dir,
        )
        return load_tokenizer(
            source, tokenizer_settings, renderer=renderer, read_file=read_tokenizer
        )

    adapters = [adapter.name for adapter in adapters_of(settings.lora, model)]
    by_model, folder, hub = tokenizer_sources(settings.section(KVIndexSettings).kv_index_tokenizers)
    sources = TokenizerSources(
        ready=dict.fromkeys((model.model, *model.served_names, *adapters), tokenizer),
        by_model=by_model,
        folder=Path(folder).expanduser() if folder else None,
        hub=hub,
    )
    return TokenizerLibrary(load, sources, timeout_s=TOKENIZER_TIMEOUT_S, limit_bytes=limit_bytes)
