"""The application of an indexer: only the routes of the index, probes, metrics and memory."""

from typing import TYPE_CHECKING

from app.base.clock.clock import LiveClock
from app.base.metrics.instruments import Exposition, Families
from app.engine.kvcache.publisher import Publisher
from app.extensions.openapi import document
from app.kvindex.service import BatchListener, build_index
from app.serving.api import kv_index
from app.serving.api.admin import server as admin
from app.serving.api.responder import ServerLoad
from app.serving.flask.application import Understudy
from app.serving.http.context import RequestContext
from app.serving.http.errors import unavailable
from app.serving.middleware.api_keys import ApiKeys
from app.serving.middleware.cors import Cors
from app.serving.middleware.foreign_pages import ForeignPages
from app.serving.middleware.http_log import HttpLog
from app.serving.middleware.http_metrics import HttpMetrics
from app.serving.middleware.stack import Middleware, MiddlewareStack
from app.text.base import Tokenizer
from config import Settings
from config.validation import LiveSettings

if TYPE_CHECKING:
    from app.engine.core.remote_engine import RemoteEngine


class NoEngine(Middleware):
    """Drains an indexer without an engine: refuses new POST requests, and readiness fails."""

    draining = False
    withdrawn = False
    healthy = True

    def drain(self) -> None:
        self.draining = True

    def begin(self, context: RequestContext) -> None:
        if self.draining and context.method == "POST":
            raise unavailable("The indexer is shutting down.")


def build_indexer(settings: Settings, tokenizer: Tokenizer) -> Understudy:
    """Builds an application with an index and its scores. Raises ConfigError as `build_index` does."""
    live, clock, http, engine = LiveSettings(settings), LiveClock(), HttpMetrics(), NoEngine()
    http_log = HttpLog()
    keys = ApiKeys()
    pages = ForeignPages(settings.access, (settings.server.host, settings.server.pod_name))
    for middleware in (http_log, keys, pages):
        live.subscribe(middleware.on_settings)
    stack = MiddlewareStack([http, http_log, Cors(settings.access), keys, pages, engine])
    live.subscribe(stack.on_settings)
    app = Understudy(engine, stack)
    families = add_index(app, live, tokenizer)
    app.caches.append(lambda: tokenizer.caches)
    ready = admin.readiness(engine, clock, settings.server.startup_duration)
    app.add_routes("memory", admin.memory_routes(app.caches))
    app.add_routes("health", admin.health_routes(lambda: True, ready, ServerLoad(False)))
    app.add_routes(
        "metrics", admin.metrics_routes(Exposition([families, http.text], http.process_text))
    )
    app.add_routes(
        "root", document.root_routes(lambda: app.routes, {"plays": "an index of KV blocks"})
    )
    if not settings.api.disable_fastapi_docs:
        app.add_routes(
            "openapi", document.document_routes(lambda: app.routes, "", settings.model.model)
        )
    return app


def add_index(
    app: Understudy,
    live: LiveSettings,
    tokenizer: Tokenizer,
    publisher: Publisher | None = None,
    engine: "RemoteEngine | None" = None,
) -> Families:
    """Adds an index and its routes to `app`; returns the index's metric families.

    The `publisher` or `engine` of this server, if given, feeds the index, too.
    """
    settings: Settings = live.current
    index, model = build_index(settings, tokenizer), settings.model.model
    if publisher is not None:
        publisher.listen(BatchListener(index, model))
    if engine is not None:
        engine.listen(BatchListener(index, model))
    app.services.append(index)
    app.caches.append(lambda: index.caches)
    app.add_routes("kv_index", kv_index.routes(index, settings))
    return index.metrics_text
