"""The rooms that need more than one line to build."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.body import BodyLimits
from app.api.delivery import Delivery, ServerLoad
from app.api.door import Door
from app.api.faults import Faults
from app.api.identity import Identity, pod_headers
from app.api.models import ServedModels
from app.api.outbox import Outbox
from app.api.translation import Translation
from app.ground import Ground, cache_config
from app.kvcache.cache import KVCache
from app.kvcache.endpoints import of_rank
from app.kvcache.events import KVEvent
from app.kvcache.hashing import BlockHasher
from app.kvcache.publisher import Publisher, PublisherSettings
from app.kvcache.residency import Residency
from app.metrics.fake import FakeFamilies
from app.protocol.model_limits import ModelLimits
from app.serving.residents import Residents
from app.serving.service import Service
from app.simulation.author import Author
from app.simulation.latency import Latency
from app.simulation.pacer import Pacer
from app.simulation.performer import Simulation
from app.simulation.prefix_cache import PrefixCache
from app.simulation.text import Phrasebook, sample_sentences
from config import ConfigError, Settings

LOOPBACK = "127.0.0.1"
"""What a server is called that does not know its own address."""
SAMPLE = 0.01
"""Share of the blocks whose lives are measured, as in vLLM."""
UNKNOWN_VOCABULARY = 2**31
"""Size assumed when a remote tokenizer does not tell its own."""


def service_of(ground: Ground, cache: PrefixCache | None) -> Service:
    """The simulation behind its places."""
    settings, streams, limits = ground.settings, ground.streams, ground.settings.scheduling
    latency = Latency(settings.latency, limits.max_num_seqs, lambda: service.running, streams("latency"))
    ground.live.subscribe(lambda now: latency.change(now.latency))
    author = author_of(ground)
    pacer = Pacer(ground.clock)
    service = Service(
        Simulation(author, ground.tokenizer, latency, pacer, ground.clock, cache),
        ground.recorder,
        ground.clock,
        limits.max_num_seqs,
        limits.max_waiting_queue_length,
        limits.max_num_queued_reqs,
        Residents(settings.lora.max_loras, ground.adapters.__contains__),
        limits.scheduling_policy == "priority",
        settings.kvcache.kv_cache_full == "refuse",
    )
    return service


def author_of(ground: Ground) -> Author:
    """Who writes the replies."""
    phrasebook = Phrasebook(ground.tokenizer, sample_sentences())
    author = Author(
        ground.settings,
        ground.tokenizer,
        phrasebook,
        ground.datasets,
        ground.schemas,
        ground.streams("text"),
        ground.streams("calls"),
    )
    ground.live.subscribe(author.change)
    return author


def door_of(ground: Ground, service: Service, identity: Identity, load: ServerLoad, faults: Faults) -> Door:
    """What the generating API families share."""
    settings, model, api = ground.settings, ground.settings.model, ground.settings.api
    server, tokenizer = ground.server, ground.tokenizer
    translation = Translation(settings, ground.adapters, ground.schemas, ground.streams("images"))
    ground.live.subscribe(translation.change)
    return Door(
        body=BodyLimits.of(server),
        models=ServedModels(model.served_names, model.model, model.max_model_len, ground.adapters),
        tokenizer=tokenizer,
        identity=identity,
        delivery=Delivery(service, load, pod_headers(server), Outbox(), server.write_timeout),
        translation=translation,
        faults=faults,
        limits=ModelLimits(
            max_model_len=model.max_model_len,
            vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
            max_logprobs=api.max_logprobs,
            reasons=bool(settings.reply.reasoning_parser),
        ),
        force_usage=api.enable_force_include_usage,
        prompt_details=api.enable_prompt_tokens_details,
        rank=ground.rank,
        encoder_only=model.mm_encoder_only,
        omni=model.omni,
        keeps_turns=bool(ground.datasets),
    )


def fakes_of(ground: Ground) -> FakeFamilies:
    """The metrics that are told instead of the true ones, if any are."""
    model, lora = ground.settings.model, ground.settings.lora
    fakes = FakeFamilies(
        model.served_names[0],
        model.max_model_len,
        cache_config(ground.settings.kvcache),
        lora.max_loras,
        str(ground.rank),
        clock=ground.clock.now,
    )
    ground.live.subscribe(fakes.follow)
    return fakes


def publishing(ground: Ground) -> PublisherSettings:
    """How KV events are published, if they are. ConfigError for an endpoint that is none."""
    at, server = ground.settings.kvcache, ground.server
    try:
        for endpoint in filter(None, (at.zmq_endpoint, at.kv_events_replay_endpoint)):
            of_rank(endpoint, ground.rank)
    except ValueError as error:
        raise ConfigError(f"setting zmq-endpoint or kv-events-replay-endpoint: {error}") from None
    topic = f"kv@{server.pod_ip or LOOPBACK}:{server.port}@{ground.settings.model.model}"
    return PublisherSettings(
        endpoint=at.zmq_endpoint or None,
        topic=at.kv_events_topic or topic,
        rank=ground.rank,
        replay_endpoint=at.kv_events_replay_endpoint or None,
        replay_batches=at.kv_events_replay_queue_size,
        replay_layout=at.kv_events_replay_layout,
        layout=at.kv_events_format,
        batch_events=at.event_batch_size,
        flush_s=at.event_flush_interval,
    )


def has_cache(settings: Settings) -> bool:
    """Whether a KV cache is played: an encoder writes nothing that it could keep."""
    return settings.kvcache.enable_kvcache and not settings.model.mm_encoder_only


def publisher_of(ground: Ground, told: PublisherSettings) -> Publisher | None:
    """Who publishes the events of the cache; None without one, and where nobody could hear of them."""
    settings = ground.settings
    heard = told.endpoint or told.replay_endpoint or settings.kvindex.kv_index
    return Publisher(told) if heard and has_cache(settings) else None


def cache_of(ground: Ground, publisher: Publisher | None) -> PrefixCache | None:
    """The KV cache of this rank; None without one."""
    if not has_cache(ground.settings):
        return None
    at = ground.settings.kvcache
    hasher = BlockHasher(at.prefix_caching_hash_algo, at.block_size, at.hash_seed, ground.streams("hashes"))
    observer = None
    if at.kv_cache_metrics:
        observer = Residency(ground.recorder, SAMPLE, ground.streams("residency"), ground.clock.now)
    cache = KVCache(at.kv_cache_size, hasher, events=publisher is not None, observer=observer)
    if at.evict_unloaded_adapters_first:
        ground.adapters.watch(cache.load_adapter, cache.unload_adapter)
    publish = _nobody if publisher is None else publisher.put
    return PrefixCache(cache, ground.recorder, ground.adapters.path, publish)


def _nobody(events: Sequence[KVEvent]) -> None:
    """Hears of events where none are made."""
