"""The application of an indexer: only the routes of the index, probes, metrics and memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.core.api import admin, health
from app.core.api.responder import ServerLoad
from app.core.base import Bounded
from app.core.base.background import BackgroundLoops
from app.core.base.cache_budget import CacheBudget
from app.core.base.clock.clock import LiveClock
from app.core.base.metrics.instruments import Exposition
from app.core.server.flask.application import Understudy
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import unavailable
from app.core.server.middleware.api_keys import ApiKeys
from app.core.server.middleware.cors import Cors
from app.core.server.middleware.foreign_pages import ForeignPages
from app.core.server.middleware.http_log import HttpLog
from app.core.server.middleware.http_metrics import HttpMetrics
from app.core.server.middleware.stack import Middleware, MiddlewareStack
from app.core.text.base import Tokenizer
from app.core.versions.chain import simulated_version
from app.extensions.kv_index.routes import routes
from app.extensions.kv_index.service import KvIndex, build_index
from config import Settings
from config.settings import AccessSettings, LogSettings
from config.validation import LiveSettings


class NoEngine(Middleware):
    """Drains an indexer without an engine: refuses new POST requests, and readiness fails."""

    draining = False
    withdrawn = False
    healthy = True
    is_generating = False

    def drain(self) -> None:
        """Refuses POST requests from now on."""
        self.draining = True

    def shut_down(self) -> None:
        """Refuses POST requests from now on."""
        self.drain()

    def fail(self) -> None:
        """Does nothing, as no request runs for long."""

    def begin(self, context: RequestContext) -> None:
        """Raises ApiError 503 for a POST request after `drain`."""
        if self.draining and context.method == "POST":
            raise unavailable("The indexer is shutting down.")


def build_indexer(settings: Settings, tokenizer: Tokenizer) -> Understudy:
    """Builds an application with an index and its scores.

    Raises:
        ConfigError: as `build_index` does.
    """
    live = LiveSettings(settings)
    engine = NoEngine()
    http_metrics = HttpMetrics()
    stack = _middleware(live, http_metrics, engine)
    app = Understudy(engine, stack)
    loops = BackgroundLoops()
    index = build_index(settings, tokenizer, loops)
    body = BodyLimits.from_settings(settings.server)
    stack.memory = body.memory
    app.services.append(index)

    def caches() -> Mapping[str, Bounded]:
        return {**index.caches, **tokenizer.caches}

    def is_healthy() -> bool:
        return True

    app.caches.append(caches)
    app.services.append(CacheBudget(settings.server.cache_memory, app.caches))
    app.add_routes("kv_index", routes(index, settings, body))
    app.rpc_handlers = partial(_rpc_handlers, index, settings)
    is_ready = health.readiness(engine, LiveClock(), settings.server.startup_duration, loops)
    app.add_routes("memory", admin.memory_routes(app.caches, stack.memory))
    release = simulated_version(settings.api).release
    app.add_routes("health", health.health_routes(is_healthy, is_ready, ServerLoad(False), release))
    exposition = Exposition(
        [index.metrics_text, http_metrics.text, loops.metrics_text], http_metrics.process_text
    )
    app.add_routes("metrics", health.metrics_routes(exposition))
    return app


def _rpc_handlers(
    index: KvIndex, settings: Settings
) -> Mapping[str, Callable[[Any, RequestContext], Any]]:
    from app.extensions.kv_index.indexer_rpc import indexer_handlers  # needs protobuf

    return indexer_handlers(index, settings)


def _middleware(live: LiveSettings, http_metrics: HttpMetrics, engine: NoEngine) -> MiddlewareStack:
    settings = live.current
    http_log = HttpLog()
    keys = ApiKeys()
    names = (settings.server.host, settings.server.pod_name)
    pages = ForeignPages(settings.access, keys.needs_key, names)
    live.follow(LogSettings, http_log.on_log)
    live.follow(AccessSettings, keys.on_access)
    stack = MiddlewareStack([http_metrics, http_log, Cors(settings.access), keys, pages, engine])
    live.watch(stack.refresh)
    return stack
