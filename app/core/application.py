"""Builds the application: settings, the parts of the core, then the extensions.

Start reading at `create_app`. `ServerParts` lists the parts in the order of their building,
and `app.core.extensions` has the hooks that are called on the way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from app.base import Bounded
from app.base.clock.clock import LiveClock
from app.base.clock.random_streams import Streams
from app.base.metrics.instruments import Exposition, Families
from app.core.assembly.derived import publishing
from app.core.assembly.engine import add_cache, add_engine, build_constraints, build_recorder
from app.core.assembly.middleware import build_middleware
from app.core.assembly.pipeline import build_pipeline
from app.core.assembly.routes import add_model_routes, add_operator_routes
from app.core.built_in import enabled_extensions
from app.core.extensions import Extension, ServerParts
from app.engine.core.lifecycle import WeightUpdates
from app.engine.lora import AdapterMemory, LoraResidency, adapters_of, rank_of
from app.serving.api.admin.server import PeerRanks, readiness
from app.serving.api.responder import ServerLoad
from app.serving.flask.application import Understudy
from app.serving.gunicorn import ranks
from app.serving.http.context import BodyLimits
from app.serving.http.route import Route
from app.serving.middleware.api_keys import ApiKeys
from app.serving.middleware.http_metrics import HttpMetrics
from app.serving.middleware.rate_limits import RateLimits
from app.text.base import Tokenizer, TokenizerError
from app.text.huggingface import load_tokenizer
from config import ConfigError, Settings
from config.loader import check_extras, load
from config.validation import LiveSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gunicorn.glogging import Logger

    from app.engine.core.wire import EngineProcessOptions
    from app.serving.gunicorn.arbiter import EngineProcess

NO_ENGINE = "setting engine: needs the extension llm, which this server lacks"


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application from `settings`, or from the environment and its YAML file.

    Starts nothing that a fork would lose. An invalid setting ends the process with one line and
    exit status 1.
    """
    try:
        settings = settings or ranks.exported_settings(os.environ) or load((), os.environ)
        check_extras(settings)
        tokenizer = tokenizer_of(settings)
        extensions = enabled_extensions(settings)
        for extension in extensions:
            other_application = extension.application(settings, tokenizer)
            if other_application is not None:
                return other_application
        return build(settings, tokenizer, extensions, ranks.rank_of(settings.server, os.environ))
    except (ConfigError, TokenizerError) as error:
        sys.exit(f"error: {error}")


def prepare(settings: Settings) -> None:
    """Downloads and checks the files of the settings, before workers start.

    Raises:
        TokenizerError: a tokenizer that the settings name cannot be used.
        ConfigError: another file cannot be used, or packages are missing.
    """
    check_extras(settings)
    named = settings.tokenizer
    if named.tokenizer or named.render_url or named.chat_template or settings.engine.is_real:
        tokenizer_of(settings).encode("Ready?")
    adapters_of(settings.lora, settings.model)
    for extension in enabled_extensions(settings):
        extension.prepare(settings)


def engine_options(settings: Settings) -> EngineProcessOptions:
    """Returns the options of a real engine's process.

    Raises:
        ConfigError: it cannot run here.
    """
    kv_events = publishing(settings, settings.server, 0)
    for extension in enabled_extensions(settings):
        options = extension.engine_process(settings, kv_events)
        if options is not None:
            return options
    raise ConfigError(NO_ENGINE)


def new_engine_process(settings: Settings, log: Logger) -> EngineProcess:
    """Returns the process of a real engine, which is not started yet. Raises ConfigError."""
    options = engine_options(settings)
    for extension in enabled_extensions(settings):
        process = extension.new_engine_process(options, log, settings.engine.engine_timeout)
        if process is not None:
            return process
    raise ConfigError(NO_ENGINE)


def tokenizer_of(settings: Settings) -> Tokenizer:
    """Loads the tokenizer of the settings.

    Raises:
        TokenizerError: the tokenizer that the settings name cannot be loaded.
    """
    if settings.tokenizer.tokenizer is None:
        for extension in enabled_extensions(settings):
            tokenizer = extension.tokenizer(settings)
            if tokenizer is not None:
                return tokenizer
    takes_media = settings.model.multimodal and not settings.engine.is_real
    return load_tokenizer(settings.model.model, settings.tokenizer, takes_media)


def build(
    settings: Settings, tokenizer: Tokenizer, extensions: Iterable[type[Extension]], rank: int
) -> Understudy:
    """Builds the application of a rank, with its routes. Raises the ConfigErrors of all parts."""
    server = ranks.settings_of_rank(settings.server, rank)
    clock = LiveClock()
    parts = ServerParts(
        settings=settings,
        live=LiveSettings(settings),
        clock=clock,
        streams=Streams(settings.reply.seed, rank),
    )
    parts.server = server
    parts.rank = rank
    parts.tokenizer = tokenizer
    parts.body = BodyLimits.from_settings(server)
    parts.recorder = build_recorder(settings, rank)
    parts.adapters = adapters_of(settings.lora, settings.model)
    parts.kv_events = publishing(settings, server, rank)
    parts.keys = ApiKeys()
    parts.extensions = []
    for extension in extensions:
        parts.extensions.append(extension(parts))
    parts.constraints = build_constraints(parts)
    lora = settings.lora
    adapter_memory = AdapterMemory(
        parts.adapters, lora.max_loras, lora.max_cpu_loras or lora.max_loras
    )
    add_cache(parts)
    add_engine(parts, adapter_memory)
    load = ServerLoad(settings.api.enable_server_load_tracking)
    parts.pipeline = build_pipeline(parts, load)
    can_transfer = settings.server.weight_transfer and not settings.engine.is_real
    parts.weights = WeightUpdates(
        settings.model.model, settings.model.tensor_parallel_size, can_transfer
    )
    other_ranks = [(k, url) for k, url in ranks.rank_urls(settings) if k != rank]
    parts.peers = PeerRanks(rank, other_ranks)
    parts.is_ready = readiness(parts.engine, clock, settings.server.startup_duration)

    http_metrics = HttpMetrics(clock.now)
    limits = RateLimits(clock)
    middleware = build_middleware(parts, http_metrics, limits)
    app = Understudy(
        parts.engine, middleware, parts.streams("request ids"), server.root_path.rstrip("/")
    )

    def all_routes() -> Iterator[Route]:
        return app.routes

    parts.routes = all_routes
    add_model_routes(app, parts)
    exposition = Exposition(
        [*_families(parts, adapter_memory), http_metrics.text], http_metrics.process_text
    )
    add_operator_routes(app, parts, load, exposition)
    if parts.publisher is not None:
        app.services.append(parts.publisher)
    _add_extensions(app, parts)
    _add_caches(app, parts, limits)
    return app


def _add_extensions(app: Understudy, parts: ServerParts) -> None:
    for extension in parts.extensions:
        for blueprint, routes in extension.routes().items():
            app.add_routes(blueprint, routes)
        app.services += extension.services()
        app.caches.append(extension.caches)
        app.rpc = extension.rpc() or app.rpc
    app.until_drained += parts.until_drained


def _add_caches(app: Understudy, parts: ServerParts, limits: RateLimits) -> None:
    def caches_of_core() -> Mapping[str, Bounded]:
        caches: dict[str, Bounded] = {"rate limits": limits, **parts.tokenizer.caches}
        if parts.recorder.adapter_series is not None:
            caches["adapter series"] = parts.recorder.adapter_series
        if parts.logs_delays:
            caches["delay log"] = parts.delays
        if parts.cache is not None:
            caches |= parts.cache.caches
        if parts.publisher is not None:
            caches |= parts.publisher.caches
        return {**caches, **app.middleware.caches}

    app.caches.append(caches_of_core)


def _families(parts: ServerParts, adapter_memory: AdapterMemory) -> list[Families]:
    """Returns functions that render the metric families of the engine and of extensions."""
    settings = parts.settings
    lora = settings.lora
    families: list[Families] = []
    if not settings.metrics.disable_log_stats:
        engine_families: Families = parts.recorder.render
        for extension in parts.extensions:
            engine_families = extension.engine_metrics(engine_families)
        families.append(engine_families)
    if lora.lora_residency_metrics:

        def adapter_rank(name: str) -> int:
            return rank_of(parts.adapters.adapter(name).path) or lora.max_lora_rank

        labels = {"model_name": settings.model.served_names[0], "engine": str(parts.rank)}
        families.append(LoraResidency(adapter_memory, adapter_rank, labels, time.time).render)
    for extension in parts.extensions:
        families += extension.metrics()
    return families
