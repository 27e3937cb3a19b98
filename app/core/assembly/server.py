"""Builds the application of one rank: parts, middleware, routes and extensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from app.core.api.health import readiness
from app.core.api.responder import ServerLoad
from app.core.api.weight_spans import Weights
from app.core.assembly.derived import publishing
from app.core.assembly.engine import add_cache, add_engine, build_constraints, build_recorder
from app.core.assembly.metrics import build_exposition
from app.core.assembly.middleware import build_middleware
from app.core.assembly.pipeline import build_pipeline
from app.core.assembly.routes import (
    add_model_routes,
    add_operator_routes,
    older_routes,
    reason_for_absence,
)
from app.core.base.cache_budget import CacheBudget
from app.core.base.clock.clock import LiveClock
from app.core.base.clock.random_streams import Streams
from app.core.engine.lora import AdapterMemory, adapters_of
from app.core.extensions import ServerParts
from app.core.server.flask.application import Understudy
from app.core.server.gunicorn import ranks
from app.core.server.http.body_limits import BodyLimits
from app.core.server.middleware.api_keys import ApiKeys, KeyRules
from app.core.server.middleware.http_metrics import HttpMetrics
from app.core.versions.chain import simulated_version
from config.validation import LiveSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.core.base import Bounded
    from app.core.extensions import Extension
    from app.core.server.http.route import Route
    from app.core.text.base import Tokenizer


def build(
    live: LiveSettings, tokenizer: Tokenizer, extensions: Iterable[type[Extension]], rank: int
) -> Understudy:
    """Builds the application of a rank, with its routes. Raises the ConfigErrors of all parts."""
    parts = _first_parts(live, tokenizer, rank)
    settings = parts.settings
    parts.extensions = []
    for extension in extensions:
        parts.extensions.append(extension(parts))
    load = ServerLoad(settings.api.enable_server_load_tracking)
    _add_engine_parts(parts, load)

    http_metrics = HttpMetrics(parts.clock.now)
    middleware = build_middleware(parts, http_metrics)
    root_path = parts.server.root_path.rstrip("/")
    app = Understudy(parts.engine, middleware, parts.streams("request ids"), root_path)

    def all_routes() -> Iterator[Route]:
        return app.routes

    parts.routes = all_routes
    middleware.memory = parts.body.memory
    app.reason_for_absence = partial(reason_for_absence, settings)
    add_model_routes(app, parts)
    exposition = build_exposition(parts, http_metrics)
    add_operator_routes(app, parts, load, exposition)
    if parts.publisher is not None:
        app.services.append(parts.publisher)
    _add_extensions(app, parts)
    _add_caches(app, parts)
    return app


def _first_parts(live: LiveSettings, tokenizer: Tokenizer, rank: int) -> ServerParts:
    """Returns the parts that exist before any extension is made."""
    settings = live.current
    parts = ServerParts(live, LiveClock(), Streams(settings.reply.seed, rank))
    parts.server = ranks.settings_of_rank(settings.server, rank)
    parts.rank = rank
    parts.tokenizer = tokenizer
    parts.body = BodyLimits.from_settings(parts.server)
    parts.recorder = build_recorder(parts)
    lora = settings.lora
    parts.adapters = adapters_of(lora, settings.model)
    parts.adapter_memory = AdapterMemory(
        parts.adapters, lora.max_loras, lora.max_cpu_loras or lora.max_loras
    )
    parts.kv_events = publishing(
        settings.kvcache, parts.server, settings.api, model=settings.model.model, rank=rank
    )
    parts.weights = Weights()
    parts.keys = ApiKeys()
    parts.keys.rules = simulated_version(live.current.api).rules(KeyRules)
    return parts


def _add_engine_parts(parts: ServerParts, load: ServerLoad) -> None:
    """Sets the engine, and the parts that need it."""
    settings = parts.settings
    parts.constraints = build_constraints(parts)
    add_cache(parts)
    add_engine(parts)
    parts.pipeline = build_pipeline(parts, load)
    parts.is_ready = readiness(
        parts.engine, parts.clock, settings.server.startup_duration, parts.loops
    )


def _add_extensions(app: Understudy, parts: ServerParts) -> None:
    for extension in parts.extensions:
        for blueprint, routes in extension.routes().items():
            app.add_routes(blueprint, older_routes(parts, routes))
        app.services += extension.services()
        app.caches.append(extension.caches)
        app.rpc = extension.rpc() or app.rpc
        for wrapper in extension.wrappers():
            app.wsgi_app = wrapper(app.wsgi_app)  # type: ignore[assignment, method-assign]
    app.until_drained += parts.until_drained


def _add_caches(app: Understudy, parts: ServerParts) -> None:
    def caches_of_core() -> Mapping[str, Bounded]:
        caches: dict[str, Bounded] = {**parts.tokenizer.caches}
        caches["tools"] = parts.pipeline.known_tools
        if parts.recorder.adapter_series is not None:
            caches["adapter series"] = parts.recorder.adapter_series
        if parts.cache is not None:
            caches |= parts.cache.caches
        if parts.publisher is not None:
            caches |= parts.publisher.caches
        return {**caches, **app.middleware.caches}

    app.caches.append(caches_of_core)
    app.services.append(CacheBudget(parts.server.cache_memory, app.caches))
