"""The routes of the index, and the application that has nothing else."""

from __future__ import annotations

from app.api.admin import health, metrics
from app.api.errors import init_errors
from app.api.kv import index as kv_index
from app.api.kv import pod_scores
from app.api.responder import ServerLoad
from app.clock.clock import LiveClock
from app.http.body import BodyLimits
from app.kvcache.publisher import Publisher
from app.kvindex.assembly import Listening, aliases, fed, index_of
from app.metrics.exposition import Exposition, Families
from app.middleware.api_keys import init_access
from app.middleware.cors import init_cors
from app.middleware.http_log import init_http_log
from app.middleware.http_metrics import HttpMetrics
from app.tokenization import Tokenizer
from app.web.application import Understudy
from config import Settings
from config.live import LiveSettings


class Doors:
    """Of an indexer: nothing runs that would have to end, so draining only says that it is not ready."""

    def __init__(self) -> None:
        self.draining = False

    def drain(self) -> None:
        self.draining = True


def build_indexer(settings: Settings, tokenizer: Tokenizer) -> Understudy:
    """An application that keeps an index and answers with scores. ConfigError as `index_of`."""
    live, clock, http, doors = LiveSettings(settings), LiveClock(), HttpMetrics(), Doors()
    app = Understudy(doors)
    families = add_index(app, live, tokenizer)
    http.init_app(app)
    init_http_log(app, live)
    init_errors(app)
    init_cors(app, settings.access)
    init_access(app, live)
    ready = health.readiness(doors, clock, settings.server.startup_duration)
    app.register_blueprint(health.blueprint(ready, ServerLoad(False), settings.model.vllm_version))
    app.register_blueprint(metrics.blueprint(Exposition([families], http)))
    return app


def add_index(
    app: Understudy, live: LiveSettings, tokenizer: Tokenizer, publisher: Publisher | None = None
) -> Families:
    """Give `app` an index with its routes, fed by our own `publisher` too; the index's metric families."""
    settings: Settings = live.current
    at, model, server = settings.kvindex, settings.model.model, settings.server
    index = index_of(settings, tokenizer)
    if publisher is not None:
        publisher.listen(fed(index, model))
    app.services.append(Listening(index))
    body = BodyLimits.of(server)
    app.register_blueprint(
        pod_scores.blueprint(index, body, aliases(settings), model, at.kv_index_chat_answer)
    )
    app.register_blueprint(kv_index.blueprint(index, at.kv_index_backend))
    return index.metrics_text
