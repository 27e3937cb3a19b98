"""Builds the application of one rank: parts, middleware, routes and extensions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from app.core.api.admin import PeerRanks, readiness
from app.core.api.responder import ServerLoad
from app.core.assembly.derived import publishing
from app.core.assembly.engine import add_cache, add_engine, build_constraints, build_recorder
from app.core.assembly.middleware import build_middleware
from app.core.assembly.pipeline import build_pipeline
from app.core.assembly.routes import add_model_routes, add_operator_routes
from app.core.base import Bounded
from app.core.base.clock.clock import LiveClock
from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.instruments import Exposition, Families
from app.core.engine.lifecycle import WeightUpdates
from app.core.engine.lora import AdapterMemory, LoraResidency, adapters_of, rank_of
from app.core.extensions import Extension, ServerParts
from app.core.server.flask.application import Understudy
from app.core.server.gunicorn import ranks
from app.core.server.http.context import BodyLimits
from app.core.server.http.route import Route
from app.core.server.middleware.api_keys import ApiKeys
from app.core.server.middleware.http_metrics import HttpMetrics
from app.core.server.middleware.rate_limits import RateLimits
from app.core.text.base import Tokenizer
from config import Settings
from config.validation import LiveSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


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
