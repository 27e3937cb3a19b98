"""Builds the components of one server, and the parts that they share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.base.clock.clock import LiveClock
from app.base.clock.streams import Streams
from app.base.clock.timer_wheel import TimerWheel
from app.base.metrics.fake import FakeFamilies
from app.base.metrics.instruments import Families
from app.base.metrics.recorder import Recorder
from app.engine.core.cache_manager import KVCacheManager
from app.engine.core.client import EngineClient
from app.engine.core.engine import Engine
from app.engine.core.request import Model
from app.engine.dataset import open_datasets
from app.engine.forms.schema import Schemas
from app.engine.kvcache.block_pool import Residency
from app.engine.kvcache.cache import store_of
from app.engine.kvcache.endpoints import PublisherSettings, of_rank
from app.engine.kvcache.hashing import BlockHasher
from app.engine.kvcache.memo import Bounded
from app.engine.lora import AdapterMemory, LoraResidency, LoRASlots, adapters_of, rank_of
from app.engine.simulated.corpus import Corpus, sample_sentences
from app.engine.simulated.model import NullModel, SimulatedModel
from app.serving.api.admin.reports import Caches
from app.serving.api.identity import Identity, pod_headers
from app.serving.api.models import ServedModels
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.api.responder import Responder, ServerLoad
from app.serving.api.sampling import RealModel
from app.serving.faults.injector import FaultInjector
from app.serving.gunicorn import ranks
from app.serving.http.body import BodyLimits
from app.serving.protocol.validation import ModelLimits
from app.text import Tokenizer
from config import ConfigError, Settings
from config.live import LiveSettings
from config.settings import DatasetSettings, KVCacheSettings, ReplaySettings, ServerSettings

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher
    from app.plugins.registry import PluginRegistry
    from app.serving.recording.replay import Replay
    from app.serving.scripts.script_set import ScriptSet


LOOPBACK = "127.0.0.1"
"""Name of a server that does not know its own address."""
UNKNOWN_VOCABULARY = 2**31
"""Assumed vocabulary size of a remote tokenizer that does not return one."""


class Components:
    """Settings, clock, randomness, tokenizer, metrics and adapters of one rank, shared by its components."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer, rank: int) -> None:
        """Raises ConfigError for adapters that cannot be served."""
        lora = settings.lora
        self.live, self.clock, self.schemas = LiveSettings(settings), LiveClock(), Schemas()
        self.tokenizer, self.rank = tokenizer, rank
        self.server = ranks.served_by(settings.server, rank)
        """Server settings of this rank, with its own port."""
        self.streams = Streams(settings.reply.seed, rank)
        self.adapters = adapters_of(lora, settings.model)
        self.adapter_memory = AdapterMemory(
            self.adapters, lora.max_loras, lora.max_cpu_loras or lora.max_loras
        )
        self.datasets = open_datasets(dataset_settings(settings), tokenizer)
        self.recorder = _recorder(settings, rank)

    @property
    def settings(self) -> Settings:
        return self.live.current


def cache_config(kvcache: KVCacheSettings) -> dict[str, str]:
    return {
        "block_size": str(kvcache.block_size),
        "num_gpu_blocks": str(kvcache.kv_cache_size),
        "enable_prefix_caching": str(kvcache.enable_kvcache),
        "prefix_caching_hash_algo": kvcache.prefix_caching_hash_algo,
    }


def dataset_settings(settings: Settings) -> DatasetSettings:
    """Returns the dataset settings; empty for an encoder, which generates no text."""
    return DatasetSettings() if settings.model.mm_encoder_only else settings.dataset


def _recorder(settings: Settings, rank: int) -> Recorder:
    lora, model, latency, kvcache = settings.lora, settings.model, settings.latency, settings.kvcache
    told = lora.enable_lora or lora.lora_modules or lora.allow_runtime_lora_updating
    fetching = latency.kv_cache_transfer_latency or latency.kv_cache_transfer_time_per_token
    return Recorder(
        model.served_names[0],
        model.max_model_len,
        cache_config(kvcache),
        str(rank),
        max_loras=lora.max_loras if told else None,
        block_times=kvcache.kv_cache_metrics,
        older_names=settings.metrics.simulator_metrics,
        transfers=bool(fetching or kvcache.kv_connector == "nixl"),
        steps=settings.steps.shared or settings.engine.is_real,
    )


def plugins_of(components: Components) -> PluginRegistry | None:
    """Loads the plugins of this process; None without any. ConfigError for a plugin with wrong hooks."""
    plugins = components.settings.PLUGINS
    if not plugins:
        return None
    from app.plugins.registry import PluginRegistry  # imports pluggy

    return PluginRegistry(plugins, lambda: components.settings, components.streams, components.clock.now)


def engine_of(components: Components, cache: KVCacheManager | None, plugins: PluginRegistry | None) -> Engine:
    """Builds the simulated engine and its model; steps are shared where the settings have a profile."""
    settings, profile = components.settings, None
    if settings.steps.shared:
        from config.datasheet import chosen_profile  # imports YAML

        profile = chosen_profile(settings)
    cost = None if plugins is None or profile is None else plugins.step_cost(profile)
    engine = Engine(
        settings,
        _model_of(components, plugins),
        components.recorder,
        components.clock,
        components.streams,
        LoRASlots(settings.lora.max_loras, components.adapters.__contains__, components.adapter_memory),
        cache,
        profile,
        cost and cost[1],
    )
    components.live.subscribe(engine.on_settings)
    return engine


def _model_of(components: Components, plugins: PluginRegistry | None) -> Model:
    if components.settings.model.task != "generate":
        return NullModel()
    model = SimulatedModel(
        components.settings,
        components.tokenizer,
        Corpus(components.tokenizer, sample_sentences()),
        components.datasets,
        components.schemas,
        components.streams("text"),
        components.streams("calls"),
    )
    if plugins is not None:
        model.ask_first(plugins.replies(model.scripted_reply), plugins.length())
    components.live.subscribe(model.on_settings)
    return model


def scripts_of(components: Components) -> ScriptSet | None:
    """Opens the scripts; None without any. ConfigError for an invalid script."""
    settings = components.settings
    if not settings.scripts.script or settings.model.mm_encoder_only:
        return None
    from app.serving.scripts.script_set import open_scripts  # imports YAML and Jinja

    rng = components.streams("scripts")
    return open_scripts(settings.scripts, components.schemas, rng, components.clock.now)


def build_pipeline(
    components: Components,
    engine: EngineClient,
    identity: Identity,
    load: ServerLoad,
    faults: FaultInjector,
    scripts: ScriptSet | None,
    real: RealModel | None,
    asks_plugins: bool,
) -> RequestPipeline:
    """Builds the pipeline of all generating API families; `real` describes a real engine's model."""
    resolver = None
    if scripts is not None:
        from app.serving.api.script import ScriptResolver

        resolver = ScriptResolver(scripts, components.tokenizer, faults)
    settings, model, api = components.settings, components.settings.model, components.settings.api
    server, tokenizer = components.server, components.tokenizer
    reasons = bool(settings.reply.reasoning_parser)
    limits = ModelLimits(
        max_model_len=model.max_model_len,
        vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
        max_logprobs=api.max_logprobs,
        reasons=reasons,
        parses=reasons or bool(settings.tools.tool_call_parser and settings.tools.enable_auto_tool_choice),
        max_new_tokens=None if real is None else real.defaults.max_new_tokens,
    )
    pipeline = RequestPipeline(
        settings=settings,
        body=BodyLimits.of(server),
        models=ServedModels(model.served_names, model.model, model.max_model_len, components.adapters),
        tokenizer=tokenizer,
        identity=identity,
        responder=Responder(engine, load, pod_headers(server), max(0.0, api.sse_keep_alive_interval)),
        faults=faults,
        limits=limits,
        schemas=components.schemas,
        images=components.streams("images"),
        chat_rules=ChatRules.of(api),
        rank=components.rank,
        real=real,
        keeps_turns=bool(components.datasets) or asks_plugins,
        scripts=resolver,
        asks_plugins=asks_plugins,
    )
    components.live.subscribe(pipeline.on_settings)
    return pipeline


def check_replay(settings: ReplaySettings) -> None:
    """Raises ConfigError for a recording that cannot be read."""
    if not settings.replay:
        return
    from app.serving.recording.exchange import Recording, RecordingError

    try:
        Recording(settings.replay).close()
    except RecordingError as error:
        raise ConfigError(f"setting replay: {error}") from None


def replay_of(components: Components, faults: FaultInjector) -> Replay | None:
    """Builds the replay of a recording; None without one. ConfigError for a file that cannot be read."""
    settings = components.settings.replay
    if not settings.replay:
        return None
    from app.serving.recording.exchange import Recording
    from app.serving.recording.replay import Replay

    recording = Recording(settings.replay, settings.replay_match == "nearest")
    clock = LiveClock()  # a clock has one alarm; the engine uses the components' clock
    replay = Replay(recording, BodyLimits.of(components.server), faults, TimerWheel(clock), clock.now)
    components.live.subscribe(replay.on_settings)
    return replay


def families_of(components: Components) -> list[Families]:
    """Returns the engine's families, which fake metrics may replace, and the adapters' families."""
    settings, recorder, families = components.settings, components.recorder, list[Families]()
    model, lora, rank = settings.model, settings.lora, str(components.rank)
    if not settings.metrics.disable_log_stats:
        config, now = cache_config(settings.kvcache), components.clock.now
        fakes = FakeFamilies(
            model.served_names[0], model.max_model_len, config, lora.max_loras, rank, clock=now
        )
        components.live.subscribe(fakes.on_settings)
        families.append(lambda: (fakes if fakes.active else recorder).render())
    if lora.lora_residency_metrics:
        adapter, server = components.adapters.adapter, {"model_name": model.served_names[0], "engine": rank}
        residency = LoraResidency(
            components.adapter_memory,
            lambda name: rank_of(adapter(name).path) or lora.max_lora_rank,
            server,
            time.time,
        )
        families.append(residency.render)
    return families


def publishing(settings: Settings, server: ServerSettings, rank: int) -> PublisherSettings:
    """Returns the settings of `rank` for publishing KV events. ConfigError for an invalid endpoint."""
    at = settings.kvcache
    try:
        for endpoint in filter(None, (at.zmq_endpoint, at.kv_events_replay_endpoint)):
            of_rank(endpoint, rank)
    except ValueError as error:
        raise ConfigError(f"setting zmq-endpoint or kv-events-replay-endpoint: {error}") from None
    topic = at.kv_events_topic.replace("{address}", server.pod_ip or LOOPBACK)
    return PublisherSettings(
        endpoint=at.zmq_endpoint or None,
        topic=topic.replace("{port}", str(server.port)).replace("{model}", settings.model.model),
        rank=rank,
        replay_endpoint=at.kv_events_replay_endpoint or None,
        replay_batches=at.kv_events_replay_queue_size,
        layout=at.events_layout,
        batch_events=at.event_batch_size,
        flush_s=at.event_flush_interval,
    )


def cache_of(
    components: Components, told: PublisherSettings
) -> tuple[KVCacheManager, Publisher | None] | tuple[None, None]:
    """Builds the simulated KV cache of this rank, and the publisher of its events where one may receive them.

    An encoder has no cache, and a real engine has its own.
    """
    settings, at, streams = components.settings, components.settings.kvcache, components.streams
    if settings.model.mm_encoder_only or settings.engine.is_real or not at.enable_kvcache:
        return None, None
    publisher = None
    if told.endpoint or told.replay_endpoint or settings.kvindex.kv_index or settings.server.speaks_grpc:
        from app.engine.kvcache.publisher import Publisher  # imports ZMQ, which other servers do not need

        publisher = Publisher(told)
    hasher = BlockHasher(at.prefix_caching_hash_algo, at.block_size, at.hash_seed, streams("hashes"))
    observer = None
    if at.kv_cache_metrics:
        share, rng, now = at.kv_cache_metrics_sample, streams("residency"), components.clock.now
        observer = Residency(components.recorder, share, rng, now)
    cache = KVCacheManager(
        at.kv_cache_size,
        hasher,
        components.recorder,
        components.adapters.adapter,
        None if publisher is None else publisher.put,
        store_of(at.kv_connector, at.block_size),
        observer,
    )
    return cache, publisher


def caches_of(
    components: Components, cache: KVCacheManager | None, publisher: Publisher | None
) -> list[Caches]:
    """Returns the caches below the API."""
    kept: dict[str, Bounded] = {"schemas": components.schemas}
    if (series := components.recorder.adapter_series) is not None:
        kept["adapter series"] = series
    rooms: list[Caches] = [lambda: kept, lambda: components.tokenizer.caches]
    rooms += [] if cache is None else [lambda: cache.caches]
    rooms += [] if publisher is None else [lambda: publisher.caches]
    return rooms
